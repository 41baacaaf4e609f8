"""The files of cached blocks: a folder that the processes of a machine share, without an index and without waiting for a lock.

    CACHE/mirror/<what the blocks are>-0-<bytes that they may take>/<first>-<last>.block ...
    and in the same folder `in-use` and `locks`

A block is the only copy of some ranges of a store, one after the other, and is used by the sequences `first` to `last` of a source.
It is written under another name and renamed, so it is whole or absent. It is removed by the last process that needs it. Processes
know that from locks on `locks`, a file without content, which the system drops when a process ends:

    byte `first`                fetching the block
    bytes _NEED + [k, h)        shared: may still need blocks that are used by the sequences k to h - 1

A block that is removed too early is fetched again, or in part. So locks save requests, and nothing depends on them.
"""

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import time_ns

import numpy as np

from tokenstore.format.layout import TEMPORARY_SUFFIX
from tokenstore.store.block_ranges import Key
from tokenstore.store.files import modified, renew_after_fork
from tokenstore.store.remote.mirror_file import UnusableMirror
from tokenstore.store.remote.mirrors import MirrorFolder
from tokenstore.store.writing import create_if_missing, open_to_fill, remove, write_cached

LOCKS_NAME = "locks"
_NEED, _END = 1 << 62, (1 << 63) - 1
_FILE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})\.block")
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process
_STALE = 60 * 10**9  # nanoseconds after which nobody writes a file any more


class BlockFiles:
    """The blocks of a source in a cache folder. Can be shared among threads.

    Attributes:
        path: the folder. It is in use as long as this object exists.
    """

    def __init__(self, path: Path):
        """Create the folder if it is missing. Raises: UnusableMirror: it cannot be created or written."""
        self._folder = MirrorFolder(path)
        self.path, self._descriptor = path, -1
        if not self._folder.writable:
            raise UnusableMirror(f"cannot write {path}")
        try:
            self._descriptor = open_to_fill(create_if_missing(path / LOCKS_NAME))
        except OSError as error:
            raise UnusableMirror(f"cannot use {path}: {error.strerror or error}") from error
        renew_after_fork(self, BlockFiles._renew)

    def _renew(self) -> None:
        """Open the locks again: those of the parent belong to its descriptor."""
        self._close()
        with contextlib.suppress(OSError):
            self._descriptor = open_to_fill(self.path / LOCKS_NAME)

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    # ---- blocks

    def _name(self, key: Key) -> Path:
        return self.path / f"{key[0]}-{key[1]}.block"

    def has(self, key: Key, num_bytes: int) -> bool:
        """Whether a block is present."""
        try:
            return os.lstat(self._name(key)).st_size == num_bytes
        except OSError:
            return False

    def read(self, key: Key, num_bytes: int, parts: Sequence[tuple[int, np.ndarray]]) -> bool:
        """Copy parts of a block, (offset, uint8[n]) each. False if it is absent or not whole; some may have been copied then."""
        try:
            descriptor = os.open(self._name(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != num_bytes:
                return False
            return all(os.preadv(descriptor, [out.data], offset) == len(out) for offset, out in parts)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def write(self, key: Key, pieces: Sequence[np.ndarray]) -> None:
        """Add a block, the concatenation of some uint8[n]. Raises: UnusableMirror: the disk is full or fails.

        It is not synced: after a restart of the machine the folder has another name.
        """
        path = self._name(key)
        try:
            write_cached(path, [piece.data for piece in pieces])
        except OSError as error:
            raise UnusableMirror(f"cannot write {path}: {error.strerror or error}") from error

    def remove(self, key: Key) -> bool:
        """Remove a block, unless another process may still need it. Returns whether it is gone."""
        if self._is_locked(_NEED + key[0], key[1] - key[0] + 1):
            return False
        with contextlib.suppress(OSError):
            remove(self._name(key))
        return True

    def present(self) -> list[Key]:
        """All blocks in the folder."""
        found = (_FILE.fullmatch(name) for name in os.listdir(self.path))
        return [(int(match[1]), int(match[2])) for match in found if match]

    def remove_leftovers(self, needed: set[Key]) -> None:
        """Remove blocks and half-written files of processes that were killed, except `needed` and what other processes need."""
        with contextlib.suppress(OSError):
            for key in self.present():
                if key not in needed:
                    self.remove(key)
            for name in os.listdir(self.path):
                is_half = name.endswith(TEMPORARY_SUFFIX) and _FILE.match(name) is not None
                if is_half and modified(self.path / name) < time_ns() - _STALE:
                    remove(self.path / name)

    # ---- locks

    def need(self, start: int, stop: int | None) -> None:
        """Other processes keep the blocks that sequences in [start, stop) use, and no others for this process."""
        last = _END if stop is None else min(_NEED + stop, _END)
        if _NEED + start < last:  # first, so that what is needed before and after is needed all the time
            self._lock(fcntl.F_RDLCK, _NEED + start, last - _NEED - start)
        self._lock(fcntl.F_UNLCK, _NEED, start)
        self._lock(fcntl.F_UNLCK, last, 0)

    @contextlib.contextmanager
    def claimed(self, key: Key) -> Iterator[bool]:
        """Whether no other process is fetching a block; others then know that this one is."""
        is_mine = self._lock(fcntl.F_WRLCK, key[0], 1)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._lock(fcntl.F_UNLCK, key[0], 1)

    def _lock(self, kind: int, start: int, length: int) -> bool:
        """Set a lock without waiting. False if another process has it; True where the file system has no locks."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, 0, start, length, 0))
        except (OSError, ValueError) as error:
            return getattr(error, "errno", 0) not in (errno.EAGAIN, errno.EACCES)
        return True

    def _is_locked(self, start: int, length: int) -> bool:
        """Whether another process has a lock in a range."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, start, length, 0)
        try:
            found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        except (OSError, ValueError):
            return False
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)
