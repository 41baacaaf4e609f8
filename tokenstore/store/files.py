"""A store's files. Only here, in `maps` and in `outside` is the operating system called: tests break the disk there.

Crash safety rests on three calls here: `sync` a file before anything points to it, `write_atomically` for a file that
must be whole or absent, `commit_directory` for the one step that makes a store exist (FMT-7).
"""

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from tokenstore.errors import CorruptionError, StoreBusyError, TokenStoreError
from tokenstore.outside import NotUsable, open_file, read_file, stat_file

_BLOCK = 1 << 22
_UINT64 = (1 << 64) - 1


class Identity(NamedTuple):
    """Which file is at a path: another file, or one that was written to since, has another identity. Each fits uint64."""

    device: int
    inode: int
    modified: int  # nanoseconds
    num_bytes: int


def identity_of(path: Path, allow_links: Path | None = None) -> Identity:
    """Identity of the regular file at `path`. A pipe or device would make a reader wait for ever: refused.

    Args:
        path: a file of a store. If it is a symbolic link, it must stay inside the store's folder.
        allow_links: another folder that links may lead to.
    """
    with _errors_of(path):
        return _identity(stat_file(path, allow_links))


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns & _UINT64, found.st_size)


def regular_size(path: Path, allow_links: Path | None = None) -> int:
    """Size in bytes of the file at `path`; what `identity_of` refuses is refused here too."""
    return identity_of(path, allow_links).num_bytes


def open_to_read(path: Path, allow_links: Path | None = None) -> BinaryIO:
    """A file of a store, unbuffered; what `identity_of` refuses is refused here too."""
    with _errors_of(path):
        return open_file(path, allow_links)


def read_bytes(path: Path, max_bytes: int, allow_links: Path | None = None) -> bytes:
    """All bytes of a file of a store of at most `max_bytes`; what `identity_of` refuses is refused here too."""
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


def check_size(path: Path, num_bytes: int, allow_links: Path | None = None) -> Identity:
    """Refuse a file that is missing or not exactly `num_bytes` long; return which file it is."""
    return _of_size(identity_of(path, allow_links), path, num_bytes)


def check_sizes(folder: Path, sizes: Iterable[tuple[str, int]], allow_links: Path | None = None) -> list[Identity]:
    """`check_size` for many files (name, bytes) of one folder: quick where all is well, as stores have many shards."""
    identities = []
    for name, num_bytes in sizes:
        try:
            found = os.lstat(f"{folder}/{name}")
            is_sound = stat.S_ISREG(found.st_mode) and found.st_size == num_bytes
        except OSError:
            is_sound = False
        identities.append(_identity(found) if is_sound else check_size(folder / name, num_bytes, allow_links))
    return identities


def _of_size(found: Identity, path: Path, num_bytes: int) -> Identity:
    if found.num_bytes != num_bytes:
        raise CorruptionError(
            f"file size: expected {num_bytes} bytes, found {found.num_bytes} ({path}); copy or build the store again"
        )
    return found


@contextlib.contextmanager
def open_whole(path: Path, num_bytes: int, allow_links: Path | None = None) -> Iterator[tuple[BinaryIO, Identity]]:
    """A file of exactly `num_bytes`, opened to read, and which file it is."""
    with open_to_read(path, allow_links) as file:
        yield file, _of_size(_identity(os.fstat(file.fileno())), path, num_bytes)


def read_blocks(
    path: Path, num_bytes: int, update: Callable[[bytes], None], allow_links: Path | None = None
) -> Identity:
    """Give all of a file of exactly `num_bytes` to `update` (a checksum), in blocks; return which file it was."""
    with open_whole(path, num_bytes, allow_links) as (file, identity), _errors_of(path):
        while block := file.read(_BLOCK):
            update(block)
        return identity


def waits_for_disk() -> int:
    """How often this thread had to wait so far for a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


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
