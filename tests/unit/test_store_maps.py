"""Maps of a store's files: how many stay open, which is evicted first, limits of the system, forks."""

import ctypes
import errno
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.stores.opened import maps_of, open_files
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import maps, open_store, store_files, writing
from tokenstore.store.files import identity_of
from tokenstore.store.maps import MapCache, map_array, sparse_array
from tokenstore.store.writing import new_mapped_file


def test_ten_thousand_shards_need_no_descriptor_each(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: opening maps only the boundaries, however many shards there are."""
    path = make_store("many", [[i % 300] for i in range(300)], shard_bytes=2)
    monkeypatch.setattr(store_files, "_maps", MapCache(4))
    with open_store(path) as store:
        assert len(store.shards()) == 300
        assert len(store_files._maps._maps) == 1
        assert (maps_of(path), open_files(path)) == (1, 0)


@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_maps_and_descriptors_are_bounded(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    """P7: reading a store of many shards keeps at most the capacity mapped and open."""
    documents = [[i, i, 7] for i in range(100)]
    path = make_store("many", documents, shard_bytes=6)
    monkeypatch.setattr(store_files, "_maps", MapCache(capacity))
    store = open_store(path)
    most_cached = most_maps = 0
    for i in (*range(100), *range(0, 100, 7), *range(99, -1, -1)):
        assert store[i].tolist() == documents[i]
        most_cached = max(most_cached, len(store_files._maps._maps))
        most_maps = max(most_maps, maps_of(path))
        assert open_files(path) == 0
    assert most_cached == capacity
    assert most_maps <= capacity
    store.close()
    assert maps_of(path) == 0


def test_the_least_recently_used_map_is_evicted() -> None:
    """A held array stays readable after its map was evicted."""
    cache, arrays = MapCache(2), [np.full(2, number) for number in range(3)]
    cache.put(7, 0, arrays[0])
    cache.put(7, 1, arrays[1])
    assert cache.get(7, 0) is arrays[0]
    cache.put(7, 2, arrays[2])
    assert (list(cache._maps), cache.get(7, 1)) == ([(7, 0), (7, 2)], None)
    cache.put(8, 1, arrays[1])
    assert list(cache._maps) == [(7, 2), (8, 1)]
    assert cache.put(8, 1, arrays[0]) is arrays[1]  # a thread that comes second takes what is there
    cache.forget(7)
    cache.forget(8)
    assert not cache._maps


def test_maps_are_forgotten_by_owner() -> None:
    """All maps of one owner and no others, also after some were evicted; the owner's entry is removed too."""
    cache, array = MapCache(5), np.zeros(1)
    keys = [(owner, file) for owner in range(3) for file in range(2)]
    for owner, file in keys:  # the first one has to go for the last
        cache.put(owner, file, array)
    cache.forget(1)
    cache.forget(99)
    assert list(cache._maps) == [keys[1], *keys[4:]]
    assert (cache.files(0), cache.files(1), sorted(cache.files(2))) == ((1,), (), [0, 1])
    cache.forget(0)
    cache.forget(2)
    assert (len(cache._maps), cache._files) == (0, {})


def test_a_failed_map_leaves_the_cache_as_it_was(store_path: Path) -> None:
    """A file of the wrong size is refused every time, and never cached."""
    (store_path / "tokens-00000.bin").unlink()
    (store_path / "tokens-00000.bin").write_bytes(b"123")
    store = open_store(store_path, check="lazy")
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"file size: expected \d+ bytes, found 3"):
            store.shard(0)
    assert store_files._maps.files(store._owner) == (store.number_of("boundaries.bin"),)


def test_a_store_that_nobody_holds_keeps_nothing_mapped(store_path: Path) -> None:
    """Also without `close`; two stores of one path have separate maps."""
    first, second = open_store(store_path), open_store(store_path)
    list(first)
    list(second)
    maps = maps_of(store_path)
    second.close()
    assert maps_of(store_path) == maps // 2
    del first
    assert maps_of(store_path) == 0


@pytest.mark.parametrize(
    ("code", "text", "advice"),
    [
        (errno.EMFILE, "Too many open files", "check limits on maps"),
        (errno.ENOMEM, "Cannot allocate", "check limits on maps"),
        (
            errno.ENODEV,
            "No such device",
            "its file system does not support memory maps",
        ),  # as some network file systems
    ],
)
def test_a_limit_of_the_system_is_reported(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, text: str, advice: str
) -> None:
    """P9: if no more files can be mapped, the error names the file and the limits to check."""
    store = open_store(store_path)

    def refuse(*arguments: object) -> int:
        ctypes.set_errno(code)
        return maps._MAP_FAILED

    monkeypatch.setattr(maps, "_library", lambda: SimpleNamespace(mmap=refuse, munmap=None))
    with pytest.raises(TokenStoreError, match=rf"{text}.*tokens-00000\.bin\); {advice}"):
        store.shard(0)


def test_no_room_for_a_map_is_the_systems_own_error(store_path: Path) -> None:
    """P9: the same with a real limit on the memory of the process."""
    code = (
        "import resource, sys, tokenstore; store = tokenstore.open_store(sys.argv[1]);"
        "resource.setrlimit(resource.RLIMIT_AS, (1, resource.RLIM_INFINITY)); store.shard(0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store_path)], capture_output=True, text=True)
    assert re.search(r"TokenStoreError: .*Cannot allocate memory.*tokens-00000\.bin\); check limits", done.stderr)


def test_arrays_are_read_only_and_live_as_long_as_they_are_held(tmp_path: Path) -> None:
    """Writing is an error; the memory is released with the last array, including views."""
    (tmp_path / "a").write_bytes(bytes(range(100)) * 100)
    array, _ = map_array(tmp_path / "a", np.dtype("u1"), 10_000)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    part = array[50:60]
    del array
    assert part.tolist() == list(range(50, 60))
    assert maps_of(tmp_path) == 1
    del part
    assert maps_of(tmp_path) == 0


def test_a_map_is_exactly_the_file(tmp_path: Path) -> None:
    """FMT-1: every array begins at byte 0 and ends with the file."""
    (tmp_path / "a").write_bytes(np.arange(5, dtype="<u4").tobytes())
    array, identity = map_array(tmp_path / "a", np.dtype("<u4"), 5)
    assert (array.tolist(), identity) == ([0, 1, 2, 3, 4], identity_of(tmp_path / "a"))
    for count in (4, 6):
        with pytest.raises(CorruptionError, match=f"expected {4 * count} bytes, found 20"):
            map_array(tmp_path / "a", np.dtype("<u4"), count)


def test_a_batch_over_more_shards_than_descriptors(make_store: Callable[..., Path]) -> None:
    """P7: a map holds no descriptor, so a low limit on open files does not limit shards."""
    path = make_store("many", [[i % 299 + 1] * 8 for i in range(300)], shard_bytes=16, length_index=True)
    code = (
        "import resource, sys, tokenstore;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "plan = tokenstore.Plan.of(sys.argv[1], sequence_length=8, global_batch_size=300);"
        "print(plan.batch(0)['input_ids'].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(300, 8)\n", "")


def test_a_fork_while_a_thread_maps_does_not_hang_the_child() -> None:
    """The lock on the maps is new in a forked child, whichever thread held it in the parent."""
    code = (
        "import os, threading; from tokenstore.store.maps import MapCache; cache = MapCache(4);"
        "holder = threading.Thread(target=cache._lock.acquire); holder.start(); holder.join(); child = os.fork();\n"
        "if child == 0:\n    cache.get(0, 0); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "7", done.stderr


def test_a_file_system_without_writable_maps_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a length index is filled in a map; if that is impossible, the message says what to do instead."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(writing.mmap, "mmap", refuse)
    message = r"file: the file system of .* does not support writable memory maps; write the store on a local"
    with pytest.raises(TokenStoreError, match=message), new_mapped_file(tmp_path / "length_index.bin", 64):
        pytest.fail("no memory to fill")


def test_a_sparse_array_takes_memory_only_where_it_is_written() -> None:
    """Huge pages took 20 MB for arrays of which some kilobytes were used."""
    array = sparse_array((16, 1 << 20), np.int64)
    array[::4, 0] = 7
    assert (array.shape, array.dtype) == ((16, 1 << 20), np.int64)
    assert (array[::4, 0] == 7).all()
    assert not array[1::4, :100].any()
    start = hex(array.ctypes.data)[2:]
    rows = Path("/proc/self/smaps").read_text().split("VmFlags:")
    [mapped] = [row for row in rows if f"\n{start}-" in row]
    assert int(re.search(r"^Rss: +(\d+) kB$", mapped, re.M).group(1)) < 1024


def test_a_sparse_array_that_does_not_fit_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot allocate 1152921504606846976 bytes"):
        sparse_array((1 << 57,), np.int64)
