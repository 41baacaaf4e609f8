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
    ids = torch.empty(shape, dtype=torch.int64, pin_memory=pin_memory)
    targets = torch.empty(shape, dtype=torch.int64, pin_memory=pin_memory)
    sampler.fill(rows, ids.numpy(), targets.numpy())
    made = {"input_ids": ids, "targets": targets, "shift_labels": targets}
    if not made.keys() >= set(fields):
        made |= _annotations(sampler, rows, ids, pin_memory)
    return {name: made[name] for name in fields}


def _annotations(sampler: Sampler, rows: np.ndarray, ids: torch.Tensor, pin_memory: bool) -> dict[str, torch.Tensor]:
    positions, documents, labels = (torch.empty_like(ids, pin_memory=pin_memory) for _ in range(3))
    starts = np.empty(tuple(ids.shape), np.bool_)
    sampler.annotate(rows, positions.numpy(), documents.numpy(), starts)
    np.copyto(labels.numpy(), np.where(starts, IGNORE, ids.numpy()))
    return {"position_ids": positions, "document_ids": documents, "labels": labels}
