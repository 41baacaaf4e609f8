"""Located rows -> a dict of fresh torch tensors.

`targets` are shifted already and are not called `labels` on purpose: a Hugging Face model shifts `labels` itself, so
shifted ones given to it train wrongly with a plausible loss. `format="hf"` gives `labels` as such a model wants them.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tokenstore.sampling.gather import IGNORE
from tokenstore.sampling.sampler import Sampler

FORMATS = {"torch": ("input_ids", "targets"), "hf": ("input_ids", "labels", "shift_labels")}
_MORE_FIELDS = ("position_ids", "document_ids")


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
    """Makes tensors of located rows, each int64[B, L], in the order of `fields`.

    input_ids: the tokens. targets, shift_labels: the token that follows in the document, -100 at its last.
    labels: the tokens again, -100 at the first of each document; a Hugging Face model shifts them itself.
    position_ids: from 0 at each document and at the row's start. document_ids: 0, 1, ... in the row.
    """

    def __init__(self, sampler: Sampler, length: int, fields: Sequence[str], pin_memory: bool):
        self.sampler = sampler
        self._length, self._fields, self._pin_memory = length, fields, pin_memory
        self._plain = set(fields) <= {"input_ids", "targets", "shift_labels"}

    def make(self, step: int, first_row: int, num_rows: int) -> dict[str, torch.Tensor]:
        """The batch of rows first_row, first_row + 1, ... of `step`, in memory of its own."""
        rows = self.sampler.locate(step, first_row, num_rows)
        ids, targets = self._empty(num_rows), self._empty(num_rows)
        self.sampler.fill(rows, ids, targets)
        made = {"input_ids": ids, "targets": targets, "shift_labels": targets}
        if not self._plain:
            made |= self._annotations(rows, ids)
        return {name: torch.from_numpy(made[name]) for name in self._fields}

    def _annotations(self, rows: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
        positions, documents, labels = (self._empty(len(rows)) for _ in range(3))
        starts = np.empty(ids.shape, np.bool_)
        self.sampler.annotate(rows, positions, documents, starts)
        np.copyto(labels, ids)
        labels[starts] = IGNORE
        return {"position_ids": positions, "document_ids": documents, "labels": labels}

    def _empty(self, num_rows: int) -> np.ndarray:
        """Fresh memory as an array: cheaper than a tensor seen as an array, where it need not be page-locked."""
        shape = (num_rows, self._length)
        return (
            torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
            if self._pin_memory
            else np.empty(shape, np.int64)
        )
