"""Fixtures for hostile tests: inputs, and a file that no attack may change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of the user that all attacks lead to; its mode and contents must not change."""
    path = tmp_path / "home/precious"
    path.parent.mkdir()
    path.write_text("precious")
    path.chmod(0o640)
    yield path
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("precious", 0o640)
    assert sorted(each.name for each in path.parent.iterdir()) == ["precious"]


@pytest.fixture
def source(jsonl: Callable[..., Path]) -> str:
    """The path of an input of four documents."""
    return str(jsonl("in/a.jsonl", ["a", "b", "c", "d"]))


@pytest.fixture
def other(jsonl: Callable[..., Path]) -> str:
    """The path of another input, of six documents."""
    return str(jsonl("in/b.jsonl", ["e", "f", "g", "h", "i", "j"]))
