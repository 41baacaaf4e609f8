"""`<store>.tokenstore`: the work folder next to a store, for all other files of builds, appends and indexing.

    tokenstore-work.json    the mark: identifies the folder as ours; it is locked while a process writes to the store
    lock.json               the lock, on file systems without flock (lock_file.py)
    building/               an unfinished build or append: recipe.json, parts/ (resumed from), store/ (written again each run)
    replaced/               the store that --overwrite replaces, until the new store is complete
    inputs.json             times, sizes and checksums of large inputs (builder/reading/checksums.py)
    rejects.jsonl           the bad records of a build; rejects-v2.jsonl those of the append that made version 2

A folder of that name without the mark belongs to someone else: it is rejected, and nothing in it is read, changed or removed. An
empty folder is used, because a run killed between creating the folder and the mark leaves one. The contents of a folder with the
mark are still untrusted: links are not followed.
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
from tokenstore.store import lock_file
from tokenstore.store.writing import create_descriptor, named, opened_folder

WORK_SUFFIX = ".tokenstore"
MARK_NAME = "tokenstore-work.json"
_MARK = '{{"format": "tokenstore-work", "format_version": 1, "pid": {:10d}}}\n'  # constant length, so it is replaced in one write
_IS_MARK = re.compile(rb'\{"format": "tokenstore-work", "format_version": 1, "pid": *([0-9]+)\}\n')
_MARK_BYTES = len(_MARK.format(0))
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # flock is not implemented there, as on Lustre


@dataclass(frozen=True)
class Work:
    """Paths in the work folder of the store, or folder of splits, at `output`."""

    output: Path

    @property
    def folder(self) -> Path:
        """The work folder itself."""
        return Path(f"{self.output}{WORK_SUFFIX}")

    @property
    def building(self) -> Path:
        """The folder of an unfinished build or append."""
        return self.folder / "building"

    @property
    def replaced(self) -> Path:
        """Where the store that is being replaced is kept until the new one is complete."""
        return self.folder / "replaced"

    @property
    def inputs(self) -> Path:
        """The file with times, sizes and checksums of the inputs of a large store."""
        return self.folder / "inputs.json"

    def rejects(self, version: int = 1) -> Path:
        """The list of the bad records of a build, or of the append that makes a later version."""
        return self.folder / ("rejects.jsonl" if version == 1 else f"rejects-v{version}.jsonl")


def is_work_folder(path: Path) -> bool:
    """Whether `path` is the work folder of some store."""
    with contextlib.suppress(OSError):
        return path.name.endswith(WORK_SUFFIX) and stat.S_ISREG(os.lstat(path / MARK_NAME).st_mode)
    return False


@contextlib.contextmanager
def exclusive_work(output: Path, break_lock: bool = False) -> Iterator[Work]:
    """Hold the lock of the work folder of `output`. The folder is created if necessary, and removed at the end if it is empty.

    The kernel releases the lock when its holder dies, however it dies. Where the file system has no such locks, as Lustre without
    `-o flock`, a lock file takes their place (lock_file.py), which a holder that dies leaves.

    Args:
        output: the store, or folder of splits.
        break_lock: remove such a lock file first.

    Raises:
        StoreBusyError: another process holds the lock.
        ConfigError: the folder, or a folder or file in it, is not ours.
        OSError: the folder cannot be created.
    """
    work = Work(output)
    descriptor = None
    while descriptor is None:
        descriptor = _lock(work, break_lock)
    try:
        _check_entries(work)
        os.pwrite(descriptor, _MARK.format(os.getpid()).encode(), 0)
        yield work
    finally:
        _leave(work, descriptor)


def join_work(output: Path) -> Work:
    """The work folder of `output`, created and marked if necessary, without its lock: for tasks that only add parts.

    Raises:
        ConfigError: the folder, or a folder or file in it, is not ours.
        OSError: the folder cannot be created.
    """
    work = Work(output)
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(work.folder)
        try:
            descriptor = _open_mark(work)
        except FileNotFoundError:
            continue  # the holder of the lock removed the folder, which was empty
        try:
            if _is_mark(work, descriptor):
                _check_mark(work, descriptor)
                if os.fstat(descriptor).st_size == 0:
                    os.pwrite(descriptor, _MARK.format(0).encode(), 0)
                _check_entries(work)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(work.building)  # from now on a holder of the lock leaves the folder
                return work
        finally:
            os.close(descriptor)


def _lock(work: Work, break_lock: bool) -> int | None:
    """A descriptor of the locked mark; None if a previous holder removed the folder or its mark meanwhile."""
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
        _flock(work, descriptor, is_new, break_lock)
        if _is_mark(work, descriptor):
            _check_mark(work, descriptor)
            return descriptor
        lock_file.leave(work.folder)  # it is in a folder that another process has just created
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _flock(work: Work, descriptor: int, is_new: bool, break_lock: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _IS_MARK.match(os.pread(descriptor, _MARK_BYTES, 0))
        raise StoreBusyError(
            f"store: process {int(holder[1]) if holder else 'unknown'} is writing it ({work.folder});"
            " wait for it, or work on another store"
        ) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            lock_file.take(work.folder, break_lock)
            return
        if is_new:
            _remove(work, descriptor)
        raise TokenStoreError(
            f"lock: cannot lock {work.folder}: {error.strerror}; write the store on another disk and copy it;"
            " reading needs no lock"
        ) from error


def _open_mark(work: Work) -> int:
    """A descriptor of the mark, which is created if the folder is empty. FileNotFoundError: it was removed meanwhile."""
    try:
        folder = os.open(work.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _not_ours(work.folder, "a link or a file") from None
        raise
    try:
        with contextlib.suppress(FileNotFoundError), named(work.folder / MARK_NAME):
            # Checked before opening: opening a device can have effects
            if not _is_plain_file(os.stat(MARK_NAME, dir_fd=folder, follow_symlinks=False)):
                raise _not_ours(work.folder, f"a folder with another {MARK_NAME}")
            return os.open(MARK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        names = os.listdir(folder)
    finally:
        os.close(folder)
    if names and MARK_NAME not in names:  # otherwise another process has just created it
        raise _not_ours(work.folder, f"a folder without {MARK_NAME}")
    try:
        return create_descriptor(work.folder / MARK_NAME)
    except FileExistsError:
        raise FileNotFoundError from None  # another process created it: try again


def _is_plain_file(found: os.stat_result) -> bool:
    """Whether this is a regular file with a single name, so that what is written to it appears nowhere else."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _is_mark(work: Work, descriptor: int) -> bool:
    """Whether the open file `descriptor` is still the mark at that path."""
    try:
        found = os.lstat(work.folder / MARK_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def _check_mark(work: Work, descriptor: int) -> None:
    """ConfigError if the mark is not ours. An empty file is: a run was killed before it wrote the contents."""
    data = os.pread(descriptor, _MARK_BYTES + 1, 0)
    if not _is_plain_file(os.fstat(descriptor)) or not (data == b"" or _IS_MARK.fullmatch(data)):
        raise _not_ours(work.folder, f"a folder with another {MARK_NAME}")


def _check_entries(work: Work) -> None:
    """ConfigError if a folder or file that we would use is a link or of another type."""
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
        f"work folder: {path} is reserved for tokenstore's files while it writes a store, but found {found} that it did"
        " not create; move it away, or give the store another name"
    )


def _leave(work: Work, descriptor: int) -> None:
    """Unlock, and remove the folder if only the mark is left. Failing to remove it is not an error: the work is done."""
    try:
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, _MARK.format(0).encode(), 0)
        lock_file.leave(work.folder)
        _remove(work, descriptor)
    finally:
        os.close(descriptor)


def _remove(work: Work, descriptor: int) -> None:
    """Remove an empty work folder. A process killed in between leaves an empty folder, which the next run uses."""
    with contextlib.suppress(OSError):
        if _is_mark(work, descriptor):
            with opened_folder(work.folder) as folder:
                if os.listdir(folder) == [MARK_NAME]:
                    os.unlink(MARK_NAME, dir_fd=folder)
                    os.rmdir(work.folder)
