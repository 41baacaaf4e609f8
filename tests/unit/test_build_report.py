"""`build_store`: what a build reports about its inputs, in the store, in notes and as progress."""

import json
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.data.texts import TEXTS
from tests.support.stores.building import Build, counts, mixed_corpus
from tokenstore.builder import BuildOptions, BuildProgress, build_store
from tokenstore.builder.assemble import Tally
from tokenstore.builder.reading.inputs import InputFile


def test_a_store_records_what_was_in_each_input(build: Build, tmp_path: Path) -> None:
    """inputs.jsonl has a line for every file, in order: size, lines, documents, empty and bad ones."""
    result = build(mixed_corpus(tmp_path / "in"), max_bad=3)
    rows = [json.loads(line) for line in (result.path / "inputs.jsonl").read_text().splitlines()]
    assert [(r["file"], r["lines"], r["documents"], r["empty"], r["bad"]) for r in rows] == [
        ("a.jsonl", 51, 48, 1, 1),
        ("b/one.txt", 1, 1, 0, 0),
        ("b/three.txt", 1, 0, 0, 1),
        ("b/two.txt", 1, 0, 1, 0),
        ("c.jsonl.gz", 7, 6, 0, 1),
        ("d.txt.gz", 1, 1, 0, 0),
        ("e.jsonl", 1, 1, 0, 0),
    ]
    assert [r["num_bytes"] for r in rows] == [(tmp_path / "in" / r["file"]).stat().st_size for r in rows]
    assert result.counts == {"input files": 7, **counts(documents=57, empty=2, bad=3)}


def test_files_of_other_endings_in_a_folder_are_noted(build: Build, tmp_path: Path, notes: list[str]) -> None:
    """They are skipped, and a note counts them."""
    mixed_corpus(tmp_path / "in")
    (tmp_path / "in" / "c.py").write_text("pass")
    build(tmp_path / "in", max_bad=3, note=notes.append)
    assert notes == ["skipped 1 file with other endings (1 .py)"]


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_grows_to_all_bytes_documents_and_tokens(
    jsonl: Callable[..., Path], tmp_path: Path, small_units: Callable[[int], None], workers: int
) -> None:
    """Progress never decreases and ends with the store's numbers."""
    small_units(1000)
    source = jsonl("in.jsonl", TEXTS * 4)
    seen: list[BuildProgress] = []
    result = build_store(BuildOptions((str(source),), tmp_path / "store", "bytes", workers=workers), seen.append)
    size = source.stat().st_size
    assert seen[-1] == BuildProgress(size, size, result.num_documents, result.num_tokens)
    for before, after in pairwise(seen):
        assert before.num_bytes <= after.num_bytes
        assert before.num_tokens <= after.num_tokens


def test_the_counts_of_all_inputs_are_made_once_per_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of a million files spent minutes on making them again for each file."""
    files = [InputFile(Path(f"/in/{i}.txt"), f"{i}.txt", ".txt", "", 1, 0) for i in range(100)]
    tally = Tally(files, BytesIO())
    real, made = np.zeros, []
    monkeypatch.setattr(np, "zeros", lambda *arguments: (made.append(arguments), real(*arguments))[1])
    tally.count(0, np.array([3, 3, 5]))
    found = [json.loads(row)["documents"] for row in tally.inputs_file(0)]
    assert found == [2 if i == 3 else int(i == 5) for i in range(100)]
    assert len(made) == 1
