"""The life of a store: opened and checked, closed, pickled, shared among threads, replaced."""

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import write_store
from tests.support.stores.forge import replace
from tests.support.stores.opened import DOCUMENTS, maps_of, open_files
from tokenstore import tokenizer
from tokenstore.builder import BuildOptions, build_store
from tokenstore.errors import CorruptionError
from tokenstore.store import open_store, store_files
from tokenstore.store.maps import MapCache
from tokenstore.tokenizer import load_tokenizer


def test_a_closed_store_maps_again_when_read(store_path: Path) -> None:
    """Closing releases the maps; held arrays stay valid; reading again maps again."""
    store = open_store(store_path)
    held = store[3]
    list(store)
    assert maps_of(store_path) > 1
    store.close()
    del store
    assert held.tolist() == DOCUMENTS[3]
    del held
    assert (maps_of(store_path), open_files(store_path)) == (0, 0)
    store = open_store(store_path)
    store.close()
    assert [d.tolist() for d in store] == DOCUMENTS
    store.close()


def test_a_store_is_a_context_manager(store_path: Path) -> None:
    """Leaving the block closes the store, also after an error."""
    with open_store(store_path) as store:
        list(store)
    assert (maps_of(store_path), open_files(store_path)) == (0, 0)

    def fail() -> None:
        with open_store(store_path) as store:
            list(store)
            raise KeyError("an error of the caller")

    with pytest.raises(KeyError, match="an error of the caller"):
        fail()
    assert (maps_of(store_path), open_files(store_path)) == (0, 0)


def test_a_pickled_store_is_its_path_and_opens_again(make_store: Callable[..., Path]) -> None:
    """P7: a store of many shards has a small pickle, also after reading, and opens as the same store."""
    path = make_store("many", [[1, 2, 3]] * 500, shard_bytes=1)
    with open_store(path, check="lazy") as store:
        list(store)
        data = pickle.dumps(store)
        assert len(data) < 1024 < 64 * 1024
        again = pickle.loads(data)
        assert (again.path, again.digest, len(again)) == (store.path, store.digest, 500)
        assert again[499].tolist() == [1, 2, 3]


def test_a_pickled_store_keeps_how_it_is_checked(store_path: Path) -> None:
    """A store opened with check="lazy" is opened lazily again; one with check="sizes" is checked again."""
    lazy, sizes = (pickle.dumps(open_store(store_path, check=check)) for check in ("lazy", "sizes"))
    replace(store_path / "tokens-00001.bin", b"")
    assert len(pickle.loads(lazy)) == 50
    with pytest.raises(CorruptionError, match=r"tokens-00001\.bin"):
        pickle.loads(sizes)


def test_opening_a_rebuilt_store_reads_the_new_bytes(tmp_path: Path) -> None:
    """P9: also while the old one under the same name is still open."""
    path = write_store(tmp_path / "web", [[1, 2], [3]])
    old = open_store(path)
    assert old[0].tolist() == [1, 2]
    shutil.rmtree(path)
    write_store(path, [[4, 5], [6]])
    with open_store(path) as new:
        assert [document.tolist() for document in new] == [[4, 5], [6]]


def test_many_threads_read_one_store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store can be shared among threads, also while its maps are evicted."""
    monkeypatch.setattr(store_files, "_maps", MapCache(2))
    store = open_store(store_path)
    order = np.random.default_rng(0).integers(0, len(store), 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: store[i].tolist(), order)) == [DOCUMENTS[i] for i in order]


def test_check_is_one_of_two_words(store_path: Path) -> None:
    """A wrong argument is a ValueError that lists the valid ones."""
    with pytest.raises(ValueError, match="check: expected 'sizes' or 'lazy', found 'all'"):
        open_store(store_path, check="all")


@pytest.mark.parametrize("size", [0, 1, -2, 2])
def test_a_shard_of_a_wrong_size_is_detected(store_path: Path, size: int) -> None:
    """P9: with check="sizes" at open; with check="lazy" when the shard is first mapped, and others can be read."""
    shard = store_path / "tokens-00001.bin"
    data = shard.read_bytes()
    replace(shard, (data + b"\0\0")[: len(data) + size] if abs(size) == 2 else data[:size])
    message = rf"file size: expected {len(data)} bytes, found \d+ \(.*tokens-00001\.bin\); copy or build"
    with pytest.raises(CorruptionError, match=message):
        open_store(store_path)
    with open_store(store_path, check="lazy") as store:
        entry = store.shards()[1]
        assert store[0].tolist() == DOCUMENTS[0]
        assert store[-1].tolist() == DOCUMENTS[-1]
        with pytest.raises(CorruptionError, match=message):
            store[entry.first_document]


def test_a_store_loads_its_tokenizer_once(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`decode` took .7 s per call with a large vocabulary; a closed store releases it, a pickle does not contain it."""
    source = tmp_path / "a.txt"
    source.write_text("some text")
    built = build_store(BuildOptions((str(source),), tmp_path / "built", str(tokenizer_file)))
    loaded = []
    monkeypatch.setattr(tokenizer, "load_tokenizer", lambda *a, **k: loaded.append(0) or load(*a, **k))
    load = load_tokenizer
    store = open_store(built.path)
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(store.decode, [0] * 20))
    assert (texts, len(loaded)) == ({"some text<|endoftext|>"}, 1)
    again = pickle.loads(pickle.dumps(store))
    assert (again._tokenizer, again.decode(0), len(loaded)) == (None, *texts, 2)
    store.close()
    assert (store._tokenizer, store.decode(0), len(loaded)) == (None, *texts, 3)
