"""Folders that one process fills and then publishes under their final name, so that nobody sees them half written.

This needs no lock. Any number of processes, on any number of machines that share the file system, may make the same folder at
once: each fills a private one, and renaming decides who was first.

The name of a private folder says who made it: host, process namespace and process. A folder left by a process that has died is
removed by a later run on the same host. On another host nobody can know whether it has died, so the folder stays until the
build ends.
"""

import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from tokenstore.store.writing import (
    move_directory,
    new_folder,
    remove_tree,
    sync_directory,
)

_IS_PRIVATE = re.compile(r"\.(?P<name>[\w-]+)\.(?P<place>[\w-]+\.\d+)\.(?P<pid>\d+)\.[0-9a-f]{8}")
_TRIES = 10


@contextlib.contextmanager
def private_folder(final: Path) -> Iterator[Path]:
    """A new folder next to `final`, on the same file system. Unless it was published, it is removed at the end.

    Raises:
        OSError: the folder cannot be created, for example because the folder around it is gone.
    """
    folder = final.with_name(f".{final.name}.{_place()}.{os.getpid()}.{secrets.token_hex(4)}")
    new_folder(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_tree(folder)


def publish(folder: Path, final: Path) -> bool:
    """Give a finished folder, whose files are synced, its final name, in one step and durably.

    Returns:
        False if there is something of that name already; it stays as it is.
    """
    sync_directory(folder)
    try:
        move_directory(folder, final)  # replaces nothing but an empty folder
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        return False
    sync_directory(final.parent)
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove private folders in `folder` whose process, on this host, has died."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            found = _IS_PRIVATE.fullmatch(path.name)
            if found and found["place"] == _place() and not _is_alive(int(found["pid"])):
                with contextlib.suppress(OSError):
                    remove_tree(path)


def host_and_pid() -> tuple[str, int]:
    """The names of this host and of this process: host name and process number."""
    return socket.gethostname(), os.getpid()


def _place() -> str:
    """The host and the namespace of process numbers: a container has its own, in which this number means another process."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', socket.gethostname())}.{namespace}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
