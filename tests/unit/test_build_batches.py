"""Batches across inputs: how often the tokenizer is called, and that records are counted for their input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.building import Build, as_bytes, documents
from tokenstore.builder import making
from tokenstore.builder.documents import collect as batches
from tokenstore.builder.reading import units


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The slices of the documents of every batch, in order."""
    seen: list[tuple[int, ...]] = []

    def noting(out: dict, encoded: object, batch: batches.Batch, partitions: dict[str, int]) -> None:
        seen.append(tuple(batch.slices))
        write(out, encoded, batch, partitions)

    write = making._write
    monkeypatch.setattr(making, "_write", noting)
    return seen


def test_small_files_are_tokenized_together(build: Build, tmp_path: Path, calls: list) -> None:
    """A thousand files make one call of the tokenizer, and the documents are in order."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [f"text {i}" for i in range(300)]
    for i, text in enumerate(texts):
        (folder / f"{i:03d}.txt").write_text(text)
    result = build(folder)
    assert documents(result.path) == as_bytes(*texts)
    assert calls == [tuple(range(300))]


def test_records_are_counted_for_their_input_in_shared_batches(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, calls: list
) -> None:
    """inputs.jsonl counts documents, empty, short and bad records for the right input, whatever batch they were in."""
    rows = {"a.jsonl": ["long enough", "", "x"], "b.jsonl": [{"no": 1}, "long enough"], "c.jsonl": ["", "", "y"]}
    for name, records in rows.items():
        jsonl(name, records)
    result = build(*(tmp_path / name for name in rows), min_tokens=2, max_bad=1)
    lines = [json.loads(line) for line in (result.path / "inputs.jsonl").read_bytes().splitlines()]
    found = [[line[name] for name in ("lines", "documents", "empty", "short", "bad")] for line in lines]
    assert found == [[3, 1, 1, 1, 0], [2, 1, 0, 0, 1], [3, 0, 2, 1, 0]]
    assert len(calls) == 1


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch starts a source; batches are small."""
    monkeypatch.setattr(batches, "_BATCH_CHARS", 100)
    seen: list[bool] = []
    iterate = batches.UnitBatches.__iter__

    def noting(self: batches.UnitBatches) -> object:
        for batch in iterate(self):
            seen.append(batch.starts_source)
            yield batch

    monkeypatch.setattr(batches.UnitBatches, "__iter__", noting)
    return seen


def test_a_large_input_is_checked_as_a_separate_source(
    build: Build, tmp_path: Path, calls: list, sources: list[bool]
) -> None:
    """The reference checks more of the first batch of a source. A large input starts a source, small ones share one."""
    for i, size in enumerate((10, 10, 150, 10, 10)):
        (tmp_path / f"{i}.txt").write_text("t" * size)
    build(*(tmp_path / f"{i}.txt" for i in range(5)))
    assert calls == [(0, 1), (2,), (3, 4)]
    assert sources == [True, True, True]


def test_an_input_in_several_slices_is_one_source(
    build: Build, jsonl: Callable[..., Path], sources: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its first batch starts it. Each slice is a unit; if each started a source, a tenth of a long input's would be checked."""
    monkeypatch.setattr(units, "MIN_UNIT_BYTES", 1000)
    build(jsonl("one.jsonl", ["t" * 90] * 40))
    assert len(sources) > 8
    assert sources == [True] + [False] * (len(sources) - 1)
