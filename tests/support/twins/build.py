"""A plain build for comparison: one record at a time, in lists in memory, with the bytes tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import xxhash

from tokenstore.builder import BuildOptions

EOS, BOS = 256, 257
REASONS = ("empty", "filtered", "short", "long", "duplicates", "bad")

# A document of a store: tokens, which of them are in the loss, id, (file, record)
Document = tuple[list[int], list[bool], str | None, tuple[str, int] | None]


def keep(row: dict) -> bool:
    """A filter: the field `how` of a record decides whether it is dropped or the filter fails."""
    if row.get("how") == "fail":
        raise RuntimeError("asked for")
    return row.get("how") != "leave out"


def change(row: dict) -> dict | None:
    """A map: lengthens texts and lists of tokens, and drops the records whose field `how` says so."""
    if row.get("how") == "none":
        return None
    if isinstance(row.get("text"), str):
        row["text"] += "é"
    if row.get("how") == "add" and isinstance(row.get("input_ids"), list):
        row["input_ids"] = [*row["input_ids"], 77]  # now longer than its mask
    return row


class Wrong(Exception):
    """The record is invalid."""


@dataclass
class Built:
    """The documents of every split, counts by input file, and the bad records as (file, record)."""

    splits: dict[str | None, list[Document]]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    rejects: list[tuple[str, int]] = field(default_factory=list)


def build_twin(files: Mapping[str, Sequence[Any]], options: BuildOptions) -> Built:
    """Build stores from files. A file is a list of records: a dict, bytes for an invalid line, None for an empty line."""
    shares = [item.split("=") for item in options.split.split(",")] if options.split else [(None, "1")]
    built = Built({name: [] for name, _ in shares})
    mask_field = options.mask_field or _first_mask_field(files)
    seen: set[bytes] = set()
    for file, records in files.items():
        count = built.counts[file] = {"lines": len(records), "documents": 0, **dict.fromkeys(REASONS, 0)}
        for number, record in enumerate(records, 1):
            if record is None:
                continue
            try:
                found = _document(record, options, mask_field)
            except Wrong:
                count["bad"] += 1
                built.rejects.append((file, number))
                continue
            if isinstance(found, str):
                count[found] += 1
                continue
            tokens, mask, name, content = found
            if options.dedup == "exact" and content in seen:
                count["duplicates"] += 1
                continue
            seen.add(content)
            count["documents"] += 1
            origin = (file, number) if options.origins else None
            built.splits[_split(content, shares)].append((tokens, mask, name, origin))
    return built


def _first_mask_field(files: Mapping[str, Sequence[Any]]) -> str | None:
    first = next((row for rows in files.values() for row in rows if isinstance(row, dict)), {})
    return next((name for name in ("loss_mask", "labels") if first.get(name) is not None), None)


def _split(content: bytes, shares: Sequence[Sequence[str]]) -> str | None:
    place = Fraction(xxhash.xxh3_128_intdigest(content) % 2**64, 2**64)
    total = Fraction(0)
    for name, share in shares:
        total += Fraction(share)
        if place < total:
            return name
    raise AssertionError(shares)


def _document(record: Any, options: BuildOptions, mask_field: str | None) -> Any:
    """(tokens, mask, id, content), or the reason why the record is dropped."""
    if isinstance(record, bytes):
        raise Wrong
    if options.filter is not None:
        try:
            record = dict(record)
            if not keep(record):
                return "filtered"
        except RuntimeError:
            raise Wrong from None
    if options.map is not None:
        record = change(dict(record))
        if record is None:
            return "filtered"
    name = _id(record, options)
    if options.records == "text":
        if not isinstance(record.get("text"), str):
            raise Wrong
        content = record["text"].encode()
        tokens, mask = list(content), [True] * len(content)
    else:
        tokens, mask, content = _tokens(record, mask_field)
    if not tokens and not options.keep_empty:
        return "empty"
    if len(tokens) < options.min_tokens:
        return "short"
    if options.max_tokens is not None and len(tokens) > options.max_tokens:
        return "long"
    tokens, mask = _ended(tokens, mask, options, options.records == "tokens" and mask_field is not None)
    return (tokens, mask, name, content) if tokens else "empty"


def _id(record: dict, options: BuildOptions) -> str | None:
    if options.id_field is None:
        return None
    value = record.get(options.id_field)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Wrong
    return str(value)


def _tokens(record: dict, mask_field: str | None) -> tuple[list[int], list[bool], bytes]:
    ids = record.get("input_ids")
    if not isinstance(ids, list) or not all(type(x) is int and 0 <= x <= 258 for x in ids):
        raise Wrong
    content = np.array(ids, np.int64).tobytes()
    if mask_field is None:
        return ids, [True] * len(ids), content
    value = record.get(mask_field)
    if not isinstance(value, list) or len(value) != len(ids):
        raise Wrong
    allowed = [(-100, x) for x in ids] if mask_field == "labels" else [(0, 1)] * len(ids)
    if not all(x in two for x, two in zip(value, allowed, strict=True)):
        raise Wrong
    mask = [x != two[0] for x, two in zip(value, allowed, strict=True)]
    if ids and not any(mask):
        raise Wrong
    return ids, mask, content + bytes(mask)


def _ended(tokens: list[int], mask: list[bool], options: BuildOptions, masked: bool) -> tuple[list[int], list[bool]]:
    """Add the special tokens that the options ask for, unless the record already has them."""
    tokens, mask, made_here = list(tokens), list(mask), options.records == "text"
    first = {"none": None, "eos": EOS, "bos": BOS}[options.document_start]
    put_first = first is not None and (made_here or tokens[:1] != [first])
    put_last = options.eos and (made_here or tokens[-1:] != [EOS])
    if put_last:
        in_loss = bool(mask) and mask[-1] if masked else True
        tokens, mask = [*tokens, EOS], [*mask, in_loss]
    if put_first:
        tokens, mask = [first, *tokens], [not masked, *mask]
    return tokens, mask
