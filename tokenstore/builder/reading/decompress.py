"""Compressed files as streams of bytes. Damage or truncation raises EOFError or the library's error, never shortens the data.

The readers of `zstandard` end silently in the middle of a truncated frame. So frames are decompressed one by one here, and
the last must be complete.
"""

import gzip
import io
from typing import Any

import zstandard

CHUNK = 1 << 20
_PIECE = 4096  # bytes decompressed at once; small, as 4 bytes can decompress to 128 KB
_MAX_WINDOW = 1 << 31  # for files made with `zstd --long=31`

Stream = io.BufferedReader | gzip.GzipFile


def decompressed(raw: io.BufferedReader, compression: str) -> Stream:
    """A stream of the decompressed bytes of `raw`.

    Args:
        raw: a buffered file.
        compression: ".gz" (all members), ".zst" (all frames), or "", which returns `raw`.

    Raises:
        EOFError: an empty .gz file; while reading, a truncated file.
    """
    if compression == ".gz":
        return gzip.GzipFile(fileobj=_NotEmpty(raw), mode="rb")
    if compression == ".zst":
        return io.BufferedReader(_ZstdStream(raw), CHUNK)
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
