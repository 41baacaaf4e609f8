"""`build_store` with dedup="exact": only the first of equal documents."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.building import BAD, left_behind
from tests.support.stores.written import SPLITS, all_files, build_stores, json_lines, rows_of, texts_of, write_records
from tokenstore.builder import assemble, dedup, part
from tokenstore.errors import BadRecordsError, BuildError


def firsts_of(files: dict[str, list]) -> tuple[list[tuple[str, tuple[str, int]]], Counter[str]]:
    """(text, origin) of the texts that a set has not seen yet, and the number of the others per file."""
    seen: set[str] = set()
    kept, duplicates = [], Counter()
    for name, records in files.items():
        for number, record in enumerate(records, 1):
            if not isinstance(record, dict) or not record["text"]:
                continue
            if record["text"] in seen:
                duplicates[name] += 1
                continue
            seen.add(record["text"])
            kept.append((record["text"], (name, number)))
    return kept, duplicates


def write_all(folder: Path, files: dict[str, list]) -> list[Path]:
    return [write_records(folder / name, records) for name, records in files.items()]


def kept_of(path: Path) -> list[tuple[str, tuple[str, int]]]:
    return list(zip(texts_of(path), [row[3] for row in rows_of(path)], strict=True))


def repeated(count: int, different: int, seed: int = 0) -> list:
    """Records with few different texts, with bad, blank and empty ones in between."""
    rng = np.random.default_rng(seed)
    records: list = [{"text": f"text {n} " + "x" * int(n % 7)} for n in rng.integers(0, different, count)]
    for at in range(0, count, 13):
        records[at] = [BAD, None, {"text": ""}][at % 3]
    return records


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("buckets", [1, 8, 256])
def test_the_first_of_equal_texts_is_kept_across_files_units_and_buckets(
    tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, buckets: int, workers: int
) -> None:
    """Against a set: the same documents, order and origins; duplicates count for the file they are in."""
    files = {"a.jsonl": repeated(200, 90), "b.jsonl.gz": repeated(50, 120, 1), "sub/c.jsonl": repeated(150, 99, 2)}
    sources = write_all(tmp_path / "in", files)
    small_units(1200)
    monkeypatch.setattr(dedup, "_RANGE_DOCUMENTS", 400 // buckets)
    monkeypatch.setattr(part, "_BLOCK_DOCUMENTS", 17)
    spread: list[int] = []
    real = dedup._spread
    monkeypatch.setattr(dedup, "_spread", lambda *args: spread.append(args[2]) or real(*args))
    result = build_stores(tmp_path / "store", *sources, dedup="exact", max_bad=30, workers=workers)
    kept, duplicates = firsts_of(files)
    assert kept_of(result.path) == kept
    assert spread[0] >= buckets
    assert (spread[0] > 1) == (buckets > 1)
    assert result.counts["duplicates"] == duplicates.total() > 200
    rows = {row["file"]: row for row in json_lines(result.path / "inputs.jsonl")}
    assert {name: row["duplicates"] for name, row in rows.items()} == duplicates
    for name, row in rows.items():
        blank = sum(record is None for record in files[name])
        accounted = row["documents"] + row["duplicates"] + row["empty"] + row["bad"] + blank
        assert accounted == row["lines"] == len(files[name])
    assert left_behind(result.path) == ["rejects.jsonl"]


@settings(max_examples=20)
@given(
    words=st.lists(
        st.lists(st.sampled_from(["", "a", "b", "ab", "é", "e\u0301", "A", " a", "a\n"]), max_size=8),
        min_size=1,
        max_size=4,
    ),
    bucket=st.integers(1, 6),
    block=st.integers(1, 4),
)
def test_any_texts_against_a_set(
    tmp_path_factory: pytest.TempPathFactory, words: list[list[str]], bucket: int, block: int
) -> None:
    """Only identical texts are equal: case, spaces and Unicode form make a difference."""
    tmp_path = tmp_path_factory.mktemp("dedup")
    files = {f"{i}.jsonl": [{"text": word} for word in some] for i, some in enumerate(words)}
    sources = write_all(tmp_path, files)
    kept, duplicates = firsts_of(files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dedup, "_RANGE_DOCUMENTS", bucket)
        patched.setattr(part, "_BLOCK_DOCUMENTS", block)
        patched.setattr(part, "_BLOCK_TOKENS", block)
        if not kept:
            with pytest.raises(BuildError, match="expected at least one, found none"):
                build_stores(tmp_path / "store", *sources, dedup="exact")
            return
        result = build_stores(tmp_path / "store", *sources, dedup="exact")
    assert kept_of(result.path) == kept
    assert result.counts["duplicates"] == duplicates.total()


def test_the_bytes_are_those_of_a_build_without_the_duplicates(tmp_path: Path) -> None:
    """The store equals that of inputs without the duplicates."""
    records = [record for record in repeated(300, 60) if isinstance(record, dict) and record["text"]]
    seen: dict[str, dict] = {record["text"]: record for record in reversed(records)}
    clean = write_records(tmp_path / "clean.jsonl", [r for r in records if seen[r["text"]] is r])
    with_dedup = build_stores(tmp_path / "dedup", write_records(tmp_path / "in.jsonl", records), dedup="exact")
    assert with_dedup.digest == build_stores(tmp_path / "plain", clean).digest


def test_ids_and_splits_are_those_of_the_first(tmp_path: Path, small_units: Callable[[int], None]) -> None:
    """The first one's id is kept; splits are those of the build without dedup, each without its duplicates."""
    texts = [record["text"] for record in repeated(300, 80) if isinstance(record, dict) and record["text"]]
    source = write_records(tmp_path / "in.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    small_units(2000)
    options = {"id_field": "id", "split": SPLITS}
    whole = build_stores(tmp_path / "whole", source, **options)
    result = build_stores(tmp_path / "store", source, dedup="exact", **options)
    for before, after in zip(whole.splits, result.splits, strict=True):
        seen: dict[tuple, tuple] = {}
        for row in rows_of(before.path):
            seen.setdefault(tuple(row[0]), row)
        assert rows_of(after.path) == list(seen.values())
    assert result.num_documents == len(set(texts))
    assert result.counts["duplicates"] == len(texts) - len(set(texts))


def test_documents_of_tokens_are_equal_if_their_masks_are_too(tmp_path: Path) -> None:
    """The same ids with another mask are another document; without masks only the ids count."""
    rows = [([1, 2], [1, 1]), ([1, 2], [0, 1]), ([1, 2], [1, 1]), ([1], [1]), ([1, 0], [1, 1]), ([1, 2], [0, 1])]
    records = [{"id": i, "input_ids": ids, "loss_mask": mask} for i, (ids, mask) in enumerate(rows)]
    source = write_records(tmp_path / "in.jsonl", records)
    options = {"records": "tokens", "dedup": "exact", "id_field": "id"}
    masked = build_stores(tmp_path / "masked", source, **options)
    assert [(row[2], row[1]) for row in rows_of(masked.path)] == [
        ("0", [True, True, True]),
        ("1", [False, True, True]),
        ("3", [True, True]),
        ("4", [True, True, True]),
    ]
    plain = [{"id": r["id"], "input_ids": r["input_ids"]} for r in records]
    without = build_stores(tmp_path / "without", write_records(tmp_path / "plain.jsonl", plain), **options)
    assert [row[2] for row in rows_of(without.path)] == ["0", "3", "4"]


def test_only_kept_documents_are_compared(tmp_path: Path) -> None:
    """A text dropped for its length is counted for that each time."""
    source = write_records(tmp_path / "in.jsonl", [{"text": t} for t in ["a", "bb", "a", "", "bb", "", "cccc", "cccc"]])
    result = build_stores(tmp_path / "store", source, dedup="exact", min_tokens=2, max_tokens=3)
    assert texts_of(result.path) == ["bb"]
    assert {name: number for name, number in result.counts.items() if number} == {
        "input files": 1, "documents": 1, "empty": 2, "short": 2, "long": 2, "duplicates": 1
    }  # fmt: skip
    kept = build_stores(tmp_path / "kept", source, dedup="exact", keep_empty=True)
    assert texts_of(kept.path) == ["a", "bb", "", "cccc"]


@pytest.mark.parametrize("workers", [1, 2])
def test_too_many_bad_records_are_reported_as_without_dedup(
    tmp_path: Path, small_units: Callable[[int], None], workers: int
) -> None:
    """The same message and list, wherever the bad records are. With a higher limit the build resumes to the same bytes."""
    records = repeated(200, 40)
    source = write_records(tmp_path / "in.jsonl", records)
    num_bad = sum(record is BAD or record == BAD for record in records)
    small_units(900)
    for allowed in (0, num_bad - 1)[workers - 1 :]:
        lists = []
        for kind in ("none", "exact"):
            with pytest.raises(
                BadRecordsError, match=f"bad records: {allowed + 1} so far, and {allowed} are allowed; the first is"
            ):
                build_stores(tmp_path / kind, source, dedup=kind, max_bad=allowed, workers=workers)
            assert not (tmp_path / kind).exists()
            lists.append((tmp_path / f"{kind}.tokenstore/rejects.jsonl").read_bytes())
        assert lists[0] == lists[1]
        made = [len(list((tmp_path / f"{kind}.tokenstore/building/parts").iterdir())) for kind in ("none", "exact")]
        assert workers > 1 or made[0] == made[1]  # no more is made than it takes to know
    notes: list[str] = []
    result = build_stores(tmp_path / "exact", source, dedup="exact", max_bad=num_bad, note=notes.append)
    assert any(note.startswith("resuming: ") for note in notes)
    fresh = build_stores(tmp_path / "fresh", source, dedup="exact", max_bad=num_bad)
    assert all_files(result.path) == all_files(fresh.path)


@pytest.mark.parametrize("kind", ["none", "exact"])
def test_no_worker_outlives_a_failed_build(tmp_path: Path, small_units: Callable[[int], None], kind: str) -> None:
    """P8: once the lock is released nobody writes to the work folder, even while the exception is still referenced."""
    small_units(500)
    source = write_records(tmp_path / "in.jsonl", repeated(200, 40))
    with pytest.raises(BadRecordsError) as held:
        build_stores(tmp_path / "store", source, dedup=kind, workers=2)
    assert multiprocessing.active_children() == []
    assert "bad records: 1 so far" in str(held.value)


def test_a_build_killed_during_dedup_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: the temporary files are made again, and removed with the work folder."""
    source = write_records(tmp_path / "in.jsonl", repeated(100, 30))

    def die(*args: object, **kwargs: object) -> None:
        assert list((tmp_path / "store.tokenstore/building/scratch/dedup").iterdir())
        raise KeyboardInterrupt

    for where in ((dedup.np, "lexsort"), (assemble, "_placed")):
        with monkeypatch.context() as patched:
            patched.setattr(*where, die)
            with pytest.raises(KeyboardInterrupt):
                build_stores(tmp_path / "store", source, dedup="exact", max_bad=9)
    result = build_stores(tmp_path / "store", source, dedup="exact", max_bad=9)
    fresh = build_stores(tmp_path / "fresh", source, dedup="exact", max_bad=9)
    assert all_files(result.path) == all_files(fresh.path)
    assert left_behind(result.path) == ["rejects.jsonl"]


def test_hashes_that_differ_in_one_bit_are_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 128 bits count, in one bucket or many; of three distant equal documents the first is kept."""
    hashes = [
        (0, 0),
        (1, 0),
        (0, 1),
        (1 << 63, 0),
        (0, 1 << 63),
        ((1 << 64) - 1, (1 << 64) - 1),
        (0, 0),
        (1, 0),
        (0, 0),
    ]
    rows = np.zeros(len(hashes), part.ROW)
    rows["content"] = np.array(hashes, np.uint64)

    class Held:
        num_documents = len(hashes)

        def rows(self) -> list[np.ndarray]:
            return [rows[:4], rows[4:]]

    for bucket in (1, 2, 1 << 21):
        monkeypatch.setattr(dedup, "_RANGE_DOCUMENTS", bucket)
        with dedup.first_occurrences([Held(), Held()], tmp_path / "scratch") as first:
            assert first.tolist() == [True] * 6 + [False] * 12
        assert not (tmp_path / "scratch").exists()


def test_dedup_without_documents(tmp_path: Path) -> None:
    """There is no additional error."""
    with dedup.first_occurrences([], tmp_path / "scratch") as first:
        assert first.tolist() == []
    source = write_records(tmp_path / "in.jsonl", [{"text": ""}])
    with pytest.raises(BuildError, match="expected at least one, found none"):
        build_stores(tmp_path / "store", source, dedup="exact")
