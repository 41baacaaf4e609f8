"""`build_store`: the same bytes for any workers, paths and units."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.texts import TEXTS
from tests.support.stores.building import Build, contents, mixed_corpus
from tokenstore.builder import part
from tokenstore.builder.documents import collect as batches


def test_the_bytes_do_not_depend_on_workers_or_paths(
    build: Build, tokenizer_file: Path, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P8: every file of the store is the same for 1, 2 and 3 workers, and for inputs with other paths and times."""
    small_units(500)
    here, there = mixed_corpus(tmp_path / "here"), mixed_corpus(tmp_path / "some/other/place")
    for path in there.rglob("*.*"):
        os.utime(path, (1, 1))
    options = {"tokenizer": str(tokenizer_file), "max_bad": 3, "shard_bytes": 2000}
    results = [
        build(here, output="one", workers=1, **options),
        build(here, output="two", workers=2, **options),
        build(there, output="three", workers=3, **options),
        build(there / "a.jsonl", there / "b", there / "[cde]*", output="four", **options),
    ]
    stores = [contents(result.path) for result in results]
    assert results[0].num_shards > 3
    assert stores[0] == stores[1] == stores[2] == stores[3]
    assert len({result.rejects.read_bytes() for result in results}) == 1


def test_the_bytes_do_not_depend_on_how_the_inputs_are_cut_into_units(
    build: Build, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P8: the size of a unit of work does not affect the store."""
    corpus = mixed_corpus(tmp_path / "in")
    whole = build(corpus, output="whole", max_bad=3, shard_bytes=600)
    for unit_bytes in (97, 5000):
        small_units(unit_bytes)
        cut = build(corpus, output=f"cut{unit_bytes}", max_bad=3, shard_bytes=600)
        assert contents(cut.path) == contents(whole.path)
        assert cut.rejects.read_bytes() == whole.rejects.read_bytes()


def test_large_texts_and_many_texts_are_tokenized_in_batches(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches bound memory and affect neither the documents nor how they are read."""
    source = jsonl("in.jsonl", TEXTS * 3)
    expected = contents(build(source, output="whole").path)
    for chars, count, read in ((1, 1024, 1), (300, 1024, 5), (1 << 20, 1, 7), (1 << 20, 5, 1 << 16)):
        monkeypatch.setattr(batches, "_BATCH_CHARS", chars)
        monkeypatch.setattr(batches, "_BATCH_DOCUMENTS", count)
        monkeypatch.setattr(part, "_BLOCK_DOCUMENTS", read)
        monkeypatch.setattr(part, "_BLOCK_TOKENS", 100 * read)
        assert contents(build(source, output=f"{chars} {count} {read}").path) == expected
