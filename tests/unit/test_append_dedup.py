"""Appending to deduplicated stores: what the store has already is left out, across versions, splits and merges (FMT-18)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenstore
from tests.support.stores.building import Build, documents
from tokenstore.builder import BuildOptions, append_store, build_store, dedup, merge
from tokenstore.builder.split import content_hash

OLD, MORE = ["a", "b", "a", "c", "d"], ["d", "e", "a", "e", "f"]


def texts(path: Path) -> list[str]:
    """The texts of all documents."""
    with tokenstore.open_store(path) as store:
        return [store.decode(i).replace("<|endoftext|>", "") for i in range(len(store))]


@pytest.mark.parametrize("range_documents", [1, 3, 1000])
def test_new_documents_that_the_store_has_are_left_out(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, range_documents: int
) -> None:
    """The documents are those of one build of all inputs, whatever the ranges of hashes; counts say what was left out."""
    monkeypatch.setattr(dedup, "_RANGE_DOCUMENTS", range_documents)
    old, more = jsonl("old.jsonl", OLD), jsonl("more.jsonl", MORE)
    store = build(old, dedup="exact").path
    result = append_store(store, [str(more)])
    assert result.new_documents == 2
    assert documents(store) == documents(build(old, more, output="whole", dedup="exact").path)
    assert texts(store) == ["a", "b", "c", "d", "e", "f"]
    assert result.counts["duplicates"] == 1 + 3
    assert tokenstore.verify(store) == []
    with tokenstore.open_store(store) as opened:
        expected = [content_hash(text.encode()) for text in texts(store)]
        assert opened.content_hashes().tolist() == [list(each) for each in expected]
    last = append_store(store, [str(jsonl("third.jsonl", ["f", "g", "b"]))])
    assert (last.new_documents, texts(store)[-1]) == (1, "g")


def test_an_append_of_duplicates_alone_changes_nothing(build: Build, jsonl: Callable[..., Path]) -> None:
    """It is an error, as an append without documents is."""
    store = build(jsonl("old.jsonl", OLD), dedup="exact").path
    with pytest.raises(tokenstore.errors.BuildError, match="found none"):
        append_store(store, [str(jsonl("more.jsonl", ["b", "a"]))])
    assert texts(store) == ["a", "b", "c", "d"]


def test_splits_are_compared_together(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """Equal documents go to the same split, so no split gets one that another has."""
    old, more = (
        jsonl("old.jsonl", [str(i % 30) for i in range(60)]),
        jsonl("more.jsonl", [str(i) for i in range(20, 50)]),
    )
    options = {"dedup": "exact", "split": "train=0.5,test=0.5"}
    build_store(BuildOptions((str(old),), tmp_path / "store", "bytes", **options))
    assert append_store(tmp_path / "store", [str(more)]).new_documents == 20
    build_store(BuildOptions((str(old), str(more)), tmp_path / "whole", "bytes", **options))
    for name in ("train", "test"):
        assert texts(tmp_path / "store" / name) == texts(tmp_path / "whole" / name)


@pytest.mark.parametrize("options", [{}, {"shuffle_documents": 5}, {"group_bytes": 64 * 20}], ids=str)
def test_every_way_to_build_keeps_the_hashes(
    build: Build, jsonl: Callable[..., Path], options: dict[str, Any], small_units: Callable[[int], None]
) -> None:
    """Shuffled or in groups, each hash is that of its document."""
    small_units(40)
    path = build(jsonl("old.jsonl", [f"text {i % 40}" for i in range(60)]), dedup="exact", **options).path
    with tokenstore.open_store(path) as store:
        hashes = store.content_hashes()
        assert len(hashes) == len(store) == 40
        assert [tuple(each) for each in hashes.tolist()] == [content_hash(text.encode()) for text in texts(path)]


def test_merged_stores_keep_hashes_if_all_have_them(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """The documents of stores without hashes cannot be compared, so then the merged store has none."""
    first, second = (build(jsonl(f"{x}.jsonl", [x, "same"]), output=x, dedup="exact").path for x in "ab")
    plain = build(jsonl("c.jsonl", ["c"]), output="c").path
    both = tokenstore.open_store(merge([first, second], tmp_path / "both").path)
    parts = [tokenstore.open_store(each).content_hashes() for each in (first, second)]
    assert both.content_hashes().tolist() == np.concatenate(parts).tolist()
    assert not tokenstore.open_store(merge([first, plain], tmp_path / "some").path).manifest.has_content_hashes


def test_a_wrong_size_of_the_hashes_is_found(build: Build, jsonl: Callable[..., Path]) -> None:
    """FMT-18: sixteen bytes per document."""
    store = build(jsonl("old.jsonl", OLD), dedup="exact").path
    path = store / "content_hashes.bin"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tokenstore.errors.CorruptionError, match=r"content_hashes\.bin"):
        tokenstore.open_store(store)
