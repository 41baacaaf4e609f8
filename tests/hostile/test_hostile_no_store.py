"""Paths that are not a store (P9): the message says what is there instead."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenstore
from tests.support.stores.hostile_stores import make_fifo, make_small
from tokenstore.errors import ConfigError, CorruptionError, TokenStoreError
from tokenstore.store import open_store, verify
from tokenstore.store.work import Work

pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


def foreign(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    def prepare(folder: Path) -> Path:
        path = folder / "s"
        make(path)
        return path

    return prepare


NO_STORES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a missing path": (foreign(lambda path: None), "found nothing"),
    "an empty directory": (foreign(lambda path: path.mkdir()), "found a directory without manifest.json"),
    "a directory of another tool": (
        foreign(lambda path: (path.mkdir(), (path / "train.bin").write_bytes(bytes(100)))),
        "found a directory without manifest.json",
    ),
    "another tool's manifest": (
        foreign(
            lambda path: (path.mkdir(), (path / "manifest.json").write_text('{"name": "extension", "version": 3}\n'))
        ),
        "is this path a token store?",
    ),
    "a file": (foreign(lambda path: path.write_bytes(b"text")), "found a file"),
    "a fifo": (foreign(make_fifo), "found a file"),
    "a device": (foreign(lambda path: path.symlink_to("/dev/zero")), "found a file"),
    "a link to nothing": (foreign(lambda path: path.symlink_to("nothing")), "found nothing"),
    "a link to itself": (foreign(lambda path: path.symlink_to("s")), "found nothing"),
    "an unfinished build": (
        foreign(lambda path: Work(path).building.mkdir(parents=True)),
        "is not finished; run the same build command",
    ),
    "an unfinished build with an empty directory": (
        foreign(lambda path: (path.mkdir(), Work(path).building.mkdir(parents=True))),
        "run the same build command again",
    ),
    "a path below a file": (lambda folder: ((folder / "f").write_bytes(b""), folder / "f" / "s")[1], "found nothing"),
    "a name too long": (lambda folder: folder / ("x" * 5000), "File name too long"),
    "a name with a zero byte": (lambda folder: folder / "a\0b", "found nothing"),
    "the root": (lambda folder: Path("/"), "found a directory without manifest.json"),
}


@pytest.mark.parametrize(("prepare", "found"), NO_STORES.values(), ids=NO_STORES)
def test_a_path_that_is_not_a_store_is_reported(tmp_path: Path, prepare: Callable[[Path], Path], found: str) -> None:
    """P9: the message says what is at the path, and what to give or run."""
    path = prepare(tmp_path)
    with pytest.raises(TokenStoreError) as caught:
        open_store(path)
    assert not isinstance(caught.value, CorruptionError | ConfigError)
    text = str(caught.value)
    assert found in text
    assert str(path) in text
    assert re.search(r"; (give the directory|run the same build|is this path|check the path)", text)
    with pytest.raises(TokenStoreError):
        tokenstore.Plan.of({"web": path}, sequence_length=8, global_batch_size=4, num_steps=1, packing="concat")
    (finding,) = verify(path)
    assert (finding.file, finding.place) == (str(path), "open")
    assert found in finding.found


def test_a_finished_store_beside_an_unfinished_build_opens(tmp_path: Path) -> None:
    """P8: an unfinished rebuild does not hide the existing store."""
    path = make_small(tmp_path / "s")
    (tmp_path / "s.tokenstore/building").mkdir(parents=True)
    assert len(open_store(path)) == 30
