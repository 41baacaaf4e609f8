"""The files of cached blocks: whole or absent, removed by the last process that needs them, and nothing else is removed."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from tests.support.processes.privileges import open_folder, unprivileged
from tokenstore.store.block_ranges import Block
from tokenstore.store.remote.block_cache import BlockCache
from tokenstore.store.remote.block_files import BlockFiles
from tokenstore.store.remote.group import Group
from tokenstore.store.remote.mirror import MirrorWarning
from tokenstore.store.remote.mirror_file import UnusableMirror


def block(number: int) -> Block:
    """A block of two ranges, 100 bytes, that sequences [number, number + 9] use."""
    return Block((number, number + 9), ((0, 1000 * number, 1000 * number + 60), (1, 0, 40)))


def bytes_of(file: int, start: int, stop: int, is_wanted: Any = None) -> np.ndarray:
    """What a bucket returns."""
    return ((np.arange(start, stop) + 7 * file) % 251).astype(np.uint8)


def read(files: BlockFiles, number: int) -> bytes | None:
    """The first 10 bytes of a block."""
    out = np.zeros(10, np.uint8)
    return out.tobytes() if files.read(block(number).key, 100, [(0, out)]) else None


def test_a_block_is_whole_or_absent(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path / "x")
    assert read(files, 0) is None
    files.write((0, 9), [bytes_of(0, 0, 60), bytes_of(1, 0, 40)])
    assert read(BlockFiles(tmp_path / "x"), 0) == bytes(range(10))
    path = tmp_path / "x" / "0-9.block"
    os.truncate(path, 50)
    assert read(files, 0) is None
    assert not files.has((0, 9), 100)
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert read(files, 0) is None


def test_a_part_is_found_in_its_range(tmp_path: Path) -> None:
    """And nothing that the block has only in part."""
    found = block(3)
    assert [found.offset(0, 3000, 3060), found.offset(0, 3010, 3020), found.offset(1, 30, 40)] == [0, 10, 90]
    assert [found.offset(0, 2999, 3010), found.offset(0, 3050, 3061), found.offset(2, 0, 1)] == [None] * 3


@contextmanager
def needing(folder: Path, start: int, stop: int | None) -> Iterator[Any]:
    """Another process that needs the blocks of sequences [start, stop), until it is killed."""

    def run(ready: Any) -> None:
        files = BlockFiles(folder)
        files.need(start, stop)
        ready.set()
        Event().wait(60)

    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=run, args=(ready,))
    process.start()
    assert ready.wait(60)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_the_last_process_that_needs_a_block_removes_it(tmp_path: Path) -> None:
    """Also one that was killed needs nothing."""
    files = BlockFiles(tmp_path / "x")
    for number in (0, 10, 20):
        files.write(block(number).key, [np.zeros(100, np.uint8)])
    files.need(0, 100)
    with needing(tmp_path / "x", 5, 20) as process:
        assert [files.remove(block(number).key) for number in (0, 10, 20)] == [False, False, True]
        process.kill()
        process.join()
        assert files.remove((0, 9))
    assert files.present() == [(10, 19)]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """Blocks that nobody needs, and files that nobody writes any more."""
    files, folder = BlockFiles(tmp_path / "x"), tmp_path / "x"
    for number in (0, 10, 20, 30):
        files.write(block(number).key, [np.zeros(100, np.uint8)])
    kept = ["40-49.block.1-ab.tokenstore-tmp", "notes.txt", "1-2.block.old", "x-1-2.block"]
    for name in (*kept, "50-59.block.1-ab.tokenstore-tmp"):
        (folder / name).write_text("x")
    os.utime(folder / "50-59.block.1-ab.tokenstore-tmp", (1, 1))
    with needing(folder, 25, None):
        files.remove_leftovers({(10, 19)})
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*kept, "10-19.block", "20-29.block", "30-39.block", "in-use", "locks"]
    )


def wait_for(cache: BlockCache, number: int) -> bytes:
    """The last 10 bytes of a block, when it has arrived."""
    group, out = Group(), np.zeros(10, np.uint8)
    cache.request(block(number), [(1, 30, out)], group)
    group.wait(20)
    return out.tobytes()


def test_blocks_are_brought_and_dropped(tmp_path: Path) -> None:
    """Each is fetched once; what waits for a block that was dropped still gets it, and it is not kept."""
    fetched: list[int] = []
    go_on = Event()

    def fetch(file: int, start: int, stop: int, is_wanted: Any) -> np.ndarray:
        fetched.append(start)
        assert go_on.wait(20)
        return bytes_of(file, start, stop)

    files = BlockFiles(tmp_path / "x")
    cache = BlockCache(files, fetch)
    for number in (0, 10):
        cache.bring(block(number))
    group, out = Group(), np.zeros(10, np.uint8)
    assert not cache.request(block(0), [(0, 20, out)], group)
    cache.drop(10, 20, [block(0)])
    go_on.set()
    group.wait(20)
    assert out.tobytes() == bytes(range(20, 30))
    assert wait_for(cache, 10) == bytes_of(1, 30, 40).tobytes()
    assert files.present() == [(10, 19)]
    assert sorted(fetched) == [0, 0, 0, 10_000]
    cache.drop(20, None, [block(10)])
    assert files.present() == []


def test_an_error_is_raised_where_the_block_is_waited_for(tmp_path: Path) -> None:
    """And the next request fetches the block again."""
    errors = [OSError("first"), OSError("second")]

    def fetch(file: int, start: int, stop: int, is_wanted: Any) -> np.ndarray:
        if errors:
            raise errors.pop(0)
        return bytes_of(file, start, stop)

    cache = BlockCache(BlockFiles(tmp_path / "x"), fetch)
    for text in ("first", "second"):
        with pytest.raises(OSError, match=text):
            wait_for(cache, 0)
    assert wait_for(cache, 0) == bytes_of(1, 30, 40).tobytes()


def test_blocks_are_used_without_being_kept_if_the_disk_fails(tmp_path: Path) -> None:
    """With one warning. What waits is served; nothing is fetched ahead any more."""
    cache = BlockCache(BlockFiles(tmp_path / "x"), bytes_of)
    (tmp_path / "x").rename(tmp_path / "y")
    cache.bring(block(0))
    assert wait_for(cache, 0) == bytes_of(1, 30, 40).tobytes()
    assert not cache.is_usable
    with pytest.warns(MirrorWarning, match=r"cannot write .*0-9\.block: No such file"):
        cache.warn()
    cache.warn()


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with open_folder() as folder:
        BlockFiles(folder / "x")
        (folder / "x").chmod(0o555)
        with unprivileged(), pytest.raises(UnusableMirror, match="cannot write"):
            BlockFiles(folder / "x")
