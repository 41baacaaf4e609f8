"""Collects the documents of a unit into batches for the tokenizer, and counts what became of its records.

Batches span inputs. A call of a tokenizer engine costs up to a millisecond, so a batch per input would make small files 20
times as slow.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tokenstore.builder.documents.convert import Document, DocumentReader, reading
from tokenstore.builder.documents.encode import KEPT, REASONS, Encoded
from tokenstore.builder.reading.checksums import block_hashes
from tokenstore.builder.reading.inputs import TABLES, InputFile
from tokenstore.builder.reading.records import Bad, SliceReader
from tokenstore.builder.reading.units import Unit, slice_bytes

_BATCH_CHARS = 1 << 20
_BATCH_DOCUMENTS = 1024


@dataclass(frozen=True)
class SliceSummary:
    """What was found in one slice.

    Attributes:
        num_lines: lines or rows.
        num_documents: documents encoded.
        dropped: number of records that gave no document, by reason.
        num_bad: number of bad records.
        hashes: checksums of the input's blocks that begin in the slice, in hex; see `checksums`.
    """

    num_lines: int
    num_documents: int
    dropped: dict[str, int]
    num_bad: int
    hashes: str


@dataclass
class Batch:
    """Documents to encode together.

    Attributes:
        starts_source: whether the text may differ in kind from that of the previous batch, as another input begins.
        documents: from one or more slices of the unit.
        slices: for each document, the index of its slice in the unit.
        records: for each document, its record number in the slice.
        num_chars: characters of all texts, or number of token ids.
        num_bytes: bytes of the inputs read since the previous batch.
    """

    starts_source: bool
    documents: list[Document] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    num_chars: int = 0
    num_bytes: int = 0


class UnitBatches:
    """Iterates over the batches of a unit; afterwards `summaries` says what was found in each slice.

    It stops early as soon as the unit alone has more bad records than allowed.

    Args:
        unit: the slices to read.
        files: their inputs, by number.
        reader: makes documents of records.
        write_bad: called with every bad record as a JSON line: slice, record number in it, reason, start of the record.
        check: called with every input whose slice was read to its end.
    """

    def __init__(
        self,
        unit: Unit,
        files: Mapping[int, InputFile],
        reader: DocumentReader,
        write_bad: Callable[[bytes], object],
        check: Callable[[InputFile], None],
    ):
        self.unit, self.files, self.reader, self.write_bad, self.check = unit, files, reader, write_bad, check
        self.num_bad = 0
        self._batch = Batch(unit[0].start == 0)
        self._lines: list[int] = []
        self._hashes: list[bytes] = []
        self._bad: Counter[int] = Counter()
        self._dropped: list[Counter[str]] = [Counter() for _ in unit]
        self._documents = np.zeros(len(unit), np.int64)

    def __iter__(self) -> Iterator[Batch]:
        was_large, how = False, reading(self.reader.options)
        for place, part in enumerate(self.unit):
            file = self.files[part.file_number]
            # Small inputs together count as one source, a large one is a source of its own; its later slices continue it
            is_large = slice_bytes(part, file) >= _BATCH_CHARS
            if (is_large or was_large) and self._batch.documents:
                yield self._take(starts_source=True)
            self._batch.starts_source |= (is_large and part.start == 0) or was_large
            was_large = is_large
            records = SliceReader(file, part, how)
            yield from self._slice(place, records)
            self._lines.append(records.num_lines)
            if self.num_bad > self.reader.options.max_bad:
                return
            self.check(file)
            stop = file.num_bytes if part.stop is None else part.stop
            hashes = records.hashes
            self._hashes.append(block_hashes(file.path, part.start, stop) if hashes is None else hashes)
        if self._batch.documents or self._batch.num_bytes:
            yield self._take(starts_source=False)

    def _slice(self, place: int, records: SliceReader) -> Iterator[Batch]:
        """Yield the batches that become full within a slice. The rest stays in `_batch` for the next slice."""
        done = 0
        of_table = records.file.format in TABLES
        for number, row in records:
            found = row if isinstance(row, Bad) else self.reader.document(row, of_table)
            if isinstance(found, Bad):
                self._write_bad(place, number, found)
                if self.num_bad > self.reader.options.max_bad:
                    return
                continue
            if isinstance(found, str):
                self._dropped[place][found] += 1
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
        self.write_bad(json.dumps([place, number, bad.reason, bad.start]).encode() + b"\n")

    def count(self, batch: Batch, encoded: Encoded) -> None:
        """Count the documents of an encoded batch by slice: kept, or dropped for a reason."""
        slices = np.array(batch.slices, np.int64)
        np.add.at(self._documents, slices[encoded.why == KEPT], 1)
        for reason, name in enumerate(REASONS):
            for place in slices[encoded.why == reason].tolist():
                self._dropped[place][name] += 1

    def summaries(self) -> tuple[SliceSummary, ...]:
        """A summary of each slice that was read, in order."""
        return tuple(
            SliceSummary(lines, int(self._documents[i]), dict(self._dropped[i]), self._bad[i], hashes.hex())
            for i, (lines, hashes) in enumerate(zip(self._lines, [*self._hashes, b""], strict=False))
        )
