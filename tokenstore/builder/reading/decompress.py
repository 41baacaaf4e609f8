"""Compressed files as streams of bytes. A damaged or truncated one is an EOFError or the library's error, never a shorter file.

`zstandard`'s own readers end silently in the middle of a frame, so the frames are walked by hand and the last must be whole.
"""

import gzip
import io
from typing import Any

import zstandard

CHUNK = 1 << 20
_PIECE = 4096  # decompressed at once: 4 bytes can stand for 128 KB
_MAX_WINDOW = 1 << 31  # files made with `zstd --long=31`

Stream = io.BufferedReader | gzip.GzipFile


def decompressed(raw: io.BufferedReader, compression: str) -> Stream:
    """The bytes of `raw`, a buffered file: all members of a ".gz", all frames of a ".zst", as it is for ""."""
    if compression == ".gz":
        return gzip.GzipFile(fileobj=_NotEmpty(raw), mode="rb")
    if compression == ".zst":
        return io.BufferedReader(_ZstdStream(raw), CHUNK)
    return raw


class _NotEmpty(io.RawIOBase):
    """`gzip` reads a file of 0 bytes as an empty text; no gzip file has 0 bytes."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        if not raw.peek(1):
            raise EOFError("0 bytes")

    def read(self, size: int = -1) -> bytes:
        return self._raw.read(size)


class _ZstdStream(io.RawIOBase):
    """All frames of a zstd file, one after the other; EOFError if the last is cut short."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._in_frame = True  # a file has at least one frame
        self._input, self._output = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            if not self._input:
                self._input = self._raw.read(_PIECE)
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
