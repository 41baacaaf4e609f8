"""Creates, replaces and removes files and folders. Nothing else in the package does, so tests can inject failures here.

Crash safety rests on three calls. `sync` a file before anything refers to it; use `write_atomically` for a file that must be
complete or absent; `commit_directory` is the one step that makes a store exist (FMT-7).

A store, or an unfinished build, may be untrusted. So a file is always created new and never opened if it exists: not through a
link, and not through a second name of another file (`create`). An existing file is removed by its name, which never affects the
target of a link. Whether to remove it at all is the caller's decision.
"""

import contextlib
import errno
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import TEMPORARY_SUFFIX

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder at `path`. OSError if that is a link or anything else."""
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create(path: Path, mode: Literal["xb", "x+b"] = "xb", buffering: int = -1) -> BinaryIO:
    """Open a new file for writing, in a folder that is not a link. FileExistsError if the name is in use."""
    return open(path, mode, buffering, opener=lambda *_: create_descriptor(path))


def create_descriptor(path: Path) -> int:
    """Like `create`, but returns the descriptor."""
    with named(path), opened_folder(path.parent) as folder:
        return os.open(path.name, _NEW_FILE, 0o666, dir_fd=folder)  # the umask removes permissions


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Make errors name the whole path, also those of calls that know only a part of it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def create_again(path: Path, buffering: int = -1) -> BinaryIO:
    """Like `create`, but first removes a file that an earlier run left."""
    remove(path)
    return create(path, buffering=buffering)


def sync(file: BinaryIO) -> None:
    """Flush `file` to the disk."""
    file.flush()
    os.fsync(file.fileno())


def start_writing_back(file: BinaryIO, start: int) -> None:
    """Make the system write the bytes from `start` on to the disk, without waiting for it, so that `sync` waits less."""
    file.flush()
    with contextlib.suppress(OSError):  # it is advice; if writing fails, `sync` raises
        os.posix_fadvise(file.fileno(), start, 0, os.POSIX_FADV_DONTNEED)  # which first starts to write


def sync_directory(path: Path) -> None:
    """Make the names in the directory `path` durable."""
    with opened_folder(path) as descriptor:
        os.fsync(descriptor)


def make_read_only(file: BinaryIO) -> None:
    """Make an open file read-only. It takes the open file because the path could be a link by now."""
    os.fchmod(file.fileno(), 0o444)


def write_atomically(path: Path, data: bytes, read_only: bool = False) -> None:
    """Write a file so that after a crash at any point it is complete, or absent (or the old file)."""
    _write_and_rename(path.with_name(path.name + TEMPORARY_SUFFIX), path, data, read_only)


def _write_and_rename(temporary: Path, path: Path, data: bytes, read_only: bool) -> None:
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


def unique_name(name: str) -> str:
    """A name for a file that will be renamed to `name`. No other process or thread uses it."""
    return f"{name}.{os.getpid()}-{os.urandom(6).hex()}{TEMPORARY_SUFFIX}"


def write_shared(path: Path, data: bytes) -> None:
    """Like `write_atomically`, for a file that several processes write at the same time with the same content."""
    _write_and_rename(path.with_name(unique_name(path.name)), path, data, read_only=True)


def write_cached(path: Path, pieces: Iterable[memoryview]) -> None:
    """Write a file of a cache: it is whole or absent for every process. It may be neither after a crash of the machine."""
    temporary = path.with_name(unique_name(path.name))
    try:
        with create(temporary, buffering=0) as file:
            for piece in pieces:
                while piece:
                    piece = piece[file.write(piece) :]
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def claim(path: Path) -> bool:
    """Create an empty file. False if the name is in use."""
    try:
        create(path).close()
    except FileExistsError:
        return False
    return True


def touch(path: Path) -> None:
    """Set the modification time of a file to now, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def append_file(source: Path, target: BinaryIO, update: Callable[[bytes], None]) -> None:
    """Copy the contents of `source` to the end of `target`, passing each block to `update` (a checksum)."""
    with open(source, "rb") as file:
        while block := file.read(1 << 22):
            update(block)
            target.write(block)


def link_file(source: Path, target: Path) -> bool:
    """Give the file at `source` a second name: a hard link. Returns False where that is not possible.

    It is not possible on another file system, on some file systems at all, or for a file of another user (a setting of Linux).
    """
    with opened_folder(target.parent) as folder:
        try:
            os.link(source, target.name, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
                return False
            error.filename = str(target)
            raise
    return True


@contextlib.contextmanager
def new_mapped_file(path: Path, num_bytes: int) -> Iterator[np.ndarray]:
    """Create a file as a uint8[num_bytes] array to fill. At the end it is synced and read-only.

    Its blocks are allocated first. So a full disk is an error here, while a write to an unallocated mapped page would kill the
    process.
    """
    with create(path, "x+b") as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        try:
            data = mmap.mmap(file.fileno(), num_bytes)  # unmapped with its last array
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            raise TokenStoreError(
                f"file: the file system of {path} does not support writable memory maps;"
                " write the store on a local disk and copy it"
            ) from error
        yield np.frombuffer(data, np.uint8)
        data.flush()
        make_read_only(file)
        sync(file)


def create_sparse(path: Path, num_bytes: int, offset: int, data: bytes) -> None:
    """Create a file of `num_bytes` zeros with `data` at `offset`; visible only when it is complete.

    The bytes before `offset` take no space. Those from there on do, so they can be changed through a map: on a full disk, a write to
    a mapped page without space would kill the process.

    If the name is in use, nothing is changed: another process was faster.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
    try:
        with create_again(temporary, buffering=0) as file:
            write_at(file.fileno(), memoryview(data.ljust(num_bytes - offset, b"\0")), offset)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path, follow_symlinks=False)
    finally:
        remove(temporary)


def create_if_missing(path: Path) -> Path:
    """Create an empty file, unless the name is in use. Returns `path`."""
    with contextlib.suppress(FileExistsError):
        create(path).close()
    return path


def open_to_fill(path: Path) -> int:
    """A descriptor of an existing regular file that this package made, for reading and writing. OSError if it is a link."""
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset` of an open file."""
    while data:
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


def sync_data(descriptor: int) -> None:
    """Flush what was written to an open file, by any process, to the disk."""
    os.fdatasync(descriptor)


def remove(path: Path) -> None:
    """Remove a file or link by its name, if it exists. OSError for a folder."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: Path) -> None:
    """Remove a folder and its contents, if it exists. Links are removed, not followed, including a link at `path`."""
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
    with contextlib.suppress(FileNotFoundError), named(path):
        shutil.rmtree(path)


def remove_empty_folder(path: Path) -> None:
    """Remove a folder if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def new_folder(path: Path) -> None:
    """Create a folder. FileExistsError if the name is in use."""
    os.mkdir(path)


def make_folders(path: Path) -> None:
    """Create a folder and its parents, if they are missing."""
    path.mkdir(parents=True, exist_ok=True)


def own_folder(path: Path) -> None:
    """Create a folder, or accept an existing one. NotADirectoryError if the name is that of a link or anything else."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    with opened_folder(path):
        pass


def rename(path: Path, name: str) -> None:
    """Give the file at `path`, already synced, another name in its folder, atomically."""
    os.replace(path, path.with_name(name))
    sync_directory(path.parent)


def move_file(source: Path, target: Path) -> None:
    """Move a file, already synced, to another place on the same disk."""
    os.replace(source, target)
    sync_directory(target.parent)


def move_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Move files, already synced, to another folder on the same disk; durable at the end. Neither folder may be a link."""
    with opened_folder(source) as here, opened_folder(target) as there:
        for name in names:
            with named(target / name):
                os.replace(name, name, src_dir_fd=here, dst_dir_fd=there)
        os.fsync(there)


def move_directory(source: Path, target: Path) -> None:
    """Rename a folder on the same disk. `target` must be missing or an empty folder."""
    os.rename(source, target)


def commit_directory(working: Path, final: Path) -> None:
    """Give a finished directory its name, atomically and durably. `final` must be missing or an empty directory."""
    sync_directory(working)
    os.rename(working, final)
    sync_directory(final.parent)
