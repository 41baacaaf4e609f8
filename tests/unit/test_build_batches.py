"""Batches across inputs: how often the tokenizer is called, and that every input's records are counted as its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.building import Build, as_bytes, documents
from tokenstore.builder import part
from tokenstore.builder.documents import collect as batches


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The slices of the documents of every batch."""
    seen: list[tuple[int, ...]] = []

    def noting(out: dict, encoded: object, batch: batches.Batch) -> None:
        seen.append(tuple(batch.slices))
        write(out, encoded, batch)

    write = part._write
    monkeypatch.setattr(part, "_write", noting)
    return seen


def test_small_files_are_tokenized_together(build: Build, tmp_path: Path, calls: list) -> None:
    """A thousand files are one call of the tokenizer, not a thousand, and the documents come in order."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [f"text {i}" for i in range(300)]
    for i, text in enumerate(texts):
        (folder / f"{i:03d}.txt").write_text(text)
    result = build(folder)
    assert documents(result.path) == as_bytes(*texts)
    assert calls == [tuple(range(300))]


def test_a_batch_over_several_inputs_counts_every_record_for_its_own(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, calls: list
) -> None:
    """Documents, empty, short and bad ones in inputs.jsonl are those of the input, whatever batch they were in."""
    rows = {"a.jsonl": ["long enough", "", "x"], "b.jsonl": [{"no": 1}, "long enough"], "c.jsonl": ["", "", "y"]}
    for name, records in rows.items():
        jsonl(name, records)
    result = build(*(tmp_path / name for name in rows), min_tokens=2, max_bad=1)
    lines = [json.loads(line) for line in (result.path / "inputs.jsonl").read_bytes().splitlines()]
    found = [[line[name] for name in ("lines", "documents", "empty", "short", "bad")] for line in lines]
    assert found == [[3, 1, 1, 1, 0], [2, 1, 0, 0, 1], [3, 0, 2, 1, 0]]
    assert len(calls) == 1


def test_a_large_input_is_a_source_of_its_own(
    build: Build, tmp_path: Path, calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of the first batch of a source is checked against the reference: a large input begins one, small ones share one."""
    monkeypatch.setattr(batches, "_BATCH_CHARS", 100)
    sources: list[bool] = []
    iterate = batches.UnitBatches.__iter__

    def noting(self: batches.UnitBatches) -> object:
        for batch in iterate(self):
            sources.append(batch.starts_source)
            yield batch

    monkeypatch.setattr(batches.UnitBatches, "__iter__", noting)
    for i, size in enumerate((10, 10, 150, 10, 10)):
        (tmp_path / f"{i}.txt").write_text("t" * size)
    build(*(tmp_path / f"{i}.txt" for i in range(5)))
    assert calls == [(0, 1), (2,), (3, 4)]
    assert sources == [True, True, True]
