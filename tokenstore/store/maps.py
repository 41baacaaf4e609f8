"""Memory maps of files, and the cache of them."""

import contextlib
import ctypes
import errno
import functools
import math
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.store.files import Identity, open_whole, renew_after_fork

MAX_MAPS = 4096  # mapped files kept, by all readers together and by each loader; Linux allows 65,530
_PAGE_BYTES = mmap.PAGESIZE
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def map_array(path: Path, dtype: np.dtype, count: int, allow_links: Path | None = None) -> tuple[np.ndarray, Identity]:
    """Map all of a file as a read-only dtype[count] array; returns the array and the file's identity.

    The file must have exactly that size. It is unmapped when the array is garbage-collected.
    """
    with open_whole(path, count * dtype.itemsize, allow_links) as (file, identity):
        try:
            return np.asarray(_Map(file.fileno(), dtype, count)), identity
        except OSError as error:
            advice = "check limits on maps (sysctl vm.max_map_count), memory (ulimit -v) and open files (ulimit -n)"
            if error.errno == errno.ENODEV:
                advice = "its file system does not support memory maps: copy the store to one that does"
            raise TokenStoreError(f"file: cannot map {path.name}: {error} ({path}); {advice}") from error


def map_shared(descriptor: int, dtype: np.dtype, count: int, offset: int = 0, writable: bool = False) -> np.ndarray:
    """Map dtype[count] of an open file from `offset` (a multiple of the page size) on, in memory shared with its other users.

    Raises:
        OSError: it cannot be mapped.
    """
    return np.asarray(_Map(descriptor, dtype, count, offset, mmap.MAP_SHARED, writable))


def sparse_array(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """An array of zeros of which only the pages that are written take memory.

    numpy asks for huge pages for arrays of 4 MB or more. The kernel then gives memory to all of a huge page, even long after one
    byte of it was written.
    """
    num_bytes = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot allocate {num_bytes} bytes") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


class _Map:
    """A memory map that exists as long as an array of it.

    It does not use Python's mmap, which before 3.13 keeps a descriptor per map: a corpus can have more shards than a process may
    open files. A map of a store is private because some network file systems support no other kind; pages that are only read are
    shared all the same.
    """

    __slots__ = ("_address", "_num_bytes", "_type", "_unmap", "_writable")

    def __init__(
        self,
        descriptor: int,
        dtype: np.dtype,
        count: int,
        offset: int = 0,
        kind: int = mmap.MAP_PRIVATE,
        writable: bool = False,
    ):
        self._num_bytes, self._unmap = count * dtype.itemsize, _library().munmap
        self._type, self._writable = dtype.str, writable
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._address = _library().mmap(None, self._num_bytes, access, kind, descriptor, offset)
        if self._address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    @property
    def __array_interface__(self) -> dict[str, object]:
        """What numpy asks for once. It is not kept: a process can have tens of thousands of maps."""
        return {
            "version": 3,
            "typestr": self._type,
            "shape": (self._num_bytes // np.dtype(self._type).itemsize,),
            "data": (self._address, not self._writable),
        }

    def __del__(self) -> None:
        if getattr(self, "_address", _MAP_FAILED) != _MAP_FAILED:
            self._unmap(self._address, self._num_bytes)


def prefetch_pages(ranges: Iterable[tuple[int, int]]) -> None:
    """Ask the system to read (address, bytes) ranges of maps from the disk. Returns at once; it is advice and cannot fail."""
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
    """The C library with the calls that take addresses. Python's mmap knows only offsets."""
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
    """Lets the C function at `handler` handle a signal: void (int number, siginfo_t *, void *).

    Attributes:
        previous: address of the action (`struct sigaction`) that was installed before.
        default: address of the system's default action.
    """

    _SIGINFO, _ON_STACK = 4, 0x08000000

    def __init__(self, number: int, handler: int):
        self._number = number
        self._mine = _Action(handler=handler, flags=self._SIGINFO | self._ON_STACK)
        self._previous, self._default, self._now = _Action(), _Action(), _Action()
        self.previous, self.default = ctypes.addressof(self._previous), ctypes.addressof(self._default)

    def install(self) -> bool:
        """Install the action for this process. Returns False if it is installed already."""
        _library().sigaction(self._number, None, ctypes.byref(self._now))
        if self._now.handler == self._mine.handler:
            return False
        ctypes.memmove(self.previous, ctypes.addressof(self._now), ctypes.sizeof(_Action))
        _library().sigaction(self._number, ctypes.byref(self._mine), None)
        return True


class MapCache:
    """The most recently used maps of this process, by owner and file. Holding an array keeps it mapped after eviction.

    An owner may be garbage-collected, and so forgotten, at any point of any other call in the same thread.
    """

    def __init__(self, capacity: int = MAX_MAPS):
        self.capacity = capacity
        self._maps: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._files: dict[int, set[int]] = {}  # by owner, so that forgetting one owner does not scan all maps
        self._renew_lock()
        renew_after_fork(self, MapCache._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def get(self, owner: int, file: int) -> np.ndarray | None:
        """The map of a file, or None if it is not cached."""
        with self._lock:
            array = self._maps.get((owner, file))
            if array is not None:
                self._maps.move_to_end((owner, file))
            return array

    def put(self, owner: int, file: int, array: np.ndarray) -> np.ndarray:
        """Cache a map, evicting others if necessary. Returns the map to use, because another thread may have been faster."""
        with self._lock:
            # The owner's entry comes first, so that an interrupt leaves no map without one
            self._files.setdefault(owner, set()).add(file)
            array = self._maps.setdefault((owner, file), array)
            while len(self._maps) > self.capacity:
                self._drop(*next(iter(self._maps)))
            return array

    def files(self, owner: int) -> tuple[int, ...]:
        """The files of `owner` whose maps are cached."""
        with self._lock:
            return tuple(self._files.get(owner, ()))

    def forget(self, owner: int) -> None:
        """Drop all maps of `owner`."""
        for file in self.files(owner):
            with self._lock:
                self._drop(owner, file)

    def _drop(self, owner: int, file: int) -> None:
        self._maps.pop((owner, file), None)
        files = self._files.get(owner, set())
        files.discard(file)
        if not files:
            self._files.pop(owner, None)
