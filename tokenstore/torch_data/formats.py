"""The formats of a batch. A format is a table of fields; each is written by the kernel or computed by a small function.

B is the number of rows of a microbatch, L the sequence length in tokens.

    format           batch                                  default fields; optional fields
    torch            dict, [B, L]                           input_ids, targets
    hf               dict, [B, L]                           input_ids, labels, shift_labels
    hf_flash         dict, all rows in one, [1, B * L]      input_ids, labels, position_ids, cu_seq_lens_q, cu_seq_lens_k,
                                                            max_length_q, max_length_k; shift_labels
    torchtitan       ({input, positions}, labels), [B, L]   input, positions, labels
    torchtitan_flat  the same, all rows in one, [B * L]
    megatron         dict, [B, L]                           tokens, labels, loss_mask, position_ids; cu_seqlens, max_seqlen
    nanotron         dict, [B, L]                           input_ids, position_ids, label_ids, label_mask
    rows             dict, [B, L + 1] and [B, L]            tokens, loss_mask

All but torchtitan and torchtitan_flat also have document_ids, source_ids, sequence_ids, loss_weights, source_tokens and
attention_cost. torch, hf and rows also have position_ids, cu_seqlens, cu_seqlens_padded and max_seqlen; megatron also has
cu_seqlens_padded. `fields=` selects fields of a format, so that a pipeline stage gets only those it needs.

No format has an attention_mask, because with one, Hugging Face models let the documents of a row attend to each other.
Without one, they separate documents by position_ids, but only with use_cache=False, as their Trainer sets it.

The fields. They are int64 and have the shape above, unless a dtype or shape is given. `dtype=` changes the type of tokens,
and `ignore_index=` the value that is -100 or 0 below.

    input_ids, input, tokens     the tokens
    tokens of rows [B, L + 1]    the tokens of the row and the token that follows it in its document, or else the padding
                                 token. Inputs are tokens[:, :-1] and targets are tokens[:, 1:], where loss_mask is True
    targets, shift_labels;       the next token of the document, even if it is in another row; -100 at the last token of a
    labels of torchtitan         document, where the next token is masked, and on padding
    labels of hf, hf_flash       not shifted, because the model shifts them: the tokens, but -100 at the first token of a
                                 document or of a later part of it (unless targets cross documents), at masked tokens and on
                                 padding; in hf_flash also at the start of every row
    labels of megatron,          `targets` with 0 in place of -100, because these losses do not accept -100
    label_ids
    loss_mask float32,           whether `targets` is not -100
    label_mask bool,
    loss_mask bool of rows
    position_ids, positions      counted from 0 at the start of each document and of each row; padding counts as a document,
                                 or with `align` in the plan continues the piece before it
    document_ids                 0, 1, ... within the row; -1 on padding
    cu_seqlens int32[n + 1]      where each piece of a document starts in the concatenated rows, and then B * L. With
                                 `max_documents`, int32[max_documents + 1], padded with its last value, so that its shape is
                                 constant. With `align` in the plan: tokens of the pieces before each piece, without padding
    cu_seqlens_padded            where each piece starts in the concatenated rows, and then B * L. It differs from
    int32[n + 1]                 cu_seqlens only with `align`: padding then belongs to the piece before it, an empty row is
                                 a piece of 0 tokens, and every piece starts at a multiple of `align`
    max_seqlen int               the longest piece, with its padding. With `max_documents`, L, so that compiled code need
                                 not be compiled again
    cu_seq_lens_q/k,             cu_seqlens_padded and max_seqlen, as flash attention in transformers names them
    max_length_q/k
    cu_seqlens, cu_seqlens_padded    int32[B, n + 1]: those of each row alone, padded with their last value; n is
    of megatron                      `max_documents`, by default L
    max_seqlen of megatron       int32[B]: that of each row
    attention_cost [B]           what the row costs in a plan with `balance`; otherwise, with attention 1 and linear 0: the
                                 sum of the squares of the tokens of its pieces
    source_ids [B]               index of the row's source among the sorted names of the sources; -1 for a row of padding
    sequence_ids [B]             global number of the row, which `plan.sequence` looks up; -1 for a row of padding, and for
                                 a row of an evaluation that is in no step
    loss_weights float32         the `loss_weight` of the source that the token is from (in a pool, of the member), and 0
                                 where `targets` is -100: sum(losses * loss_weights) / sum(loss_weights) is a weighted mean
    source_tokens [S]            tokens of the microbatch from each of the S sources with a path, sorted by name, so also from
                                 the members of pools

The datasets of nanotron yield rows of L + 1 tokens, which its collator splits. Such rows cannot express masked tokens, nor a
next token that is in another row. Therefore this format has the fields that the collator would return. In the format
"rows", the loss mask says which tokens are targets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tokenstore.batches import block as words
from tokenstore.batches.gather import IGNORE
from tokenstore.torch_data import row_fields

DictFormat = Literal["torch", "hf", "hf_flash", "megatron", "nanotron", "rows"]
TupleFormat = Literal["torchtitan", "torchtitan_flat"]
MASKS = {"loss_mask", "label_mask"}  # names of the fields that say which targets count


@dataclass(frozen=True)
class Written:
    """A field that the kernel writes, with one value per token.

    Attributes:
        word: index of the word of the kernel's block that holds the address of the field. It decides what is written.
        layout: "rows" [B, L], "long_rows" [B, L + 1], "one_row" [1, B * L] or "flat" [B * L].
        dtype: the one that `batches.block` defines for the word. That of IDS may be changed by `dtype=`.
    """

    word: int
    layout: str = "rows"
    dtype: torch.dtype = torch.int64

    def shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        """The shape for a microbatch of `num_rows` rows of `length` tokens."""
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (num_rows, length),
            "long_rows": (num_rows, length + 1),
            "one_row": (1, num_rows * length),
        }
        return shapes.get(self.layout, (num_rows * length,))


@dataclass(frozen=True)
class Format:
    """A format of batches.

    Attributes:
        default: names of the fields of a batch by default.
        fields: all fields, by name.
        pack: converts a dict of fields to a batch. None: the batch is the dict.
        needed: names of fields that `pack` requires.
        by_row: whether item i of every field, except those in `whole`, belongs to row i.
        whole: names of fields that describe the microbatch as a whole.
        ignored: the target of tokens without a target.
        flat: whether the model shifts labels across rows, because it sees all rows as one.
    """

    default: tuple[str, ...]
    fields: Mapping[str, Written | row_fields.Derived]
    pack: Callable[[dict[str, Any]], Any] | None = None
    needed: tuple[str, ...] = ()
    by_row: bool = True
    whole: tuple[str, ...] = ()
    ignored: int = IGNORE
    flat: bool = False


def check_fields(fields: Sequence[str] | None, format: str, by_row: bool = False) -> tuple[str, ...]:
    """`fields`, or by default those of the format.

    Args:
        fields: names of fields, or None.
        format: name of a format.
        by_row: accept only formats and fields that can be split into rows.

    Raises:
        ValueError: a field or the format is unknown, or a field that the format requires is missing.
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


_IDS, _TARGETS, _LABELS = Written(words.IDS), Written(words.TARGETS), Written(words.LABELS)
_POSITIONS, _DOCUMENTS = Written(words.POSITIONS), Written(words.DOCUMENTS)
_OF_ROWS: dict[str, Written | row_fields.Derived] = {
    "document_ids": _DOCUMENTS,
    "source_ids": row_fields.source_ids,
    "attention_cost": row_fields.attention_cost,
    "sequence_ids": row_fields.sequence_ids,
    "loss_weights": row_fields.loss_weights,
    "source_tokens": row_fields.source_tokens,
}
_MORE: dict[str, Written | row_fields.Derived] = {
    "position_ids": _POSITIONS,
    "cu_seqlens": row_fields.cu_seqlens,
    "cu_seqlens_padded": row_fields.cu_seqlens_padded,
    "max_seqlen": row_fields.max_seqlen,
    **_OF_ROWS,
}
_SEQLENS = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "source_tokens")
_LABEL_MASK = Written(words.LABEL_MASK, dtype=torch.bool)


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
            "cu_seq_lens_q": row_fields.cu_seqlens_padded,
            "cu_seq_lens_k": row_fields.cu_seqlens_padded,
            "max_length_q": row_fields.max_seqlen,
            "max_length_k": row_fields.max_seqlen,
            "document_ids": Written(words.DOCUMENTS, "one_row"),
            "source_ids": row_fields.source_ids,
            "attention_cost": row_fields.attention_cost,
            "sequence_ids": row_fields.sequence_ids,
            "loss_weights": row_fields.loss_weights_of_one_row,
            "source_tokens": row_fields.source_tokens,
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
            "cu_seqlens": row_fields.cu_seqlens_of_rows,
            "cu_seqlens_padded": row_fields.cu_seqlens_padded_of_rows,
            "max_seqlen": row_fields.max_seqlen_of_rows,
            **_OF_ROWS,
        },
        whole=("source_tokens",),
        ignored=0,
    ),
    "nanotron": Format(
        ("input_ids", "position_ids", "label_ids", "label_mask"),
        {
            "input_ids": _IDS,
            "position_ids": _POSITIONS,
            "label_ids": _TARGETS,
            "label_mask": _LABEL_MASK,
            **_OF_ROWS,
        },
        whole=("source_tokens",),
        ignored=0,
    ),
    "rows": Format(
        ("tokens", "loss_mask"),
        {"tokens": Written(words.IDS, "long_rows"), "loss_mask": _LABEL_MASK, **_MORE},
        whole=_SEQLENS,
    ),
}
