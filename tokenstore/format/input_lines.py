"""Encodes and decodes lines of inputs.jsonl: an input file and the number of documents made from it (FMT-4, FMT-11)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenstore.errors import CorruptionError
from tokenstore.format.manifest import canonical_json
from tokenstore.outside import MAX_INPUT_ROW_BYTES

_CHECKSUM_CHARACTERS = 32


@dataclass(frozen=True)
class Origin:
    """Where a document came from: the name of its input file as in inputs.jsonl, and the number of its record, from 1."""

    file: str
    record: int


@dataclass(frozen=True)
class InputRow:
    """An input file and the number of documents made from it; size and checksum are None if the store does not record them."""

    file: str
    documents: int
    num_bytes: int | None = None
    checksum: str | None = None


def encode_row(row: InputRow, counts: Mapping[str, int]) -> bytes:
    """The line for a row. `counts` are informational: lines read, documents dropped and why."""
    fields = {"file": row.file, "num_bytes": row.num_bytes, "documents": row.documents}
    if row.checksum is not None:
        fields["checksum"] = row.checksum
    return canonical_json({**counts, **fields}).encode() + b"\n"


def decode_row(line: bytes, number: int, num_documents: int, place: str) -> InputRow:
    """Decode one line of inputs.jsonl.

    Args:
        line: the bytes of the line.
        number: its line number, from 1.
        num_documents: documents of the store.
        place: path of the file, for messages.

    Raises:
        CorruptionError: the line is too long, or not an object with a file and a number of documents.
    """
    if len(line) > MAX_INPUT_ROW_BYTES:
        raise _wrong(f"line {number}", f"at most {MAX_INPUT_ROW_BYTES} bytes", "more", place)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"line {number}", "JSON", str(error)[:120], place) from error
    if not isinstance(fields, dict) or not isinstance(file := fields.get("file"), str):
        found = fields.get("file") if isinstance(fields, dict) else None
        raise _wrong(f"line {number}", 'an object with a string "file"', repr(found)[:120], place)
    documents, num_bytes = fields.get("documents"), fields.get("num_bytes")
    if type(documents) is not int or not 0 <= documents <= num_documents:
        raise _wrong(f"line {number}", f'"documents" in 0..{num_documents}', repr(documents)[:120], place)
    if num_bytes is not None and (type(num_bytes) is not int or not 0 <= num_bytes < 1 << 63):
        raise _wrong(f"line {number}", '"num_bytes" in 0..2**63', repr(num_bytes)[:120], place)
    checksum = fields.get("checksum")
    if checksum is not None and (not isinstance(checksum, str) or len(checksum) != _CHECKSUM_CHARACTERS):
        raise _wrong(f"line {number}", '"checksum" of 32 hex digits', repr(checksum)[:120], place)
    return InputRow(file, documents, num_bytes, checksum)


def decode_rows(lines: Iterable[bytes], num_documents: int, place: str) -> Iterator[tuple[int, InputRow]]:
    """Yield (documents before it, row) for each line. CorruptionError if the documents do not add up to `num_documents`."""
    total = 0
    for number, line in enumerate(lines, 1):
        row = decode_row(line, number, num_documents, place)
        yield total, row
        total += row.documents
        if total > num_documents:
            break
    if total != num_documents:
        raise _wrong("documents", f"{num_documents} over all inputs", f"{total}", place)


def _wrong(what: str, rule: str, found: str, place: str) -> CorruptionError:
    return CorruptionError(f"inputs, {what}: expected {rule}, found {found} ({place}); copy or build the store again")
