"""Formats of batches, by model code. A format is a table: field -> what the kernel writes, or a small function.

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
max_seqlen too. `fields=` selects fields of a format, for example those that a pipeline stage needs. No format has an
attention_mask: with one, Hugging Face models let the documents of a row attend to each other. (Without one they isolate
documents by position_ids, but only if called with use_cache=False, as their Trainer does.)

Fields, int64 and of the shape above unless stated otherwise:
    input_ids, input, tokens     the tokens
    targets, shift_labels; labels of torchtitan    shifted: the next token of the document, also where it is in
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
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from tokenstore.batches import block as words
from tokenstore.batches.gather import IGNORE

DictFormat = Literal["torch", "hf", "hf_flash", "megatron", "nanotron"]
TupleFormat = Literal["torchtitan", "torchtitan_flat"]


@dataclass(frozen=True)
class Written:
    """A field that the kernel writes, a value per token.

    Attributes:
        word: of the block, takes the address: it says what is written.
        layout: "rows" [B, L], "one_row" [1, B * L], "flat" [B * L].
        dtype: that which `batches.block` states for the word.
    """

    word: int
    layout: str = "rows"
    dtype: torch.dtype = torch.int64

    def shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        """Of a microbatch of `num_rows` rows of `length` tokens."""
        shapes: dict[str, tuple[int, ...]] = {"rows": (num_rows, length), "one_row": (1, num_rows * length)}
        return shapes.get(self.layout, (num_rows * length,))


@dataclass(frozen=True)
class Rows:
    """What is known of a microbatch beside its tokens.

    Attributes:
        sources: int64[B]; a view, as `borders` is: fields are copies.
        borders: int32[n + 1], where pieces and padding begin in the rows laid end to end, and the end.
        longest: tokens of the longest piece, padding counted as one.
        length: L.
        max_documents: see the module; None: as many as there are.
    """

    sources: np.ndarray
    borders: np.ndarray
    longest: int
    length: int
    max_documents: int | None = None


Derived = Callable[[Rows], np.ndarray | int]  # a field with a few values per row or piece


@dataclass(frozen=True)
class Format:
    """default: the fields given where none are asked for. fields: all it has. pack: the fields asked for -> a batch.

    by_row: whether row i of a batch is item i of every field but `whole`, which are of the microbatch as one.
    ignored: the target of a token that has none. flat: whether a row follows the one before it, as one row for the model.
    """

    default: tuple[str, ...]
    fields: Mapping[str, Written | Derived]
    pack: Callable[[dict[str, Any]], Any] | None = None
    needed: tuple[str, ...] = ()
    by_row: bool = True
    whole: tuple[str, ...] = ()
    ignored: int = IGNORE
    flat: bool = False


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


# ---- fields with a few values


def _cu_seqlens(rows: Rows) -> np.ndarray:
    if rows.max_documents is None:
        return rows.borders.copy()
    return _filled(rows.borders, rows.max_documents, int(rows.borders[-1]))


def _max_seqlen(rows: Rows) -> int:
    return rows.longest if rows.max_documents is None else rows.length


def _filled(borders: np.ndarray, most: int, end: int) -> np.ndarray:
    """int32[most + 1]: borders, then `end` as often as it takes."""
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
    ends = np.flatnonzero(rows.borders % rows.length == 0).tolist()  # every row begins with a border
    return [rows.borders[first : stop + 1] - rows.borders[first] for first, stop in pairwise(ends)]


def _cu_seqlens_of_rows(rows: Rows) -> np.ndarray:
    most = rows.length if rows.max_documents is None else rows.max_documents
    return np.stack([_filled(borders, most, rows.length) for borders in _row_borders(rows)])


def _max_seqlen_of_rows(rows: Rows) -> np.ndarray:
    return np.array([np.diff(borders).max() for borders in _row_borders(rows)], np.int32)


def source_ids(rows: Rows) -> np.ndarray:
    """int64[B], a copy."""
    return rows.sources.copy()


_IDS, _TARGETS, _LABELS = Written(words.IDS), Written(words.TARGETS), Written(words.LABELS)
_POSITIONS, _DOCUMENTS = Written(words.POSITIONS), Written(words.DOCUMENTS)
_OF_ROWS: dict[str, Written | Derived] = {"document_ids": _DOCUMENTS, "source_ids": source_ids}
_MORE: dict[str, Written | Derived] = {
    "position_ids": _POSITIONS,
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
        {"input_ids": _IDS, "targets": _TARGETS, **_MORE},
        whole=_SEQLENS,
    ),
    "hf": Format(
        ("input_ids", "labels", "shift_labels"),
        {"input_ids": _IDS, "labels": _LABELS, "shift_labels": _TARGETS, **_MORE},
        whole=_SEQLENS,
    ),
    "hf_flash": Format(
        ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
        {
            "input_ids": Written(words.IDS, "one_row"),
            "labels": Written(words.LABELS, "one_row"),
            "shift_labels": Written(words.TARGETS, "one_row"),
            "position_ids": Written(words.POSITIONS, "one_row"),
            "cu_seq_lens_q": _cu_seqlens,
            "cu_seq_lens_k": _cu_seqlens,
            "max_length_q": _max_seqlen,
            "max_length_k": _max_seqlen,
            "document_ids": Written(words.DOCUMENTS, "one_row"),
            "source_ids": source_ids,
        },
        by_row=False,
        flat=True,
    ),
    "torchtitan": Format(
        ("input", "positions", "labels"),
        {"input": _IDS, "positions": _POSITIONS, "labels": _TARGETS},
        _titan,
        ("labels",),
    ),
    "torchtitan_flat": Format(
        ("input", "positions", "labels"),
        {
            "input": Written(words.IDS, "flat"),
            "positions": Written(words.POSITIONS, "flat"),
            "labels": Written(words.TARGETS, "flat"),
        },
        _titan,
        ("labels",),
        by_row=False,
    ),
    "megatron": Format(
        ("tokens", "labels", "loss_mask", "position_ids"),
        {
            "tokens": _IDS,
            "labels": _TARGETS,
            "loss_mask": Written(words.LOSS_MASK, dtype=torch.float32),
            "position_ids": _POSITIONS,
            "cu_seqlens": _cu_seqlens_of_rows,
            "max_seqlen": _max_seqlen_of_rows,
            **_OF_ROWS,
        },
        ignored=0,
    ),
    "nanotron": Format(
        ("input_ids", "position_ids", "label_ids", "label_mask"),
        {
            "input_ids": _IDS,
            "position_ids": _POSITIONS,
            "label_ids": _TARGETS,
            "label_mask": Written(words.LABEL_MASK, dtype=torch.bool),
            **_OF_ROWS,
        },
        ignored=0,
    ),
}
