"""One file of a mirror: a copy of an object that is filled block by block, by any number of processes at the same time.

    the bytes of the object, a hole where nothing was fetched | to a multiple of a page | header, one page | a byte per block

A block is ABSENT, WRITTEN or DURABLE. It is written first and marked afterwards, so a process that is killed leaves a block
either absent or whole. WRITTEN holds as long as the system that wrote it is running; after a crash of the machine, only
DURABLE blocks, which were flushed to the disk before they were marked, are used. Bytes and marks are in one file, so that
they cannot be separated. No lock is needed: two processes that write the same block write the same bytes.
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenstore.store.maps import map_shared
from tokenstore.store.writing import create_sparse, open_to_fill, remove, sync_data, write_at

ABSENT, WRITTEN, DURABLE = range(3)
PAGE_BYTES = 4096
SYNC_AFTER = 64  # written blocks before they are flushed and marked DURABLE
_BYTE = np.dtype("u1")
_READ_ONLY = (errno.EACCES, errno.EROFS, errno.EPERM)
_SPENT = slice(160, 168)  # in the header: uint64, see `spend`
_MAGIC = b"tokenstore mirror 1\n"


class UnusableMirror(Exception):
    """A file of the cache cannot be used or written. The message says why."""


def boot_id() -> bytes:
    """Identifies the running system, 36 bytes; it changes when the machine starts again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36)
    except OSError:
        return b"unknown".ljust(36)


class MirrorFile:
    """A file of a mirror.

    Attributes:
        path: the file.
        num_bytes: size of the object.
        block_bytes: size of a block; the last one may be shorter.
        marks: uint8[blocks], ABSENT, WRITTEN or DURABLE. Other processes change them too.
        writable: whether blocks can be added.
    """

    def __init__(self, path: Path, num_bytes: int, block_bytes: int, identity: str):
        """Open the file, or create it.

        identity: names the content, at most 100 ASCII characters. A file of another content is replaced.

        Raises:
            UnusableMirror: it cannot be opened or created.
        """
        self.path, self.num_bytes, self.block_bytes = path, num_bytes, block_bytes
        self.num_blocks = -(-num_bytes // block_bytes)
        self._tail = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        self._size = self._tail + PAGE_BYTES + self.num_blocks
        self._head = _MAGIC + identity.encode().ljust(100)
        self._is_complete = False
        self.writable = True
        try:
            self._open()
        except OSError as error:
            raise UnusableMirror(f"cannot use {path}: {error.strerror or error}") from error

    def _open(self) -> None:
        for _ in range(3):
            try:
                with self._opened() as descriptor:
                    if self._is_ours(descriptor):
                        self._take(descriptor)
                        return
            except FileNotFoundError:
                pass
            else:
                remove(self.path)  # of another content, or cut
            create_sparse(self.path, self._size, self._tail, self._head + boot_id())
        raise UnusableMirror(f"cannot use {self.path}: other processes replace it")

    def _opened(self) -> "_Descriptor":
        """A descriptor, for reading only if the file or its disk is read-only."""
        try:
            return _to_write(self.path)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
        self.writable = False
        return _to_read(self.path)

    def _is_ours(self, descriptor: int) -> bool:
        return (
            os.fstat(descriptor).st_size == self._size
            and os.pread(descriptor, len(self._head), self._tail) == self._head
        )

    def _take(self, descriptor: int) -> None:
        """Map the marks, and forget those that were not durable when the machine stopped."""
        found = os.fstat(descriptor)
        self._identity = found.st_dev, found.st_ino
        tail = map_shared(descriptor, _BYTE, PAGE_BYTES + self.num_blocks, self._tail, self.writable)
        self.marks, self._spent = tail[PAGE_BYTES:], tail[_SPENT].view(np.uint64)
        place = slice(len(self._head), len(self._head) + 36)
        if tail[place].tobytes() != boot_id():
            durable = np.where(self.marks == DURABLE, DURABLE, ABSENT).astype(np.uint8)
            if self.writable:
                self.marks[:] = durable
                tail[place] = np.frombuffer(boot_id(), np.uint8)
            else:
                self.marks = durable

    def spend(self, num_bytes: int, most: int) -> bool:
        """Add to a number that all processes share, unless it would exceed `most`. Approximate: additions may be lost."""
        if not self.writable or self._spent[0] + np.uint64(num_bytes) > most:
            return False
        self._spent[0] += np.uint64(num_bytes)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are present. Cheap once it is True."""
        self._is_complete = self._is_complete or bool(self.marks.all())
        return self._is_complete

    def map(self) -> np.ndarray:
        """uint8[num_bytes], read-only: the bytes of the object, in a map of its own. Absent blocks are zeros until they are written.

        Raises:
            UnusableMirror: the file was removed or replaced.
        """
        try:
            with _to_read(self.path) as descriptor:
                self._check_same(descriptor)
                return map_shared(descriptor, _BYTE, self.num_bytes)
        except OSError as error:
            raise UnusableMirror(f"cannot map {self.path}: {error.strerror or error}") from error

    def range_of(self, block: int) -> tuple[int, int]:
        """Offsets [start, stop) of a block."""
        return block * self.block_bytes, min((block + 1) * self.block_bytes, self.num_bytes)

    def write(self, block: int, data: memoryview) -> None:
        """Write a verified block and mark it.

        Raises:
            UnusableMirror: the disk is full or fails, or the file was replaced.
        """
        try:
            with _to_write(self.path) as descriptor:
                self._check_same(descriptor)
                write_at(descriptor, data, block * self.block_bytes)
                self.marks[block] = WRITTEN  # only now: whoever reads the mark finds the bytes
                written = np.flatnonzero(self.marks == WRITTEN)
                if len(written) >= SYNC_AFTER or self.is_complete:
                    sync_data(descriptor)
                    self.marks[written] = DURABLE
        except OSError as error:
            raise UnusableMirror(f"cannot write {self.path}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def claimed(self, block: int) -> Iterator[bool]:
        """Whether no other process is fetching this block; others then know that this one is.

        A claim is a lock on the byte with the number of the block. The system drops it when its process ends. Where the file
        system has no locks, every process fetches what it needs.
        """
        if not self.writable:
            yield True
            return
        try:
            with _to_write(self.path) as descriptor:
                yield _lock(descriptor, block)
        except OSError as error:
            raise UnusableMirror(f"cannot use {self.path}: {error.strerror or error}") from error

    def _check_same(self, descriptor: int) -> None:
        """OSError if the file is not the one whose marks are mapped."""
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != self._identity or found.st_size != self._size:
            raise OSError(None, "it was replaced")


class _Descriptor:
    """An open file, closed at the end of a `with` block."""

    def __init__(self, number: int):
        self._number = number

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *error: object) -> None:
        os.close(self._number)


def _to_write(path: Path) -> _Descriptor:
    return _Descriptor(open_to_fill(path))


def _to_read(path: Path) -> _Descriptor:
    return _Descriptor(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))


def _lock(descriptor: int, block: int) -> bool:
    """Try to lock a byte of an open file, without waiting. False if another process or thread has it."""
    try:
        # struct flock: type, whence, start, length, process
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, block, 1, 0))
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)  # otherwise there are no locks here
    return True
