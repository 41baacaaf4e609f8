"""Every file and folder that this package creates, replaces or removes, so that tests can break the disk in one place.

Crash safety rests on three calls: `sync` a file before anything points to it, `write_atomically` for a file that must be
whole or absent, `commit_directory` for the one step that makes a store exist (FMT-7).

A store, or what is left of a build, may come from a stranger. So a file is always created new, never opened through what is
there already: not through a link, not through a second name of another file (`create`). What is in the way is removed by its
name, which never touches what a link points to. Whether to remove it at all is decided by those who call.
"""

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import TEMPORARY_SUFFIX

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder at `path`; OSError where that is a link or anything else."""
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create(path: Path, mode: Literal["xb", "x+b"] = "xb", buffering: int = -1) -> BinaryIO:
    """Open a new file to write, in a folder that is no link; FileExistsError where anything has its name already."""
    return open(path, mode, buffering, opener=lambda *_: create_descriptor(path))


def create_descriptor(path: Path) -> int:
    """`create` without a file object around the descriptor."""
    with _named(path), opened_folder(path.parent) as folder:
        return os.open(path.name, _NEW_FILE, 0o666, dir_fd=folder)  # less what the umask takes away


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name the whole path."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def create_again(path: Path, buffering: int = -1) -> BinaryIO:
    """`create` in the place of a file that a run before this one left."""
    remove(path)
    return create(path, buffering=buffering)


def sync(file: BinaryIO) -> None:
    """Flush `file` down to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names inside `path` durable."""
    with opened_folder(path) as descriptor:
        os.fsync(descriptor)


def make_read_only(file: BinaryIO) -> None:
    """Of an open file, so that no link can stand in its place."""
    os.fchmod(file.fileno(), 0o444)


def write_atomically(path: Path, data: bytes, read_only: bool = False) -> None:
    """Write a file that is, after a crash at any point, either whole or not there (or the old one)."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = create_again(temporary)
    try:
        with file:
            file.write(data)
            if read_only:
                make_read_only(file)
            sync(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise
    sync_directory(path.parent)


def append_file(source: Path, target: BinaryIO, update: Callable[[bytes], None]) -> None:
    """Copy the bytes of `source` to the end of `target`, giving each block to `update` (a checksum)."""
    with open(source, "rb") as file:
        while block := file.read(1 << 22):
            update(block)
            target.write(block)


@contextlib.contextmanager
def new_mapped_file(path: Path, num_bytes: int) -> Iterator[np.ndarray]:
    """A new file as uint8[num_bytes] to fill, synced and read-only at the end.

    Its blocks are taken first: on a full disk that is an error here, where a write to a map without blocks kills the
    process.
    """
    with create(path, "x+b") as file:
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
        make_read_only(file)
        sync(file)


def remove(path: Path) -> None:
    """Remove a file or a link by its name, if it is there; OSError for a folder."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, if it is there. Links are removed, not followed, also one in the folder's place."""
    try:
        with opened_folder(path):
            pass
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def new_folder(path: Path) -> None:
    """Make a folder; FileExistsError where anything has its name already."""
    os.mkdir(path)


def make_folders(path: Path) -> None:
    """Make a folder and those around it, where they are missing."""
    path.mkdir(parents=True, exist_ok=True)


def own_folder(path: Path) -> None:
    """Make a folder, or find it there; NotADirectoryError where a link or anything else has its name."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    with opened_folder(path):
        pass


def rename(path: Path, name: str) -> None:
    """Give the file at `path`, synced before, another name in its folder, in one step."""
    os.replace(path, path.with_name(name))
    sync_directory(path.parent)


def move_file(source: Path, target: Path) -> None:
    """Move a file, synced before, to another place on the same disk."""
    os.replace(source, target)
    sync_directory(target.parent)


def move_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Move files, synced before, into another folder of the same disk; durable at the end. Neither folder is a link."""
    with opened_folder(source) as here, opened_folder(target) as there:
        for name in names:
            with _named(target / name):
                os.replace(name, name, src_dir_fd=here, dst_dir_fd=there)
        os.fsync(there)


def move_directory(source: Path, target: Path) -> None:
    """Give a folder another name on the same disk; `target` may only be missing or an empty folder."""
    os.rename(source, target)


def commit_directory(working: Path, final: Path) -> None:
    """Give a finished directory its name, in one step; `final` may only be missing or an empty directory."""
    sync_directory(working)
    os.rename(working, final)
    sync_directory(final.parent)
