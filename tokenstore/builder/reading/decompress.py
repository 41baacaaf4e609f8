"""Compressed files as streams of bytes. Damage or truncation raises EOFError or the library's error, never shortens the data.

The readers of `zstandard` end silently in the middle of a truncated frame. So frames are decompressed one by one here, and
the last must be complete.
"""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any, Protocol

import zstandard

CHUNK = 1 << 20
_PIECE = 4096  # bytes decompressed at once; small, as 4 bytes can decompress to 128 KB
_INPUT = 1 << 16  # compressed bytes read at once
_MAX_XZ_BYTES = 1 << 29  # memory that one member of an .xz file may take; `xz -9` needs 65 MiB
_MAX_WINDOW = 1 << 31  # for files made with `zstd --long=31`

Stream = io.BufferedReader | gzip.GzipFile


def decompressed(raw: io.BufferedReader, compression: str) -> Stream:
    """A stream of the decompressed bytes of `raw`.

    Args:
        raw: a buffered file.
        compression: ".gz", ".zst", ".bz2" or ".xz", of any number of members, or "", which returns `raw`.

    Raises:
        EOFError: an empty .gz file; while reading, a truncated file.
    """
    if compression == ".gz":
        return gzip.GzipFile(fileobj=_NotEmpty(raw), mode="rb")
    if compression == ".zst":
        return io.BufferedReader(_ZstdStream(raw), CHUNK)
    if compression == ".bz2":
        return io.BufferedReader(_MemberStream(raw, bz2.BZ2Decompressor), CHUNK)
    if compression == ".xz":
        return io.BufferedReader(_MemberStream(raw, _xz_decompressor, padding=b"\0"), CHUNK)
    return raw


class _NotEmpty(io.RawIOBase):
    """Refuses an empty file, which `gzip` would read as an empty text though no gzip file is empty."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        if not raw.peek(1):
            raise EOFError("0 bytes")

    def read(self, size: int = -1) -> bytes:
        """Read as the file does."""
        return self._raw.read(size)


class _Decompressor(Protocol):
    """One member of a .bz2 or .xz file."""

    @property
    def eof(self) -> bool:
        """Whether the member is complete."""

    @property
    def needs_input(self) -> bool:
        """Whether there is no output without further input."""

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the member."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """At most `max_length` bytes; the input is kept until it is used."""


def _xz_decompressor() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


class _MemberStream(io.RawIOBase):
    """All members of a .bz2 or .xz file, one after the other; EOFError if the last is truncated.

    The readers of the standard library ignore whatever follows the first member and cannot be read as another one.
    """

    def __init__(self, raw: io.BufferedReader, new: Callable[[], _Decompressor], padding: bytes = b""):
        self._raw, self._new, self._padding = raw, new, padding
        self._member: _Decompressor | None = new()  # a file has at least one
        self._rest = b""  # input after the last member

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes; return how many, 0 at the end."""
        while True:
            if self._member is None:
                self._rest = self._rest.lstrip(self._padding) if self._padding else self._rest
                if not self._rest:
                    self._rest = self._raw.read(_INPUT)
                    if not self._rest:
                        return 0
                    continue
                self._member = self._new()
            if found := self._next(self._member, min(len(buffer), CHUNK)):
                buffer[: len(found)] = found
                return len(found)

    def _next(self, member: _Decompressor, most: int) -> bytes:
        """The next bytes of a member; may be b""."""
        data = b""
        if member.needs_input:
            data, self._rest = self._rest or self._raw.read(_INPUT), b""
            if not data:
                raise EOFError("the end in the middle of the compressed data")
        try:
            found = member.decompress(data, most)
        except OSError as error:  # of bz2, for damaged data
            raise EOFError(str(error)) from error
        if member.eof:
            self._rest, self._member = member.unused_data, None
        return found


class _ZstdStream(io.RawIOBase):
    """All frames of a zstd file, one after the other; EOFError if the last is truncated."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._in_frame = True  # a file has at least one frame
        self._input, self._output = b"", memoryview(b"")

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes; return how many, 0 at the end."""
        while not self._output:
            if not self._input:
                self._input = self._raw.read(_PIECE)
                if not self._input:
                    if self._in_frame:
                        raise EOFError("the end in the middle of a frame")
                    return 0
            self._output = memoryview(self._next())  # a view, as it is consumed in many small steps
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
