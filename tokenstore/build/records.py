"""The documents of an input file: its records, good and bad, each with its number. To add a format: a reader here.

A damaged or truncated compressed file is an error that names it, never a shorter file: `zstandard`'s own readers end
silently in the middle of a frame, so the frames are walked by hand and the last must be whole.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import orjson
import zstandard

from tokenstore.build.inputs import TABLES, InputFile
from tokenstore.build.tables import csv_rows, table_rows
from tokenstore.build.units import Slice, slice_bytes
from tokenstore.errors import BuildError

_BOM = b"\xef\xbb\xbf"
_MAX_WINDOW = 1 << 31  # files made with `zstd --long=31`
_CHUNK = 1 << 20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Bad:
    """Why a record was rejected, and how it begins."""

    reason: str
    start: str


Record = tuple[int, str | Bad]  # number in the slice, from 1 (a line of .jsonl, a row, the whole of .txt), and text


class SliceReader:
    """Iterates over the records of one slice. `num_bytes` tells how much of the file is read, `num_lines` is final at the end."""

    def __init__(self, file: InputFile, part: Slice, text_field: str):
        self.file, self.part, self.text_field = file, part, text_field
        self.num_lines = 0
        self._raw: BinaryIO = io.BytesIO()
        self._table_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the slice read so far, as they lie on the disk."""
        if self.file.format in TABLES:
            return self._table_bytes
        size = slice_bytes(self.part, self.file)
        return size if self._raw.closed else min(self._raw.tell() - self.part.start, size)

    def __iter__(self) -> Iterator[Record]:
        if self.file.format in TABLES:
            yield from self._table()
            return
        try:
            with open(self.file.path, "rb", buffering=_CHUNK) as self._raw:
                with _decompressed(self._raw, self.file.compression) as stream:
                    yield from self._of(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise BuildError(
                f"input: expected a whole {self.file.compression} file, found {error} ({self.file.path}); fetch it again or leave it out"
            ) from error
        except OSError as error:
            raise BuildError(
                f"input: expected to read it, found {error.strerror or error} ({self.file.path}); mend it and run the same command again"
            ) from error

    def _of(self, stream: BinaryIO) -> Iterator[Record]:
        if self.file.format in _DELIMITERS:
            delimiter = _DELIMITERS[self.file.format]
            return self._rows(csv_rows(stream, delimiter, self.text_field, self.file.path))
        return self._texts(stream) if self.file.format == ".txt" else self._lines(stream)

    def _table(self) -> Iterator[Record]:
        def done(num_bytes: int) -> None:
            self._table_bytes = num_bytes

        path, ending = self.file.path, self.file.format
        yield from self._rows(table_rows(path, ending, self.part, self.text_field, done))
        done(slice_bytes(self.part, self.file))

    def _rows(self, values: Iterable[bytes | ValueError | None]) -> Iterator[Record]:
        for value in values:
            self.num_lines += 1
            if isinstance(value, ValueError):
                yield self.num_lines, Bad(str(value), "")
            elif value is None:
                yield self.num_lines, Bad(f"field {self.text_field!r}: expected a string, found null", "")
            else:
                yield self.num_lines, _decoded(value)

    def _texts(self, stream: BinaryIO) -> Iterator[Record]:
        self.num_lines = 1
        data = stream.read().removeprefix(_BOM)
        yield 1, _decoded(data)

    def _lines(self, stream: BinaryIO) -> Iterator[Record]:
        at = self.part.start
        if at:  # a line that began before the slice belongs to the slice before
            stream.seek(at - 1)
            at += len(stream.readline()) - 1
        for line in stream:
            if self.part.stop is not None and at >= self.part.stop:
                break
            self.num_lines += 1
            line_start, at = at, at + len(line)
            line = line.removeprefix(_BOM) if line_start == 0 else line
            if line.strip():
                yield self.num_lines, parse_record(line, self.text_field)


def _decoded(data: bytes) -> str | Bad:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Bad(f"not UTF-8: {error.reason} at byte {error.start}", _shown(data))


def parse_record(line: bytes, text_field: str) -> str | Bad:
    """The text of one JSON record, or why it has none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Bad(f"not JSON: {error}", _shown(line))
    if not isinstance(value, dict):
        return Bad(f"expected a JSON object, found {type(value).__name__}", _shown(line))
    if text_field not in value:
        for name in text_field.split("."):
            if not isinstance(value, dict) or name not in value:
                return Bad(f"no field {text_field!r}", _shown(line))
            value = value[name]
    else:
        value = value[text_field]
    if not isinstance(value, str):
        return Bad(
            f"field {text_field!r}: expected a string, found {'null' if value is None else type(value).__name__}",
            _shown(line),
        )
    return value


def _shown(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace").rstrip("\r\n")


def _decompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == ".gz":
        return gzip.GzipFile(fileobj=_NotEmpty(raw), mode="rb")  # type: ignore[return-value]
    if compression == ".zst":
        return io.BufferedReader(_ZstdStream(raw), _CHUNK)
    return raw


class _NotEmpty(io.RawIOBase):
    """`gzip` reads a file of 0 bytes as an empty text; no gzip file has 0 bytes."""

    def __init__(self, raw: BinaryIO):
        self._raw = raw
        if not raw.peek(1):  # type: ignore[attr-defined]
            raise EOFError("0 bytes")

    def read(self, size: int = -1) -> bytes:
        return self._raw.read(size)


class _ZstdStream(io.RawIOBase):
    """All frames of a zstd file, one after the other; EOFError if the last is cut short."""

    def __init__(self, raw: BinaryIO):
        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._in_frame = True  # a file has at least one frame
        self._input, self._output = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._output:
            if not self._input:
                self._input = self._raw.read(_CHUNK >> 4)  # small: a compressed block can be a thousand times as large
                if not self._input:
                    if self._in_frame:
                        raise EOFError("the end in the middle of a frame")
                    return 0
            self._output = memoryview(self._next())  # its rest is cut off again and again: no copies
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def _next(self) -> bytes:
        if not self._in_frame:
            self._frame = self._decompressor.decompressobj()
            self._in_frame = True
        output = self._frame.decompress(self._input)
        self._input = b""
        if self._frame.eof:
            self._input, self._in_frame = self._frame.unused_data, False
        return output
