"""Located rows -> a dict of fresh torch tensors.

`targets` are shifted already and are not called `labels` on purpose: a Hugging Face model shifts `labels` itself, so
shifted ones given to it train wrongly with a plausible loss. `format="hf"` gives `labels` as such a model wants them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tokenstore.sampling.gather import IGNORE
from tokenstore.sampling.sampler import Sampler

FORMATS = {"torch": ("input_ids", "targets"), "hf": ("input_ids", "labels", "shift_labels")}
_MORE_FIELDS = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen", "source_ids")


def check_fields(fields: Sequence[str] | None, format: str) -> tuple[str, ...]:
    """The fields asked for, or those of the format; ValueError for an unknown field or format."""
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {sorted(FORMATS)}, found {format!r}")
    known = FORMATS[format] + _MORE_FIELDS
    fields = FORMATS[format] if fields is None else tuple(fields)
    if unknown := [name for name in fields if name not in known]:
        raise ValueError(f"fields: expected some of {list(known)} for format {format!r}, found {unknown}")
    return fields


class BatchMaker:
    """Makes tensors of located rows, int64[B, L] unless said, in the order of `fields`.

    input_ids: the tokens. targets, shift_labels: the token that follows in the document, -100 at its last, where that
        token is masked, and on padding.
    labels: the tokens again, -100 at the first of each document (unless targets cross documents), where masked, and on
        padding; a Hugging Face model shifts them itself.
    position_ids: from 0 at each document and at the row's start. document_ids: 0, 1, ... in the row, -1 on
        padding, which is a document of its own for positions and cu_seqlens.
    cu_seqlens: int32[n + 1], where each piece of a document begins in the flattened microbatch, and B * L. With
        `max_documents` int32[max_documents + 1], the rest filled with B * L, so that shapes stay the same.
    max_seqlen: int, tokens of the longest piece; with `max_documents` L, so that compiled code stays the same.
    source_ids: int64[B], number of each row's source or pool, by name in alphabetical order; -1 for a row of padding.
    """

    def __init__(
        self, sampler: Sampler, length: int, fields: Sequence[str], pin_memory: bool, max_documents: int | None = None
    ):
        self.sampler = sampler
        self._length, self._fields, self._pin_memory = length, fields, pin_memory
        self._max_documents = max_documents
        self._plain = set(fields) <= {"input_ids", "targets", "shift_labels"}

    def make(self, step: int, first_row: int, num_rows: int) -> dict[str, Any]:
        """The batch of rows first_row, first_row + 1, ... of `step`, in memory of its own."""
        rows = self.sampler.locate_next(step, first_row, num_rows)
        ids, targets = self._empty(num_rows), self._empty(num_rows)
        self.sampler.fill(rows, ids, targets)
        made = {"input_ids": ids, "targets": targets, "shift_labels": targets}
        if self._plain:
            return {name: torch.from_numpy(made[name]) for name in self._fields}
        made |= self._annotations(rows, ids)
        return {name: self._tensor(made[name]) for name in self._fields}

    def _annotations(self, rows: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
        positions, documents, labels = (self._empty(len(rows)) for _ in range(3))
        starts = np.empty(ids.shape, np.bool_)
        self.sampler.annotate(positions, documents, starts)
        np.copyto(labels, ids)
        if self.sampler.crosses_documents:
            starts = documents < 0
        labels[starts] = IGNORE
        self.sampler.mask_labels(labels)
        cu_seqlens, max_seqlen = self._sequence_borders(positions)
        return {
            "position_ids": positions,
            "document_ids": documents,
            "labels": labels,
            "cu_seqlens": cu_seqlens,
            "max_seqlen": max_seqlen,
            "source_ids": rows[:, 0].copy(),
        }

    def _sequence_borders(self, positions: np.ndarray) -> tuple[np.ndarray, int]:
        """(cu_seqlens, max_seqlen) from the places where positions begin again."""
        borders = np.append(np.flatnonzero(positions == 0), positions.size).astype(np.int32)
        if self._max_documents is None:
            return borders, int(np.diff(borders).max())
        if borders.size > self._max_documents + 1 and "cu_seqlens" in self._fields:
            raise ValueError(
                f"max_documents: expected at least {borders.size - 1} for this batch, found {self._max_documents};"
                f" a microbatch of {positions.size} tokens can hold as many"
            )
        filled = np.full(self._max_documents + 1, positions.size, np.int32)
        filled[: borders.size] = borders[: filled.size]
        return filled, self._length

    def _empty(self, num_rows: int) -> np.ndarray:
        """Fresh memory as an array: cheaper than a tensor seen as an array, where it need not be page-locked."""
        shape = (num_rows, self._length)
        if self._pin_memory:
            return torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
        return np.empty(shape, np.int64)

    def _tensor(self, value: np.ndarray | int) -> torch.Tensor | int:
        if isinstance(value, int):
            return value
        tensor = torch.from_numpy(value)
        return tensor.pin_memory() if self._pin_memory and not tensor.is_pinned() else tensor
