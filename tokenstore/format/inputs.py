"""inputs.jsonl -> the input files and where the documents of each end (FMT-4, FMT-11)."""

import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from tokenstore.errors import CorruptionError


@dataclass(frozen=True)
class Origin:
    """Where a document came from: its input file, as inputs.jsonl has it, and the number of its record, from 1."""

    file: str
    record: int


@dataclass(frozen=True)
class Inputs:
    """The input files in order; `ends[n]` is the number of documents of files 0..n."""

    files: tuple[str, ...]
    ends: tuple[int, ...]

    def file_of(self, document: int) -> str:
        """The input file of a document, 0 <= document < ends[-1]."""
        return self.files[bisect_right(self.ends, document)]


def decode_inputs(data: bytes, num_documents: int, place: str) -> Inputs:
    """The input files in `data`, the bytes of an inputs.jsonl whose counts must add up to `num_documents`.

    Args:
        data: the file's bytes.
        num_documents: documents of the store.
        place: the file's path, for messages.

    Raises: CorruptionError: a line that is no such object, or counts that do not add up.
    """
    files, counts = [], []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"line {number}", "JSON", str(error)[:120], place) from error
        file, count = (row.get("file"), row.get("documents")) if isinstance(row, dict) else (None, None)
        if not isinstance(file, str):
            raise _wrong(f"line {number}", 'an object with a string "file"', repr(file)[:120], place)
        if type(count) is not int or not 0 <= count <= num_documents:
            rule = f'"documents" in 0..{num_documents}'
            raise _wrong(f"line {number}", rule, repr(count)[:120], place)
        files.append(file)
        counts.append(count)
    ends = tuple(accumulate(counts))
    if (ends[-1] if ends else 0) != num_documents:
        raise _wrong("documents", f"{num_documents} over all inputs", f"{ends[-1] if ends else 0}", place)
    return Inputs(tuple(files), ends)


def _wrong(what: str, rule: str, found: str, place: str) -> CorruptionError:
    return CorruptionError(f"inputs, {what}: expected {rule}, found {found} ({place}); copy or build the store again")
