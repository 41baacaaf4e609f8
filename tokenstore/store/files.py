"""A store's files. Only here and in `outside` is the operating system called, so tests can break the disk in one place.

Crash safety rests on three calls here: `sync` a file before anything points to it, `write_atomically` for a file that
must be whole or absent, `commit_directory` for the one step that makes a store exist (FMT-7).
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tokenstore.errors import CorruptionError, StoreBusyError, TokenStoreError
from tokenstore.outside import NotUsable, open_file, read_file, stat_file

MAX_MAPS = 4096  # files that are kept mapped, by all readers together and by each loader; the system allows 65,530
_PAGE_BYTES = mmap.PAGESIZE
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def regular_size(path: Path, allow_links: Path | None = None) -> int:
    """Size in bytes of the regular file at `path`. A pipe or device would make a reader wait for ever: refused.

    Args:
        path: a file of a store. If it is a symbolic link, it must stay inside the store's folder.
        allow_links: another folder that links may lead to.
    """
    with _errors_of(path):
        return stat_file(path, allow_links).st_size


def open_to_read(path: Path, allow_links: Path | None = None) -> BinaryIO:
    """A file of a store, unbuffered; what `regular_size` refuses is refused here too."""
    with _errors_of(path):
        return open_file(path, allow_links)


def read_bytes(path: Path, max_bytes: int, allow_links: Path | None = None) -> bytes:
    """All bytes of a file of a store of at most `max_bytes`; what `regular_size` refuses is refused here too."""
    with _errors_of(path):
        return read_file(path, max_bytes, allow_links)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """OSErrors of a file of a store as TokenStoreErrors that name it."""
    try:
        yield
    except FileNotFoundError:
        raise CorruptionError(
            f"file: expected {path.name}, found none ({path}); copy or build the store again"
        ) from None
    except NotUsable as error:
        todo = (
            "copy the files instead of links, or allow their folder (allow_links=FOLDER, --allow-links FOLDER)"
            if error.is_link
            else "copy or build the store again"
        )
        raise CorruptionError(
            f"file: expected a regular file of this store, found {error.strerror} ({path}); {todo}"
        ) from None
    except OSError as error:
        raise TokenStoreError(
            f"file: expected to read {path.name}, found {error.strerror} ({path}); check the path and its permissions"
        ) from error


def check_size(path: Path, num_bytes: int, allow_links: Path | None = None) -> None:
    """Refuse a file that is missing or not exactly `num_bytes` long."""
    size = regular_size(path, allow_links)
    if size != num_bytes:
        raise CorruptionError(
            f"file size: expected {num_bytes} bytes, found {size} ({path}); copy or build the store again"
        )


def map_array(path: Path, dtype: np.dtype, count: int, allow_links: Path | None = None) -> np.ndarray:
    """Read-only dtype[count] view of the whole file, which must have exactly that size. Unmapped when garbage."""
    check_size(path, count * dtype.itemsize, allow_links)
    with open_to_read(path, allow_links) as file:
        try:
            return np.asarray(_Map(file.fileno(), dtype, count))
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


def call_for_pages(ranges: Iterable[tuple[int, int]]) -> None:
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


def waits_for_disk() -> int:
    """How often this thread had to wait so far for a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class MapCache:
    """The most recently used maps of this process. Who holds an array keeps it mapped; the cache only forgets it."""

    def __init__(self, capacity: int = MAX_MAPS):
        self.capacity = capacity
        self._maps: OrderedDict[Path, np.ndarray] = OrderedDict()
        self._folders: dict[Path, set[Path]] = {}  # which of them lie where: a thousand stores forget a thousand times
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """A lock some thread held when the process was forked would never be free in the child."""
        self._lock = threading.Lock()

    def get(self, path: Path, dtype: np.dtype, count: int, allow_links: Path | None = None) -> np.ndarray:
        with self._lock:
            array = self._maps.get(path)
            if array is not None:
                self._maps.move_to_end(path)
                return array
            while len(self._maps) >= self.capacity:
                self._drop(next(iter(self._maps)))
            array = map_array(path, dtype, count, allow_links)
            # First, as an interrupt must leave no map that is not known by its folder
            self._folders.setdefault(path.parent, set()).add(path)
            self._maps[path] = array
            return array

    def forget(self, folder: Path) -> None:
        """Forget the maps of all files in `folder`."""
        with self._lock:
            for path in tuple(self._folders.get(folder, ())):
                self._drop(path)

    def _drop(self, path: Path) -> None:
        self._maps.pop(path, None)
        self._folders[path.parent].discard(path)
        if not self._folders[path.parent]:
            del self._folders[path.parent]


def sync(file: BinaryIO) -> None:
    """Flush `file` down to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is, after a crash at any point, either whole or not there (or the old one)."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        sync(file)
    os.replace(temporary, path)
    sync_directory(path.parent)


def append_file(source: Path, target: BinaryIO, update: Callable[[bytes], None]) -> None:
    """Copy the bytes of `source` to the end of `target`, giving each block to `update` (a checksum)."""
    with open(source, "rb") as file:
        while block := file.read(1 << 22):
            update(block)
            target.write(block)


@contextlib.contextmanager
def new_mapped_file(path: Path, num_bytes: int) -> Iterator[np.ndarray]:
    """A new file as uint8[num_bytes] to fill, synced at the end.

    Its blocks are taken first: on a full disk that is an error here, where a write to a map without blocks kills the
    process.
    """
    with open(path, "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        try:
            data = mmap.mmap(file.fileno(), num_bytes)  # goes when the last array of it goes
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            raise TokenStoreError(
                f"file: expected a file system that can map files to write, found none ({path});"
                " write the store on a local disk and copy it"
            ) from error
        yield np.frombuffer(data, np.uint8)
        data.flush()
        sync(file)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def rename(path: Path, name: str) -> None:
    """Give the file at `path`, synced before, another name in its folder, in one step."""
    os.replace(path, path.with_name(name))
    sync_directory(path.parent)


def move_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Move files, synced before, into another directory of the same disk; durable at the end."""
    for name in names:
        os.replace(source / name, target / name)
    sync_directory(target)


def make_read_only(path: Path) -> None:
    os.chmod(path, 0o444)


def commit_directory(working: Path, final: Path) -> None:
    """Give a finished directory its name, in one step; `final` may only be missing or an empty directory."""
    sync_directory(working)
    os.rename(working, final)
    sync_directory(final.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def free_bytes(path: Path) -> int:
    """Bytes free to us on the file system of `path`."""
    return shutil.disk_usage(path).free


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; raise StoreBusyError at once if another process holds it.

    The kernel gives the lock back when its holder dies, however it dies. The file is removed at the end, so after
    locking we look whether the path still is the file we locked (another holder may have removed it in between).
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(descriptor)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(ours, os.stat(path)):
                    break
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreBusyError(
                f"store: expected to write it alone, found process {holder} at work on it ({path});"
                " wait for it, or work on another store"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise TokenStoreError(
                f"lock: expected a file system with locks, found {error.strerror} ({path});"
                " write the store on a local disk and copy it, reading needs no lock"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def after_fork_in_child(action: Callable[[], None]) -> None:
    """Call `action` in every child process that is forked from now on."""
    os.register_at_fork(after_in_child=action)


def set_environment(name: str, value: str) -> None:
    """Set a variable for libraries that read it when first used."""
    os.environ[name] = value
