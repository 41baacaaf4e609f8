"""What a batch looks like, for whom. A format is a table: field -> a small pure function of the rows' canonical arrays.

    format           a batch is                             default fields; others it has
    torch            dict, [B, L]                           input_ids, targets
    hf               dict, [B, L]                           input_ids, labels, shift_labels
    hf_flash         dict, the rows as one, [1, B * L]      input_ids, labels, position_ids, cu_seq_lens_q, cu_seq_lens_k,
                                                            max_length_q, max_length_k; shift_labels
    torchtitan       ({input, positions}, labels), [B, L]   input, positions, labels
    torchtitan_flat  the same with the rows as one, [B * L]
    megatron         dict, [B, L]                           tokens, labels, loss_mask, position_ids; cu_seqlens, max_seqlen
    nanotron         dict, [B, L]                           input_ids, position_ids, label_ids, label_mask

torch, hf, hf_flash, megatron and nanotron also have document_ids, source_ids; torch and hf position_ids, cu_seqlens and
max_seqlen too. `fields=` picks some of a format's fields: a pipeline stage asks only for what it needs. No format gives an
attention_mask: with one, Hugging Face models let documents of a row see each other. (Without one they keep them apart by
position_ids, but only if called with use_cache=False, as their Trainer does.)

Fields, int64 and of the shape above unless said:
    input_ids, input, tokens     the tokens
    targets, shift_labels; labels of torchtitan    shifted: the token that follows in the document, also where it stands in
        another row; -100 at a document's last token, where that token is masked, and on padding
    labels of hf, hf_flash       not shifted, the model does it: the tokens again, -100 at the first token of a document or of
        a later part of it (unless targets cross documents), where masked, on padding; in hf_flash at every row's start too
    labels of megatron, label_ids    `targets` with 0 in place of -100: these losses take no -100
    loss_mask float32, label_mask bool   where `targets` is not -100
    position_ids, positions      from 0 at each document and at the row's start; padding counts as a document
    document_ids                 0, 1, ... in the row, -1 on padding
    cu_seqlens int32[n + 1]      where each piece of a document begins in the rows laid end to end, and B * L. With
        `max_documents` int32[max_documents + 1], the rest filled with B * L, so that shapes stay the same
    max_seqlen int               tokens of the longest piece; with `max_documents` L, so that compiled code stays the same
    cu_seq_lens_q/k, max_length_q/k   the same two under the names flash attention has in transformers
    cu_seqlens of megatron       int32[B, n + 1]: of each row by itself, filled with L up to n = `max_documents`, else L
    max_seqlen of megatron       int32[B]: of each row
    source_ids [B]               number of the row's source or pool, by name in alphabetical order; -1 for a row of padding

nanotron's own datasets hold rows of L + 1 tokens, which its collator splits: those could say neither what follows in another
row nor what is masked, so this format gives what the collator makes of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tokenstore.batches.gather import IGNORE

DictFormat = Literal["torch", "hf", "hf_flash", "megatron", "nanotron"]
TupleFormat = Literal["torchtitan", "torchtitan_flat"]


class Rows:
    """The canonical arrays of a microbatch; what is not asked for is not made.

    Attributes:
        ids, targets: int64[B, L].
        sources: int64[B], a view of what is not to be changed.
        max_documents: see the module; None: as many as there are.
    """

    def __init__(
        self,
        ids: np.ndarray,
        targets: np.ndarray,
        sources: np.ndarray,
        annotate: Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray]],
        max_documents: int | None = None,
    ):
        """annotate: makes positions, documents and labels, at the first field that needs one of them."""
        self.ids, self.targets, self.sources, self.max_documents = ids, targets, sources, max_documents
        self._annotate = annotate

    @cached_property
    def _annotations(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._annotate()

    @property
    def positions(self) -> np.ndarray:
        """int64[B, L]."""
        return self._annotations[0]

    @property
    def documents(self) -> np.ndarray:
        """int64[B, L]."""
        return self._annotations[1]

    @property
    def labels(self) -> np.ndarray:
        """int64[B, L], not shifted."""
        return self._annotations[2]

    @cached_property
    def borders(self) -> np.ndarray:
        """int32[n + 1], where positions begin again in the rows laid end to end, and the end."""
        return np.append(np.flatnonzero(self.positions == 0), self.positions.size).astype(np.int32)


Field = Callable[[Rows], np.ndarray | int]


@dataclass(frozen=True)
class Format:
    """default: the fields given where none are asked for. fields: all it has. pack: the fields asked for -> a batch.

    by_row: whether row i of a batch is item i of every field but `whole`, which are of the microbatch as one.
    """

    default: tuple[str, ...]
    fields: Mapping[str, Field]
    pack: Callable[[dict[str, Any]], Any] = dict
    needed: tuple[str, ...] = ()
    by_row: bool = True
    whole: tuple[str, ...] = ()


def check_fields(fields: Sequence[str] | None, format: str, by_row: bool = False) -> tuple[str, ...]:
    """The fields asked for, or those of the format; ValueError for an unknown field or format.

    by_row: only those that can be cut into rows.
    """
    known = [name for name, each in FORMATS.items() if each.by_row or not by_row]
    if format not in known:
        raise ValueError(f"format: expected one of {sorted(known)}, found {format!r}")
    chosen = FORMATS[format]
    fields = chosen.default if fields is None else tuple(fields)
    names = [name for name in chosen.fields if not (by_row and name in chosen.whole)]
    if unknown := [name for name in fields if name not in names]:
        raise ValueError(f"fields: expected some of {names} for format {format!r}, found {unknown}")
    if missing := [name for name in chosen.needed if name not in fields]:
        raise ValueError(f"fields: expected {missing} among them for format {format!r}, found {list(fields)}")
    return fields


# ---- fields


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def _one_row(array: np.ndarray) -> np.ndarray:
    return array.reshape(1, -1)


def _cu_seqlens(rows: Rows) -> np.ndarray:
    borders, size = rows.borders, rows.positions.size
    return borders if rows.max_documents is None else _filled(borders, rows.max_documents, size)


def _max_seqlen(rows: Rows) -> int:
    return int(np.diff(rows.borders).max()) if rows.max_documents is None else rows.ids.shape[1]


def _filled(borders: np.ndarray, most: int, end: int) -> np.ndarray:
    """int32[most + 1]: borders, and `end` behind them."""
    if borders.size > most + 1:
        raise ValueError(
            f"max_documents: expected at least {borders.size - 1} for this batch, found {most};"
            f" a microbatch of {end} tokens can hold as many"
        )
    filled = np.full(most + 1, end, np.int32)
    filled[: borders.size] = borders
    return filled


def _row_borders(rows: Rows) -> list[np.ndarray]:
    """int32[n + 1] of each row by itself."""
    length = rows.ids.shape[1]
    return [np.append(np.flatnonzero(row == 0), length).astype(np.int32) for row in rows.positions]


def _cu_seqlens_of_rows(rows: Rows) -> np.ndarray:
    length = rows.ids.shape[1]
    most = length if rows.max_documents is None else rows.max_documents
    return np.stack([_filled(borders, most, length) for borders in _row_borders(rows)])


def _max_seqlen_of_rows(rows: Rows) -> np.ndarray:
    return np.array([np.diff(borders).max() for borders in _row_borders(rows)], np.int32)


def _in_loss(rows: Rows) -> np.ndarray:
    """bool[B, L]"""
    in_loss: np.ndarray = rows.targets != IGNORE
    return in_loss


def _targets_or_zero(rows: Rows) -> np.ndarray:
    return np.where(_in_loss(rows), rows.targets, 0)


def _flat_labels(rows: Rows) -> np.ndarray:
    """Labels of the rows as one: the model would predict a row's first token from the last one of the row before."""
    labels = rows.labels.copy()
    labels[:, 0] = IGNORE
    return _one_row(labels)


_OF_ROWS: dict[str, Field] = {
    "document_ids": lambda rows: rows.documents,
    "source_ids": lambda rows: rows.sources.copy(),
}
_MORE: dict[str, Field] = {
    "position_ids": lambda rows: rows.positions,
    "cu_seqlens": _cu_seqlens,
    "max_seqlen": _max_seqlen,
    **_OF_ROWS,
}
_SEQLENS = ("cu_seqlens", "max_seqlen")


# ---- formats


def _titan(fields: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    labels = fields.pop("labels")
    return fields, labels


FORMATS: dict[str, Format] = {
    "torch": Format(
        ("input_ids", "targets"),
        {"input_ids": lambda rows: rows.ids, "targets": lambda rows: rows.targets, **_MORE},
        whole=_SEQLENS,
    ),
    "hf": Format(
        ("input_ids", "labels", "shift_labels"),
        {
            "input_ids": lambda rows: rows.ids,
            "labels": lambda rows: rows.labels,
            "shift_labels": lambda rows: rows.targets,
            **_MORE,
        },
        whole=_SEQLENS,
    ),
    "hf_flash": Format(
        ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
        {
            "input_ids": lambda rows: _one_row(rows.ids),
            "labels": _flat_labels,
            "shift_labels": lambda rows: _one_row(rows.targets),
            "position_ids": lambda rows: _one_row(rows.positions),
            "cu_seq_lens_q": _cu_seqlens,
            "cu_seq_lens_k": _cu_seqlens,
            "max_length_q": _max_seqlen,
            "max_length_k": _max_seqlen,
            "document_ids": lambda rows: _one_row(rows.documents),
            "source_ids": lambda rows: rows.sources.copy(),
        },
        by_row=False,
    ),
    "torchtitan": Format(
        ("input", "positions", "labels"),
        {
            "input": lambda rows: rows.ids,
            "positions": lambda rows: rows.positions,
            "labels": lambda rows: rows.targets,
        },
        _titan,
        ("labels",),
    ),
    "torchtitan_flat": Format(
        ("input", "positions", "labels"),
        {
            "input": lambda rows: _flat(rows.ids),
            "positions": lambda rows: _flat(rows.positions),
            "labels": lambda rows: _flat(rows.targets),
        },
        _titan,
        ("labels",),
        by_row=False,
    ),
    "megatron": Format(
        ("tokens", "labels", "loss_mask", "position_ids"),
        {
            "tokens": lambda rows: rows.ids,
            "labels": _targets_or_zero,
            "loss_mask": lambda rows: _in_loss(rows).astype(np.float32),
            "position_ids": lambda rows: rows.positions,
            "cu_seqlens": _cu_seqlens_of_rows,
            "max_seqlen": _max_seqlen_of_rows,
            **_OF_ROWS,
        },
    ),
    "nanotron": Format(
        ("input_ids", "position_ids", "label_ids", "label_mask"),
        {
            "input_ids": lambda rows: rows.ids,
            "position_ids": lambda rows: rows.positions,
            "label_ids": _targets_or_zero,
            "label_mask": _in_loss,
            **_OF_ROWS,
        },
    ),
}
