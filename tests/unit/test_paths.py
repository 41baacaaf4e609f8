"""What is at a path is known, or it is said why not: the same under every Python, unlike Path.exists."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.privileges import open_folder, unprivileged
from tokenstore.paths import is_file, is_folder, is_there, mode_of, resolved


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that anybody may enter."""
    with open_folder() as folder:
        yield folder


def test_what_there_is(folder: Path) -> None:
    """Files, folders, links to them, and what is neither."""
    (folder / "file").write_bytes(b"")
    (folder / "link").symlink_to("file")
    (folder / "up").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    found = {
        name: (is_there(path), is_file(path), is_folder(path))
        for name in os.listdir(folder)
        for path in [folder / name]
    }
    assert found == {
        "file": (True, True, False),
        "link": (True, True, False),
        "up": (True, False, True),
        "pipe": (True, False, False),
        "socket": (True, False, False),
    }


@pytest.mark.parametrize("name", ["nothing", "file/below", "nowhere", "round", "a\0b"])
def test_what_there_is_not(folder: Path, name: str) -> None:
    """No such name, below a file, a link to nothing, one in a circle, no name at all."""
    (folder / "file").write_bytes(b"")
    (folder / "nowhere").symlink_to("nothing")
    (folder / "round").symlink_to("round")
    path = folder / name
    assert (mode_of(path), is_there(path), is_file(path), is_folder(path)) == (0, False, False, False)


def test_a_link_in_a_circle_is_not_resolved(folder: Path) -> None:
    """Other links are; so is `..` after one."""
    for name, target in (("round", "round"), ("up", "/")):
        (folder / name).symlink_to(target)
    assert resolved(folder / "round") == folder / "round"
    assert resolved(folder / "up" / ".." / "x") == Path("/x")


@pytest.mark.parametrize("question", [is_there, is_file, is_folder])
def test_what_cannot_be_known_is_an_error(folder: Path, question: object) -> None:
    """A folder that may not be entered, a name too long: neither is called missing."""
    with pytest.raises(OSError, match="File name too long"):
        question(folder / ("x" * 300))
    closed = folder / "closed"
    closed.mkdir(0)
    with unprivileged(), pytest.raises(PermissionError):
        question(closed / "inside")
