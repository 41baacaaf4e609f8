"""`<store>.tokenstore`: the folder beside a store that all other files of building, appending and indexing are in.

    tokenstore-work.json    the mark: says that the folder is ours; it is locked while a process writes to the store
    building/               an unfinished build or append: recipe.json, parts/ (resumed from), store/ (made again each run)
    replaced/               the store that --overwrite replaces, until the new one is there
    inputs.json             times, sizes and checksums of the inputs, where these are large (builder/reading/checksums.py)
    rejects.jsonl           the bad records of a build; rejects-v2.jsonl those of the append that made version 2

A folder of that name without the mark is somebody else's: it is refused, and nothing in it is read, changed or removed. An
empty folder is taken, as a run that was killed between making the folder and the mark leaves one. What is in a folder with
the mark may still come from a stranger: links are not followed.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenstore.errors import ConfigError, StoreBusyError, TokenStoreError
from tokenstore.store.writing import create_descriptor, opened_folder

WORK_SUFFIX = ".tokenstore"
MARK_NAME = "tokenstore-work.json"
_MARK = '{{"format": "tokenstore-work", "format_version": 1, "pid": {:10d}}}\n'  # always as long, so it is replaced in one write
_IS_MARK = re.compile(rb'\{"format": "tokenstore-work", "format_version": 1, "pid": *([0-9]+)\}\n')
_MARK_BYTES = len(_MARK.format(0))


@dataclass(frozen=True)
class Work:
    """The paths of the work folder of the store, or folder of splits, at `output`."""

    output: Path

    @property
    def folder(self) -> Path:
        return Path(f"{self.output}{WORK_SUFFIX}")

    @property
    def building(self) -> Path:
        return self.folder / "building"

    @property
    def replaced(self) -> Path:
        return self.folder / "replaced"

    @property
    def inputs(self) -> Path:
        """What the inputs of a large store were when they were read."""
        return self.folder / "inputs.json"

    def rejects(self, version: int = 1) -> Path:
        """The list of bad records of a build, or of the append that makes a later version."""
        return self.folder / ("rejects.jsonl" if version == 1 else f"rejects-v{version}.jsonl")


def is_work_folder(path: Path) -> bool:
    """Whether this is the work folder of some store, and no store."""
    with contextlib.suppress(OSError):
        return path.name.endswith(WORK_SUFFIX) and stat.S_ISREG(os.lstat(path / MARK_NAME).st_mode)
    return False


@contextlib.contextmanager
def exclusive_work(output: Path) -> Iterator[Work]:
    """Hold the work folder of `output`, which is made if it is not there, and removed at the end if nothing is left in it.

    The kernel gives the lock back when its holder dies, however it dies.

    Raises:
        StoreBusyError: another process holds it.
        ConfigError: what has its name, or that of a folder or file in it, is not ours.
        TokenStoreError: a file system without locks.
        OSError: it cannot be made.
    """
    work = Work(output)
    descriptor = None
    while descriptor is None:
        descriptor = _lock(work)
    try:
        _check_entries(work)
        os.pwrite(descriptor, _MARK.format(os.getpid()).encode(), 0)
        yield work
    finally:
        _leave(work, descriptor)


def _lock(work: Work) -> int | None:
    """A descriptor of the mark, locked; None if the folder or its mark was removed meanwhile by who held it before."""
    is_new = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(work.folder)
        is_new = True
    try:
        descriptor = _open_mark(work)
    except FileNotFoundError:
        return None
    except OSError:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(work.folder)
        raise
    try:
        _flock(work, descriptor, is_new)
        if _is_mark(work, descriptor):
            _check_mark(work, descriptor)
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _flock(work: Work, descriptor: int, is_new: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _IS_MARK.match(os.pread(descriptor, _MARK_BYTES, 0))
        raise StoreBusyError(
            f"store: expected to write it alone, found process {int(holder[1]) if holder else 'unknown'} at work on it"
            f" ({work.folder}); wait for it, or work on another store"
        ) from None
    except OSError as error:
        if is_new:
            _remove(work, descriptor)
        raise TokenStoreError(
            f"lock: expected a file system with locks, found {error.strerror} ({work.folder});"
            " write the store on a local disk and copy it, reading needs no lock"
        ) from error


def _open_mark(work: Work) -> int:
    """A descriptor of the mark, which is made if the folder is empty. FileNotFoundError: removed meanwhile."""
    try:
        folder = os.open(work.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _not_ours(work.folder, "a link or a file") from None
        raise
    try:
        with contextlib.suppress(FileNotFoundError):
            # Looked at first: to open a device can do something
            if not _is_plain_file(os.stat(MARK_NAME, dir_fd=folder, follow_symlinks=False)):
                raise _not_ours(work.folder, f"a folder with another {MARK_NAME}")
            return os.open(MARK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        names = os.listdir(folder)
    finally:
        os.close(folder)
    if names and MARK_NAME not in names:  # else another process has just made it
        raise _not_ours(work.folder, f"a folder without {MARK_NAME}")
    try:
        return create_descriptor(work.folder / MARK_NAME)
    except FileExistsError:
        raise FileNotFoundError from None  # by another process: begin again


def _is_plain_file(found: os.stat_result) -> bool:
    """Whether this is a file with no other name: what is written to it is seen nowhere else."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _is_mark(work: Work, descriptor: int) -> bool:
    """Whether the file behind `descriptor` is still the mark of the folder at that path."""
    try:
        found = os.lstat(work.folder / MARK_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def _check_mark(work: Work, descriptor: int) -> None:
    """ConfigError for a file that is not ours to write. An empty one is that of a run killed before it wrote it."""
    data = os.pread(descriptor, _MARK_BYTES + 1, 0)
    if not _is_plain_file(os.fstat(descriptor)) or not (data == b"" or _IS_MARK.fullmatch(data)):
        raise _not_ours(work.folder, f"a folder with another {MARK_NAME}")


def _check_entries(work: Work) -> None:
    """ConfigError for a link or anything else in the place of what we keep in the folder."""
    parts = work.building / "parts"
    lists = (
        entry for entry in work.folder.iterdir() if re.fullmatch(r"rejects(-v\d+)?\.jsonl|inputs\.json", entry.name)
    )
    wanted = {work.building: stat.S_IFDIR, parts: stat.S_IFDIR, work.replaced: stat.S_IFDIR}
    for path, kind in (wanted | dict.fromkeys(lists, stat.S_IFREG)).items():
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IFMT(os.lstat(path).st_mode) != kind:
                raise _not_ours(path, "a link or something else")


def _not_ours(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"work folder: {path} is where tokenstore keeps its files while it writes a store, and {found} is there that it"
        " did not make; move it away, or give the store another name"
    )


def _leave(work: Work, descriptor: int) -> None:
    """Unlock; the folder goes if nothing but the mark is left. What cannot be removed is no failure: the work is done."""
    try:
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, _MARK.format(0).encode(), 0)
        _remove(work, descriptor)
    finally:
        os.close(descriptor)


def _remove(work: Work, descriptor: int) -> None:
    """Remove an empty work folder. Killed in between, it leaves an empty folder, which the next run takes."""
    with contextlib.suppress(OSError):
        if _is_mark(work, descriptor):
            with opened_folder(work.folder) as folder:
                if os.listdir(folder) == [MARK_NAME]:
                    os.unlink(MARK_NAME, dir_fd=folder)
                    os.rmdir(work.folder)
