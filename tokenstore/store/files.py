"""Reading the files of a store. Only this module, `writing`, `work`, `maps` and `outside` call the operating system."""

import contextlib
import os
import resource
import shutil
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.outside import NotUsable, open_file, read_file, stat_file

_BLOCK = 1 << 22
_UINT64 = (1 << 64) - 1
_Owner = TypeVar("_Owner")


class Identity(NamedTuple):
    """Identifies the file at a path. A different file, or the same file after a write, has another identity. All fit uint64."""

    device: int
    inode: int
    modified: int  # nanoseconds
    num_bytes: int


def identity_of(path: Path, allow_links: Path | None = None) -> Identity:
    """Identity of the regular file at `path`. Anything else is rejected: reading a pipe or device could block forever.

    Args:
        path: a file of a store. If it is a symbolic link, it must stay inside the store's directory.
        allow_links: another directory that links may lead to.

    Raises:
        CorruptionError: there is no such file, it is not a regular file, or a link leads elsewhere.
        TokenStoreError: the file cannot be accessed.
    """
    with _errors_of(path):
        return _identity(stat_file(path, allow_links))


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns & _UINT64, found.st_size)


def regular_size(path: Path, allow_links: Path | None = None) -> int:
    """Size in bytes of the file at `path`. Raises the errors of `identity_of`."""
    return identity_of(path, allow_links).num_bytes


def open_to_read(path: Path, allow_links: Path | None = None) -> FileIO:
    """Open a file of a store, unbuffered. Raises the errors of `identity_of`."""
    with _errors_of(path):
        return open_file(path, allow_links)


def read_bytes(path: Path, max_bytes: int, allow_links: Path | None = None) -> bytes:
    """All bytes of a file of a store, at most `max_bytes`. Raises the errors of `identity_of`."""
    with _errors_of(path):
        return read_file(path, max_bytes, allow_links)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Translate OSErrors of a file of a store to TokenStoreErrors that name the file."""
    try:
        yield
    except FileNotFoundError:
        raise CorruptionError(
            f"file: expected {path.name}, found none ({path}); copy or build the store again"
        ) from None
    except NotUsable as error:
        todo = (
            "copy the files instead of linking them, or allow their folder (allow_links=FOLDER, --allow-links FOLDER)"
            if error.is_link
            else "copy or build the store again"
        )
        raise CorruptionError(
            f"file: expected a regular file of this store, found {error.strerror} ({path}); {todo}"
        ) from None
    except OSError as error:
        raise TokenStoreError(
            f"file: cannot read {path.name}: {error.strerror} ({path}); check the path and its permissions"
        ) from error


def check_size(path: Path, num_bytes: int, allow_links: Path | None = None) -> Identity:
    """The identity of a file. CorruptionError if it is missing or not exactly `num_bytes` long."""
    return _of_size(identity_of(path, allow_links), path, num_bytes)


def check_sizes(folder: Path, sizes: Iterable[tuple[str, int]], allow_links: Path | None = None) -> list[Identity]:
    """`check_size` for many files (name, bytes) of one directory. Needs one call per sound file, as stores have many shards."""
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


def check_checksum(path: Path, entry: FileEntry | ShardEntry, found: str) -> None:
    """CorruptionError if the checksum that was computed for a file is not that of its entry in the manifest."""
    if found != entry.checksum:
        raise CorruptionError(
            f"file: expected the checksum {entry.checksum}, found {found} ({path});"
            f" run `tokenstore verify {path.parent}`, and copy or build the store again"
        )


@contextlib.contextmanager
def open_whole(path: Path, num_bytes: int, allow_links: Path | None = None) -> Iterator[tuple[BinaryIO, Identity]]:
    """Open a file of exactly `num_bytes` for reading; yields the file and its identity."""
    with open_to_read(path, allow_links) as file:
        yield file, _of_size(_identity(os.fstat(file.fileno())), path, num_bytes)


def read_blocks(
    path: Path, num_bytes: int, update: Callable[[bytes], None], allow_links: Path | None = None
) -> Identity:
    """Pass all of a file of exactly `num_bytes` to `update` (a checksum), in blocks. Returns the identity of the file."""
    with open_whole(path, num_bytes, allow_links) as (file, identity), _errors_of(path):
        while block := file.read(_BLOCK):
            update(block)
        return identity


def file_size(path: Path) -> int:
    """Size in bytes of the file at `path`, -1 if there is none. No link is followed."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return -1


def modified(path: Path) -> int:
    """Modification time of the file at `path` in nanoseconds, -1 if there is none."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def major_faults() -> int:
    """How often this thread has waited so far for a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def read_ahead(path: Path, ranges: Iterable[tuple[int, int]], allow_links: Path | None = None) -> None:
    """Ask the system to read [start, stop) ranges of a file from its disk. It is advice and cannot fail.

    It may wait until the disk takes more requests, so call it in a thread.
    """
    with contextlib.suppress(OSError, TokenStoreError), open_to_read(path, allow_links) as file:
        for start, stop in ranges:
            os.posix_fadvise(file.fileno(), start, stop - start, os.POSIX_FADV_WILLNEED)


def free_cached(file: BinaryIO) -> None:
    """Let the system use the memory that holds the contents of a file, already synced, for others. It is advice and cannot fail."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def memory_bytes() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes(path: Path) -> int:
    """Bytes available to this user on the file system of `path`."""
    return shutil.disk_usage(path).free


def after_fork_in_child(action: Callable[[], None]) -> None:
    """Call `action` in every child process that is forked from now on."""
    os.register_at_fork(after_in_child=action)


_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_after_fork(owner: _Owner, renew: Callable[[_Owner], None]) -> None:
    """Call `renew(owner)` in every forked child, as long as `owner` exists.

    For locks and half-done work: a lock that another thread holds at a fork would never be released in the child.
    """
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


after_fork_in_child(_renew_all)


def environment(name: str) -> str | None:
    """The value of an environment variable; None if it is not set or empty."""
    return os.environ.get(name) or None


def set_environment(name: str, value: str) -> None:
    """Set an environment variable for libraries that read it when first used."""
    os.environ[name] = value
