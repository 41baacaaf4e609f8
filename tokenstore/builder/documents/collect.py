"""The documents of a unit in batches that are large enough for a tokenizer, across its inputs, and its records counted by slice.

Calling an engine costs up to a millisecond: batches that ended with every input would make small files 20 times as slow.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from tokenstore.builder.documents.convert import Document, DocumentReader, reading
from tokenstore.builder.documents.encode import KEPT, REASONS, Encoded
from tokenstore.builder.reading.checksums import block_hashes, hashes_of
from tokenstore.builder.reading.inputs import TABLES, InputFile
from tokenstore.builder.reading.records import Bad, SliceReader
from tokenstore.builder.reading.units import Unit, slice_bytes

_BATCH_CHARS = 1 << 20
_BATCH_DOCUMENTS = 1024


@dataclass(frozen=True)
class SliceSummary:
    """What was in one slice: lines, documents, how many records gave none, by reason, and its blocks' checksums in hex."""

    num_lines: int
    num_documents: int
    dropped: dict[str, int]
    num_bad: int
    hashes: str


@dataclass
class Batch:
    """Documents to encode together.

    Attributes:
        documents: of one or more slices of the unit.
        slices, records: of each document, the place of its slice in the unit and its record number in it.
        num_chars: of all texts, or token ids.
        num_bytes: how much of the inputs was read since the batch before.
        starts_source: whether an input begins here whose text need not be like that of the batch before.
    """

    starts_source: bool
    documents: list[Document] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    num_chars: int = 0
    num_bytes: int = 0


class UnitBatches:
    """Iterates over the batches of a unit; afterwards, or where it stopped early, `summaries` has what was in each slice.

    Args:
        unit: the slices to read, all of `files`.
        bad_out: where bad records are written: slice, number in it, reason, how it begins.
        check: called with every input that was read to the end of its slice.

    It stops early as soon as the unit alone has more bad records than allowed.
    """

    def __init__(
        self,
        unit: Unit,
        files: Mapping[int, InputFile],
        reader: DocumentReader,
        bad_out: BinaryIO,
        check: Callable[[InputFile], None],
    ):
        self.unit, self.files, self.reader, self.bad_out, self.check = unit, files, reader, bad_out, check
        self.num_bad = 0
        self._batch = Batch(True)
        self._lines: list[int] = []
        self._hashes: list[bytes] = []
        self._bad: Counter[int] = Counter()
        self._dropped: list[Counter[str]] = [Counter() for _ in unit]
        self._documents = np.zeros(len(unit), np.int64)

    def __iter__(self) -> Iterator[Batch]:
        was_large = False
        for place, part in enumerate(self.unit):
            file = self.files[part.file_number]
            # Small inputs are one source together; a large one is a source of its own
            is_large = slice_bytes(part, file) >= _BATCH_CHARS
            if (is_large or was_large) and self._batch.documents:
                yield self._take(starts_source=True)
            self._batch.starts_source |= is_large or was_large
            was_large = is_large
            records = SliceReader(file, part, reading(self.reader.options))
            yield from self._slice(place, records)
            self._lines.append(records.num_lines)
            if self.num_bad > self.reader.options.max_bad:
                return
            self.check(file)
            whole = records.whole
            stop = file.num_bytes if part.stop is None else part.stop
            hashes = block_hashes(file.path, part.start, stop) if whole is None else hashes_of(whole)
            self._hashes.append(hashes)
        if self._batch.documents or self._batch.num_bytes:
            yield self._take(starts_source=False)

    def _slice(self, place: int, records: SliceReader) -> Iterator[Batch]:
        """The batches that become full in a slice; what is left of it stays for the next."""
        done = 0
        of_table = records.file.format in TABLES
        for number, row in records:
            found = row if isinstance(row, Bad) else self.reader.document(row, of_table)
            if isinstance(found, Bad):
                self._write_bad(place, number, found)
                if self.num_bad > self.reader.options.max_bad:
                    return
                continue
            if found is None:
                self._dropped[place]["filtered"] += 1
                continue
            batch = self._batch
            batch.documents.append(found)
            batch.slices.append(place)
            batch.records.append(number)
            batch.num_chars += found.size
            if batch.num_chars >= _BATCH_CHARS or len(batch.documents) == _BATCH_DOCUMENTS:
                batch.num_bytes += records.num_bytes - done
                done = records.num_bytes
                yield self._take(starts_source=False)
        self._batch.num_bytes += records.num_bytes - done

    def _take(self, starts_source: bool) -> Batch:
        taken, self._batch = self._batch, Batch(starts_source)
        return taken

    def _write_bad(self, place: int, number: int, bad: Bad) -> None:
        self.num_bad += 1
        self._bad[place] += 1
        self.bad_out.write(json.dumps([place, number, bad.reason, bad.start]).encode() + b"\n")

    def count(self, batch: Batch, encoded: Encoded) -> None:
        """Count what became of the documents of a batch."""
        slices = np.array(batch.slices, np.int64)
        np.add.at(self._documents, slices[encoded.why == KEPT], 1)
        for reason, name in enumerate(REASONS):
            for place in slices[encoded.why == reason].tolist():
                self._dropped[place][name] += 1

    def summaries(self) -> tuple[SliceSummary, ...]:
        """What was in each slice that was read."""
        return tuple(
            SliceSummary(lines, int(self._documents[i]), dict(self._dropped[i]), self._bad[i], hashes.hex())
            for i, (lines, hashes) in enumerate(zip(self._lines, [*self._hashes, b""], strict=False))
        )
