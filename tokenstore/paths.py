"""Layer 0: what is at a path.

Not `Path.exists` and its like: from Python 3.14 on they call missing what may not be looked at, and a name that is too long.
"""

import os
from errno import EBADF, ELOOP, ENOENT, ENOTDIR
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def mode_of(path: Path) -> int:
    """The mode of what is at `path`, links followed; 0 where nothing is. OSError where that cannot be known."""
    try:
        return path.stat().st_mode
    except ValueError:  # a zero byte: no name of anything
        return 0
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR, EBADF, ELOOP):
            return 0
        raise


def entries_of(folder: Path) -> list[tuple[str, bool, bool]]:
    """(name, whether it is a folder, whether it is a link) of what is in a folder, by name; a link is no folder.

    The system says so as it lists the folder, without a call for each: there may be millions.
    """
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)


def is_there(path: Path) -> bool:
    """Whether anything is at `path`."""
    return mode_of(path) != 0


def is_folder(path: Path) -> bool:
    """Whether a folder is at `path`."""
    return S_ISDIR(mode_of(path))


def is_file(path: Path) -> bool:
    """Whether a regular file is at `path`."""
    return S_ISREG(mode_of(path))
