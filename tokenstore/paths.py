"""Layer 0: what is at a path.

`Path.exists` and its relatives are not used: since Python 3.14 they also return False if the path cannot be accessed or its
name is too long.
"""

import os
from errno import EBADF, ELOOP, ENOENT, ENOTDIR
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def mode_of(path: Path) -> int:
    """The mode of the file at `path`, following links; 0 if there is none. OSError if this cannot be determined."""
    try:
        return path.stat().st_mode
    except ValueError:  # a zero byte, which no file name contains
        return 0
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR, EBADF, ELOOP):
            return 0
        raise


def resolved(path: str | Path) -> Path:
    """The absolute path without links, except for a link that leads to itself. Before Python 3.13, `Path.resolve` fails for that."""
    return Path(os.path.realpath(path))


def entries_of(folder: Path) -> list[tuple[str, bool, bool]]:
    """Name, whether it is a directory, and whether it is a link, for each entry of a directory, sorted by name.

    A link is never reported as a directory. `scandir` returns these facts without a call per entry: there may be millions.
    """
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)


def is_there(path: Path) -> bool:
    """Whether anything is at `path`."""
    return mode_of(path) != 0


def is_folder(path: Path) -> bool:
    """Whether there is a directory at `path`."""
    return S_ISDIR(mode_of(path))


def is_file(path: Path) -> bool:
    """Whether there is a regular file at `path`."""
    return S_ISREG(mode_of(path))
