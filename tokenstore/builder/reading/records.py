"""The records of an input file as rows, good and bad, each with its number. To add a format: a reader here."""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import zstandard

from tokenstore.builder.reading.columnar import csv_rows, first_bytes, longer_than, table_rows
from tokenstore.builder.reading.decompress import CHUNK, Stream, decompressed
from tokenstore.builder.reading.inputs import TABLES, InputFile
from tokenstore.builder.reading.magic import MAGIC_BYTES, misnamed
from tokenstore.builder.reading.units import Slice, slice_bytes
from tokenstore.errors import BuildError

_BOM = b"\xef\xbb\xbf"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_RECORD_BYTES = 32 << 20  # the reference tokenizer may take 90 bytes of memory for a byte: 3 GB


@dataclass(frozen=True)
class Bad:
    """Why a record was rejected, and how it begins."""

    reason: str
    start: str


@dataclass(frozen=True)
class Reading:
    """What is read of a record: the columns of a table (None: all), and where the text of a .txt file goes.

    A record of more than `max_bytes` is bad, and is passed over without holding it in memory.
    """

    columns: tuple[str, ...] | None
    text_field: str = "text"
    max_bytes: int = MAX_RECORD_BYTES


Row = dict[str, Any]
Record = tuple[
    int, Row | Bad
]  # number in the slice, from 1 (a line of .jsonl, a row, the whole of .txt), and its fields


class SliceReader:
    """Iterates over the records of one slice. `num_bytes` tells how much of the file is read, `num_lines` is final at the end."""

    def __init__(self, file: InputFile, part: Slice, reading: Reading):
        self.file, self.part, self.reading = file, part, reading
        self.num_lines = 0
        self.line = (0, 0)  # of .jsonl: first byte of the last record, and the one after it
        self.whole: bytes | None = None  # the file's bytes, where it is small
        self._raw: io.BufferedReader = io.BufferedReader(io.BytesIO())
        self._table_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the slice read so far, as they lie on the disk."""
        if self.file.format in TABLES:
            return self._table_bytes
        size = slice_bytes(self.part, self.file)
        return size if self._raw.closed else max(0, min(self._raw.tell() - self.part.start, size))

    def __iter__(self) -> Iterator[Record]:
        if self.file.format in TABLES:
            yield from self._table()
            return
        try:
            with self._open() as self._raw:
                if self.part.start == 0 and (wrong := misnamed(self._raw.peek(MAGIC_BYTES)[:MAGIC_BYTES], self.file)):
                    yield from self._misnamed(wrong)
                    return
                with decompressed(self._raw, self.file.compression) as stream:
                    yield from self._of(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise BuildError(
                f"input: expected a whole {self.file.compression} file, found {error} ({self.file.path}); fetch it again or leave it out"
            ) from error
        except OSError as error:
            raise BuildError(
                f"input: {self.file.path} cannot be read ({error.strerror or error}); fix the cause and run the same command"
                " again"
            ) from error

    def _open(self) -> io.BufferedReader:
        if self.file.num_bytes > CHUNK or self.part.start or self.part.stop is not None:
            return io.BufferedReader(io.FileIO(self.file.path), CHUNK)
        with open(self.file.path, "rb") as file:  # a million small files need not a megabyte each
            self.whole = file.read(self.file.num_bytes + 1)  # one more shows that it has grown
        return io.BufferedReader(io.BytesIO(self.whole))

    def _misnamed(self, wrong: str) -> Iterator[Record]:
        """A file that is not what its name says: one bad record where a file is a record, else no input at all."""
        if self.file.format != ".txt":
            raise BuildError(f"input: cannot be read as {self.file.path.suffix}: {wrong} ({self.file.path})")
        self.num_lines = 1
        yield 1, Bad(wrong, "")

    def _of(self, stream: Stream) -> Iterator[Record]:
        if self.file.format in _DELIMITERS:
            delimiter = _DELIMITERS[self.file.format]
            return self._rows(csv_rows(stream, delimiter, self.reading.columns, self.file.path, self.reading.max_bytes))
        return self._texts(stream) if self.file.format == ".txt" else self._lines(stream)

    def _table(self) -> Iterator[Record]:
        def done(num_bytes: int) -> None:
            self._table_bytes = num_bytes

        path, ending = self.file.path, self.file.format
        if self.part.start == 0 and (wrong := misnamed(first_bytes(path, MAGIC_BYTES), self.file)):
            yield from self._misnamed(wrong)
        yield from self._rows(table_rows(path, ending, self.part, self.reading.columns, done))
        done(slice_bytes(self.part, self.file))

    def _rows(self, rows: Iterable[Row | ValueError]) -> Iterator[Record]:
        for row in rows:
            self.num_lines += 1
            yield self.num_lines, Bad(str(row), "") if isinstance(row, ValueError) else row

    def _texts(self, stream: Stream) -> Iterator[Record]:
        self.num_lines = 1
        most = self.reading.max_bytes + 1
        data = stream.read(most if self.file.compression else min(most, self.file.num_bytes + 1))
        if len(data) > self.reading.max_bytes:
            yield 1, self._too_long(data)
            return
        data = data.removeprefix(_BOM)
        text = decoded(data)
        yield 1, text if isinstance(text, Bad) else {self.reading.text_field: text}

    def _lines(self, stream: Stream) -> Iterator[Record]:
        at, stop = self.part.start, self.part.stop
        if at:  # a line that began before the slice belongs to the slice before
            stream.seek(at - 1)
            at += _skip_line(stream, None if stop is None else stop - at + 1) - 1
        most = self.reading.max_bytes + 1
        while (stop is None or at < stop) and (line := stream.readline(most)):
            self.num_lines += 1
            if len(line) == most and line[-1:] != b"\n":
                self.line = (at, at + most + _skip_line(stream, None))
                at = self.line[1]
                yield self.num_lines, self._too_long(line)
                continue
            line_start, at = at, at + len(line)
            line = line.removeprefix(_BOM) if line_start == 0 else line
            if line.strip():
                self.line = (line_start, at)
                yield self.num_lines, parse_record(line)

    def _too_long(self, data: bytes) -> Bad:
        return Bad(longer_than(self.reading.max_bytes), shown(data))


def _skip_line(stream: Stream, enough: int | None) -> int:
    """Read to the end of the line, whatever its length, or at least `enough` bytes; return how many."""
    size = 0
    while (enough is None or size < enough) and (chunk := stream.readline(CHUNK)):
        size += len(chunk)
        if chunk[-1:] == b"\n":
            break
    return size


def line_start(path: Path, place: int, most: int) -> int:
    """Where the line begins that byte `place` of a file is in; `place` where that is more than `most` bytes before it."""
    last = place
    with open(path, "rb") as file:
        while last > 0:
            if place - last > most:
                return place
            first = max(last - CHUNK // 16, 0)
            file.seek(first)
            if (found := file.read(last - first).rfind(b"\n")) >= 0:
                return first + found + 1
            last = first
    return 0


def decoded(data: bytes) -> str | Bad:
    """Bytes as text, or why they are none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Bad(f"not UTF-8: {error.reason} at byte {error.start}", shown(data))


def parse_record(line: bytes) -> Row | Bad:
    """One line of JSON as a row, or why it is none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Bad(f"not JSON: {error}", shown(line))
    if not isinstance(value, dict):
        return Bad(f"expected a JSON object, found {type(value).__name__}", shown(line))
    return value


def shown(data: bytes) -> str:
    """How bytes begin, for people."""
    return data[:200].decode("utf-8", "replace").rstrip("\r\n")
