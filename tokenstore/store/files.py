"""Reading a store's files. They are written by `writing` alone; only that, `work`, `maps`, `outside` and this call the system."""

import contextlib
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tokenstore.errors import CorruptionError, TokenStoreError
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


def open_to_read(path: Path, allow_links: Path | None = None) -> FileIO:
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


def major_faults() -> int:
    """How often this thread had to wait so far for a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def free_bytes(path: Path) -> int:
    """Bytes free to us on the file system of `path`."""
    return shutil.disk_usage(path).free


def after_fork_in_child(action: Callable[[], None]) -> None:
    """Call `action` in every child process that is forked from now on."""
    os.register_at_fork(after_in_child=action)


def set_environment(name: str, value: str) -> None:
    """Set a variable for libraries that read it when first used."""
    os.environ[name] = value
