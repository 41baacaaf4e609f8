"""Fixtures for unit tests: builds of small corpora in the test process, and stores to read."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import BAD, Build
from tests.support.stores.masked import SMALL, write_masked
from tests.support.stores.opened import DOCUMENTS
from tokenstore.builder import BuildOptions, BuildResult, build_store, pipeline
from tokenstore.builder.reading.units import cut_units
from tokenstore.store import Store, open_store


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A function that builds inputs into a store and verifies it. The default tokenizer is `bytes`."""

    def run(*inputs: object, output: str | Path = "store", note: Callable = print, **options: object) -> BuildResult:
        wanted = BuildOptions(tuple(map(str, inputs)), tmp_path / output, **{"tokenizer": "bytes", **options})
        result = build_store(wanted, note=note)
        assert tokenstore.verify(result.path) == []
        return result

    return run


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that makes later builds cut their inputs into units of a given number of bytes."""
    return lambda unit_bytes: monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=unit_bytes))


@pytest.fixture
def notes() -> list[str]:
    """An empty list for notes: build(..., note=notes.append)."""
    return []


@pytest.fixture
def two_units(jsonl: Callable[..., Path], small_units: Callable[[int], None]) -> tuple[Path, Path]:
    """Two inputs of one unit each. The second holds a bad record, so a build fails after the first unit."""
    small_units(3000)
    return jsonl("in/a.jsonl", TEXTS), jsonl("in/b.jsonl", [*TEXTS, BAD])


@pytest.fixture
def store_path(make_store: Callable[..., Path]) -> Path:
    """The path of a store of DOCUMENTS in shards of about 150 tokens."""
    return make_store("web", DOCUMENTS, shard_bytes=300)


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    """The open store of DOCUMENTS."""
    with open_store(store_path) as opened:
        yield opened


@pytest.fixture
def small_masked(tmp_path: Path) -> Path:
    """The path of a store of SMALL with its loss masks."""
    return write_masked(tmp_path / "small", SMALL, shard_bytes=20)
