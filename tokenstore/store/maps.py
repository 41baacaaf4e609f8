"""Files in memory: mapped to read, kept while they are used, and how many are kept."""

import ctypes
import errno
import functools
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.store.files import Identity, after_fork_in_child, open_whole

MAX_MAPS = 4096  # files that are kept mapped, by all readers together and by each loader; the system allows 65,530
_PAGE_BYTES = mmap.PAGESIZE
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def map_array(path: Path, dtype: np.dtype, count: int, allow_links: Path | None = None) -> tuple[np.ndarray, Identity]:
    """Read-only dtype[count] view of the whole file, which must have exactly that size, and which file it is.

    It is unmapped when garbage.
    """
    with open_whole(path, count * dtype.itemsize, allow_links) as (file, identity):
        try:
            return np.asarray(_Map(file.fileno(), dtype, count)), identity
        except OSError as error:
            advice = "check limits on maps (sysctl vm.max_map_count), memory (ulimit -v) and open files (ulimit -n)"
            if error.errno == errno.ENODEV:
                advice = "its file system cannot map files into memory: copy the store to one that can"
            raise TokenStoreError(f"file: expected to map {path.name}, found {error} ({path}); {advice}") from error


class _Map:
    """A file in memory, to read, for as long as an array of it lives.

    Not by Python's mmap, which before 3.13 keeps a descriptor for each: a corpus has more shards than a process may open.
    Private, as some network file systems map no other way; of what is only read there is one copy in memory all the same.
    """

    def __init__(self, descriptor: int, dtype: np.dtype, count: int):
        self._num_bytes, self._unmap = count * dtype.itemsize, _library().munmap
        self._address = _library().mmap(None, self._num_bytes, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        if self._address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": (count,),
            "data": (self._address, True),  # read-only
        }

    def __del__(self) -> None:
        if getattr(self, "_address", _MAP_FAILED) != _MAP_FAILED:
            self._unmap(self._address, self._num_bytes)


def prefetch_pages(ranges: Iterable[tuple[int, int]]) -> None:
    """Have the system begin to read (address, bytes) of maps from the disk, and return at once. Advice: it cannot fail."""
    advise = _library().madvise
    start = stop = 0
    for address, size in sorted(ranges):
        first, last = address & -_PAGE_BYTES, (address + size - 1 | _PAGE_BYTES - 1) + 1
        if first > stop:
            advise(start, stop - start, mmap.MADV_WILLNEED)
            start = first
        stop = max(stop, last)
    advise(start, stop - start, mmap.MADV_WILLNEED)


@functools.cache
def _library() -> ctypes.CDLL:
    """The C library, as it takes addresses: a map of Python's knows offsets only."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class SignalAction:
    """What a signal does while the C function at `handler` handles it: void (int number, siginfo_t *, void *).

    Attributes:
        previous: address of the action (`struct sigaction`) that was there before; `default`: of the system's own.
    """

    _SIGINFO, _ON_STACK = 4, 0x08000000

    def __init__(self, number: int, handler: int):
        self._number = number
        self._mine = _Action(handler=handler, flags=self._SIGINFO | self._ON_STACK)
        self._previous, self._default, self._now = _Action(), _Action(), _Action()
        self.previous, self.default = ctypes.addressof(self._previous), ctypes.addressof(self._default)

    def install(self) -> bool:
        """Make it the action of the process; False where it is already."""
        _library().sigaction(self._number, None, ctypes.byref(self._now))
        if self._now.handler == self._mine.handler:
            return False
        ctypes.memmove(self.previous, ctypes.addressof(self._now), ctypes.sizeof(_Action))
        _library().sigaction(self._number, ctypes.byref(self._mine), None)
        return True


class MapCache:
    """The most recently used maps of this process, by owner and file. Who holds an array keeps it mapped.

    An owner that is garbage may be forgotten at any moment, in the middle of any other call of the same thread.
    """

    def __init__(self, capacity: int = MAX_MAPS):
        self.capacity = capacity
        self._maps: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._files: dict[int, set[int]] = {}  # of each owner: a thousand stores are forgotten a thousand times
        self._renew_lock()
        after_fork_in_child(self._renew_lock)

    def _renew_lock(self) -> None:
        """A lock some thread held when the process was forked would never be free in the child."""
        self._lock = threading.RLock()

    def get(self, owner: int, file: int) -> np.ndarray | None:
        """The map of a file; None where it has to be made."""
        with self._lock:
            array = self._maps.get((owner, file))
            if array is not None:
                self._maps.move_to_end((owner, file))
            return array

    def put(self, owner: int, file: int, array: np.ndarray) -> np.ndarray:
        """Keep a map, and forget others for it; returns the one to use, as another thread may have been first."""
        with self._lock:
            # First, as an interrupt must leave no map that is not known by its owner
            self._files.setdefault(owner, set()).add(file)
            array = self._maps.setdefault((owner, file), array)
            while len(self._maps) > self.capacity:
                self._drop(*next(iter(self._maps)))
            return array

    def files(self, owner: int) -> tuple[int, ...]:
        """Files of `owner` that are kept mapped."""
        with self._lock:
            return tuple(self._files.get(owner, ()))

    def forget(self, owner: int) -> None:
        """Forget all maps of `owner`."""
        for file in self.files(owner):
            with self._lock:
                self._drop(owner, file)

    def _drop(self, owner: int, file: int) -> None:
        self._maps.pop((owner, file), None)
        files = self._files.get(owner, set())
        files.discard(file)
        if not files:
            self._files.pop(owner, None)
