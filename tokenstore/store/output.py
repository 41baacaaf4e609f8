"""New files with a running size and checksum, and copies of parts of files of an earlier version."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.files import check_checksum, check_size, read_bytes
from tokenstore.store.writing import append_file, create, make_read_only, remove, start_writing_back, sync

_BLOCK = 1 << 22
_PIECE = 1 << 20  # bytes written at once. For a longer call the system takes large blocks of memory, which can be slow
_WRITTEN_BACK = 1 << 23  # bytes after which the system starts to write them to the disk


class Output:
    """A new file with a running size and checksum."""

    def __init__(self, path: Path, buffer_bytes: int = 1 << 20, blocks: BlockHasher | None = None):
        """Create the file. `blocks` is given all data too."""
        self.path = path
        self.blocks = blocks
        self._file: BinaryIO = create(path, buffering=buffer_bytes)  # closed by close()
        self._checksum = xxhash.xxh3_128()
        self._num_bytes = self._written_back = 0

    def write(self, array: np.ndarray | bytes) -> None:
        """Append the bytes of `array`."""
        data = array if isinstance(array, bytes) else np.ascontiguousarray(array).data.cast("B")
        self._update(data)
        for first in range(0, len(data), _PIECE):
            self._file.write(data[first : first + _PIECE])
        if self._num_bytes - self._written_back >= _WRITTEN_BACK:
            start_writing_back(self._file, self._written_back)
            self._written_back = self._num_bytes

    def append(self, source: Path) -> None:
        """Append the contents of a file."""
        append_file(source, self._file, self._update)

    def _update(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        if self.blocks is not None:
            self.blocks.update(data)
        self._num_bytes += len(data)

    def close(self) -> FileEntry:
        """Sync the file and make it read-only. Returns its size in bytes and checksum."""
        make_read_only(self._file)
        sync(self._file)
        self._file.close()
        return FileEntry(self._num_bytes, self._checksum.hexdigest())

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close the file without raising."""
        with contextlib.suppress(OSError):  # the error being handled matters, not this one
            self._file.close()

    def discard(self) -> None:
        """Close and remove the file."""
        self._file.close()
        remove(self.path)


class StartsOutput:
    """A file of int64 starts, their end, and further data after them. Until `close` that data is in a second file."""

    def __init__(self, path: Path, buffer_bytes: int = 1 << 20):
        self.path = path
        with contextlib.ExitStack() as opened:
            self.starts = opened.enter_context(Output(path, buffer_bytes))
            self.rest = opened.enter_context(Output(path.with_name(path.name + ".part"), buffer_bytes))
            opened.pop_all()

    def continue_from(self, path: Path, entry: FileEntry, num_starts: int) -> None:
        """Copy the starts and the further data, but not the end, from such a file of an earlier version."""
        num_rest = entry.num_bytes - 8 * (num_starts + 1)
        copy_parts(path, entry, [(self.starts, 8 * num_starts), (None, 8), (self.rest, num_rest)])

    def close(self, end: int) -> FileEntry:
        """Write the end of the last start, and the further data after it. Returns size in bytes and checksum."""
        self.starts.write(np.array([end], "<i8"))
        self.rest.close()
        self.starts.append(self.rest.path)
        remove(self.rest.path)
        return self.starts.close()

    def __enter__(self) -> "StartsOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close both files without raising."""
        self.starts.abandon()
        self.rest.abandon()


def copy_parts(path: Path, entry: FileEntry | ShardEntry, parts: Sequence[tuple[Output | None, int]]) -> None:
    """Copy all of a file, in parts of (target or None, bytes), and check it against `entry`.

    Raises:
        CorruptionError: its size or checksum is wrong; damage must not get a new, matching checksum.
    """
    check_size(path, entry.num_bytes)
    checksum = xxhash.xxh3_128()
    with open(path, "rb") as file:
        for output, num_bytes in parts:
            while num_bytes and (block := file.read(min(num_bytes, _BLOCK))):
                num_bytes -= len(block)
                checksum.update(block)
                if output is not None:
                    output.write(block)
    check_checksum(path, entry, checksum.hexdigest())


def read_checked(path: Path, entry: FileEntry) -> bytes:
    """All bytes of a file; CorruptionError if its size or checksum is not that of `entry`."""
    check_size(path, entry.num_bytes)
    data = read_bytes(path, entry.num_bytes)
    check_checksum(path, entry, xxhash.xxh3_128_hexdigest(data))
    return data
