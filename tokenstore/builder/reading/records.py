"""Reads the records of an input file as numbered rows, good and bad. A new format gets its reader here."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import zstandard

from tokenstore.builder.reading.checksums import HashedInput, hashes_of
from tokenstore.builder.reading.columnar import csv_rows, damaged, first_bytes, longer_than, table_rows
from tokenstore.builder.reading.decompress import CHUNK, Stream, decompressed
from tokenstore.builder.reading.inputs import TABLES, InputFile, starts_array
from tokenstore.builder.reading.json_array import ArrayItems
from tokenstore.builder.reading.magic import MAGIC_BYTES, misnamed
from tokenstore.builder.reading.remote_inputs import InputPath, open_input
from tokenstore.builder.reading.tar import KEY, Sample, TarReader
from tokenstore.builder.reading.units import Slice, slice_bytes
from tokenstore.errors import BuildError

_BOM = b"\xef\xbb\xbf"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_RECORD_BYTES = 32 << 20  # the reference tokenizer may take 90 bytes of memory per byte of text: 3 GB


@dataclass(frozen=True)
class Bad:
    """A rejected record: the reason, and the first 200 bytes as text."""

    reason: str
    start: str


@dataclass(frozen=True)
class Reading:
    """What to read of a record.

    Attributes:
        columns: columns of a table, or `a.b` for field b of column a; None for all.
        text_field: name of the field that holds the text of a .txt file.
        text_endings: other endings to read like .txt.
        max_bytes: longer records are bad. They are skipped without holding them in memory.
    """

    columns: tuple[str, ...] | None
    text_field: str = "text"
    text_endings: tuple[str, ...] = ()
    max_bytes: int = MAX_RECORD_BYTES


Row = dict[str, Any]
Record = tuple[
    int, Row | Bad
]  # number in the slice, from 1 (a line of .jsonl, a row, the whole of .txt), and its fields


class SliceReader:
    """Iterates over the records of one slice of an input file.

    Attributes:
        num_lines: lines or rows read so far; empty lines count.
        line: byte positions (start, stop) of the last record in a .jsonl file.
        hashes: after the last record the checksums of the blocks that begin in the slice, as from `block_hashes`; None for a table.

    Raises (while iterating):
        BuildError: the file cannot be read, is damaged, or is not of the format that its ending says.
    """

    def __init__(self, file: InputFile, part: Slice, reading: Reading):
        self.file, self.part, self.reading = file, part, reading
        self.num_lines = 0
        self.line = (0, 0)
        self.hashes: bytes | None = None
        self._hash: Callable[[], bytes]  # gives them
        self._raw: io.BufferedReader = io.BufferedReader(io.BytesIO())
        self._table_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the slice read so far, counted as they are on disk: compressed."""
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
                self.hashes = self._hash()
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            raise damaged(self.file.path, error) from error
        except OSError as error:
            raise BuildError(
                f"input: {self.file.path} cannot be read ({error.strerror or error}); fix the cause and run the same command"
                " again"
            ) from error

    def _open(self) -> io.BufferedReader:
        if self.file.num_bytes > CHUNK or self.part.start or self.part.stop is not None:
            stop = self.file.num_bytes if self.part.stop is None else self.part.stop
            hashed = HashedInput(self.file.path, self.file.num_bytes, self.part.start, stop)
            self._hash = hashed.digests
            return io.BufferedReader(hashed, CHUNK)
        with io.BufferedReader(
            open_input(self.file.path)
        ) as file:  # a buffer of 1 MiB each would be slow for a million small files
            whole = file.read(self.file.num_bytes + 1)  # one byte more, to notice that the file has grown
        self._hash = partial(hashes_of, whole)
        return io.BufferedReader(io.BytesIO(whole))

    def _misnamed(self, wrong: str) -> Iterator[Record]:
        """A file whose content does not match its ending: a .txt file is one bad record, others are an error."""
        if self.file.format != ".txt":
            raise BuildError(f"input: {self.file.path} cannot be read as {self.file.path.suffix}: {wrong}")
        self.num_lines = 1
        yield 1, Bad(wrong, "")

    def _of(self, stream: Stream) -> Iterator[Record]:
        if self.file.format in _DELIMITERS:
            delimiter = _DELIMITERS[self.file.format]
            return self._rows(csv_rows(stream, delimiter, self.reading.columns, self.file.path, self.reading.max_bytes))
        if self.file.format == ".tar":
            return self._samples(stream)
        if self.file.format == ".json":
            stream = io.BufferedReader(stream, CHUNK)  # to look ahead
            if starts_array(stream.peek(1)):
                return self._items(stream)
        return self._texts(stream) if self.file.format == ".txt" else self._lines(stream)

    def _items(self, stream: Stream) -> Iterator[Record]:
        try:
            for item in ArrayItems(stream, self.reading.max_bytes):
                self.num_lines += 1
                bad = item is None or len(item) > self.reading.max_bytes
                yield self.num_lines, self._too_long(item or b"") if bad else parse_record(item or b"")
        except ValueError as error:
            raise damaged(self.file.path, error) from error

    def _samples(self, stream: Stream) -> Iterator[Record]:
        texts = frozenset(ending.removeprefix(".").lower() for ending in (".txt", *self.reading.text_endings))
        reader = TarReader(stream, texts | {"json"}, self.reading.max_bytes)
        try:
            for sample in reader:
                self.num_lines += 1
                yield self.num_lines, self._record(sample)
        except ValueError as error:
            raise damaged(self.file.path, error) from error
        if not reader.num_samples:
            shown = ", ".join(f"{number} .{ending}" for ending, number in sorted(reader.skipped.items())[:5]) or "none"
            raise BuildError(
                f"input: {self.file.path} has no members that end in {', '.join(sorted(f'.{each}' for each in texts))} or .json"
                f" (it has: {shown}); name other endings with --text-endings, or unpack it"
            )

    def _record(self, sample: Sample) -> Row | Bad:
        """The fields of a sample: those of its .json file, each text by its ending, and the text of .txt as the text field."""
        row: Row = {}
        for ending, data in sample.files.items():
            if data is None:
                return self._too_long(b"")
            found = parse_record(data) if ending == "json" else decoded(data.removeprefix(_BOM))
            if isinstance(found, Bad):
                return Bad(f"{sample.key}.{ending}: {found.reason}", found.start)
            row |= found if isinstance(found, dict) else {ending: found}
        if "txt" in sample.files:
            row[self.reading.text_field] = row["txt"]
        return row | {KEY: sample.key}

    def _table(self) -> Iterator[Record]:
        def done(num_bytes: int) -> None:
            self._table_bytes = num_bytes

        path, ending = self.file.path, self.file.format
        if self.part.start == 0 and (wrong := misnamed(first_bytes(path, MAGIC_BYTES), self.file)):
            yield from self._misnamed(wrong)
        yield from self._rows(table_rows(path, ending, self.part, self.reading.columns, done, self.file.partition))
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
        # A line belongs to the slice in which it begins, so that slices read by different workers make every line once.
        # Reading starts one byte early: if that byte is a newline, a line begins exactly at the slice's start.
        if at:
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
            if line and not line.isspace():
                self.line = (line_start, at)
                yield self.num_lines, parse_record(line)

    def _too_long(self, data: bytes) -> Bad:
        return Bad(longer_than(self.reading.max_bytes), shown(data))


def _skip_line(stream: Stream, enough: int | None) -> int:
    """Read to the end of the line, or at least `enough` bytes if that comes first; return the number of bytes read."""
    size = 0
    while (enough is None or size < enough) and (chunk := stream.readline(CHUNK)):
        size += len(chunk)
        if chunk[-1:] == b"\n":
            break
    return size


def line_start(path: InputPath, place: int, most: int) -> int:
    """The first byte of the line that contains byte `place` of a file; `place` if that is over `most` bytes earlier."""
    last = place
    with io.BufferedReader(open_input(path)) as file:
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
    """`data` as text, or Bad if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Bad(f"not UTF-8: {error.reason} at byte {error.start}", shown(data))


def parse_record(line: bytes) -> Row | Bad:
    """A line of JSON as a row, or Bad if it is not a JSON object."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Bad(f"not JSON: {error}", shown(line))
    if not isinstance(value, dict):
        return Bad(f"expected a JSON object, found {type(value).__name__}", shown(line))
    return value


def shown(data: bytes) -> str:
    """The first 200 bytes as text, for messages."""
    return data[:200].decode("utf-8", "replace").rstrip("\r\n")
