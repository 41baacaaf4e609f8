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


def make_batch(
    sampler: Sampler, rows: np.ndarray, length: int, fields: Sequence[str], pin_memory: bool
) -> dict[str, torch.Tensor]:
    """Tensors of located rows, each int64[B, length], in the order of `fields`.

    input_ids: the tokens. targets, shift_labels: the token that follows in the document, -100 at its last.
    labels: the tokens again, -100 at the first of each document; a Hugging Face model shifts them itself.
    position_ids: from 0 at each document and at the row's start. document_ids: 0, 1, ... in the row.
    """
    shape = (len(rows), length)
    ids, targets = _empty(shape, pin_memory), _empty(shape, pin_memory)
    sampler.fill(rows, ids, targets)
    made = {"input_ids": ids, "targets": targets, "shift_labels": targets}
    if any(name not in made for name in fields):
        made |= _annotations(sampler, rows, ids, pin_memory)
    return {name: torch.from_numpy(made[name]) for name in fields}


def _annotations(sampler: Sampler, rows: np.ndarray, ids: np.ndarray, pin_memory: bool) -> dict[str, np.ndarray]:
    positions, documents, labels = (_empty(ids.shape, pin_memory) for _ in range(3))
    starts = np.empty(ids.shape, np.bool_)
    sampler.annotate(rows, positions, documents, starts)
    np.copyto(labels, ids)
    labels[starts] = IGNORE
    return {"position_ids": positions, "document_ids": documents, "labels": labels}


def _empty(shape: tuple[int, ...], pin_memory: bool) -> np.ndarray:
    """Fresh memory as an array: half the cost of a tensor seen as an array, where it need not be page-locked."""
    return torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy() if pin_memory else np.empty(shape, np.int64)
