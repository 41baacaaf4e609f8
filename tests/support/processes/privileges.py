"""Tests often run as root, who may read and write everything. This module drops that right."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65_534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run without root's right to read everything. Also a decorator of a test.

    Not in a fixture: pytest itself writes temporary files between a fixture and its test, and may not be able to.
    """
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that all users can read and write, unlike pytest's tmp_path. It is removed at the end, whatever its modes."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)
