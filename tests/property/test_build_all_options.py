"""Builds of random inputs with random options together, against a slow twin: killed and resumed, with any units."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.written import all_files, build_stores, json_lines, rows_of, write_records
from tests.support.twins.build import Built, build_twin
from tokenstore.builder import BuildOptions, BuildResult, dedup, making, part, pipeline
from tokenstore.builder.documents import collect as batches
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BuildError

WORDS = ["", "a", "b", "ab", "né", "one\ntwo", "🦊", "long " * 9]
IDS = st.lists(st.sampled_from([0, 65, 195, 256, 257, 258]), max_size=6)
HOW = st.sampled_from([None] * 12 + ["fail", "leave out", "none", "add"])
SPLITS = [None, None, "train=1", "a=0.5,b=0.5", "a=0.1,b=0.3,c=0.6"]


@st.composite
def records(draw: st.DrawFn, mask: str | None) -> dict:
    """All records of a file, or of a slice of it."""
    ids = draw(IDS)
    in_loss = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    row: dict[str, Any] = {"id": draw(st.integers(0, 9)), "text": draw(st.sampled_from(WORDS)), "input_ids": ids}
    if draw(st.booleans()):
        in_loss = [True] * len(ids)
    if mask == "loss_mask":
        row["loss_mask"] = [int(x) for x in in_loss]
    if mask == "labels":
        row["labels"] = [x if learn else -100 for x, learn in zip(ids, in_loss, strict=True)]
    if how := draw(HOW):
        row["how"] = how
    wrong = draw(st.sampled_from([None] * 15 + ["id", "text", "input_ids", mask or "id"]))
    if wrong:
        value = draw(st.sampled_from(["gone", None, True, 1.5, [300], [-1], [[]], [None], {"a": 1}]))
        row[wrong] = value
        if value == "gone":
            del row[wrong]
    return row


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, list]:
    """Files in order; all records of them have a mask, or none."""
    mask = draw(st.sampled_from([None, "loss_mask", "labels"]))
    one = st.one_of(*[records(mask)] * 6, st.just(None), st.sampled_from([b"{", b"[1]", b"\xff"]))
    names = ["a.jsonl", "b/c.jsonl.gz", "d.jsonl", "e.jsonl"][: draw(st.integers(1, 4))]
    # The first record settles where the masks are
    files = {name: draw(st.lists(one, max_size=14)) for name in names}
    files["a.jsonl"].insert(0, {"id": 1, "text": "first", "input_ids": [7], **({mask: [7 if mask == "labels" else 1]} if mask else {})})  # fmt: skip
    return files


OPTIONS = st.fixed_dictionaries(
    {
        "records": st.sampled_from(["text", "tokens"]),
        "eos": st.booleans(),
        "document_start": st.sampled_from(["none", "eos", "bos"]),
        "keep_empty": st.booleans(),
        "min_tokens": st.sampled_from([0, 0, 1, 2]),
        "max_tokens": st.sampled_from([None, None, 4, 40]),
        "id_field": st.sampled_from([None, "id"]),
        "origins": st.sampled_from([True, True, False]),
        "filter": st.sampled_from([None, "tests.support.twins.build:keep"]),
        "map": st.sampled_from([None, "tests.support.twins.build:change"]),
        "split": st.sampled_from(SPLITS),
        "dedup": st.sampled_from(["none", "exact"]),
        "shard_bytes": st.sampled_from([4, 60, 1 << 20]),
    }
)
SIZES = st.fixed_dictionaries(
    {
        "unit": st.sampled_from([40, 200, 1000, 1 << 20]),
        "batch": st.integers(1, 6),
        "block": st.integers(1, 6),
        "bucket": st.integers(1, 30),
    }
)


def cut(patched: pytest.MonkeyPatch, unit: int, batch: int, block: int, bucket: int) -> None:
    """Sizes of units and batches."""
    patched.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=unit))
    patched.setattr(batches, "_BATCH_DOCUMENTS", batch)
    patched.setattr(part, "_BLOCK_DOCUMENTS", block)
    patched.setattr(part, "_BLOCK_TOKENS", 3 * block)
    patched.setattr(dedup, "_RANGE_DOCUMENTS", bucket)


def write_all(folder: Path, files: dict[str, list]) -> list[Path]:
    return [write_records(folder / name, rows) for name, rows in files.items()]


def check(result: BuildResult, expected: Built) -> None:
    """The stores have the twin's documents, and the same counts of their inputs."""
    stores = result.splits or (result,)
    for store, (name, rows) in zip(stores, expected.splits.items(), strict=True):
        assert store.path.name == (name or result.path.name)
        assert rows_of(store.path) == rows
    lines = [json_lines(store.path / "inputs.jsonl") for store in stores]
    for number, (file, counts) in enumerate(expected.counts.items()):
        each = [of_store[number] for of_store in lines]
        assert [row["file"] for row in each] == [file] * len(stores)
        assert sum(row["documents"] for row in each) == counts["documents"]
        for row in each:
            assert {name: row[name] for name in counts if name != "documents"} == {
                name: number for name, number in counts.items() if name != "documents"
            }
    for name in ("documents", "empty", "filtered", "short", "long", "duplicates", "bad"):
        assert result.counts[name] == sum(counts[name] for counts in expected.counts.values())
    rejects = json_lines(result.rejects) if result.rejects else []
    assert [(row["file"], row["record"]) for row in rejects] == expected.rejects


@given(files=inputs(), options=OPTIONS, sizes=SIZES)
def test_a_build_equals_its_twin(
    tmp_path_factory: pytest.TempPathFactory, files: dict, options: dict, sizes: dict
) -> None:
    """P8, P9: documents, masks, ids, origins, counts and bad records are as expected for any combination of options."""
    tmp_path = tmp_path_factory.mktemp("all")
    sources = write_all(tmp_path / "in", files)
    expected = build_twin(files, BuildOptions(("unused",), Path("unused"), "bytes", **options))
    with pytest.MonkeyPatch.context() as patched:
        cut(patched, **sizes)
        if not all(expected.splits.values()):
            with pytest.raises(BuildError, match="expected at least one, found none"):
                build_stores(tmp_path / "store", *sources, max_bad=99, **options)
            assert not (tmp_path / "store").exists()
            return
        check(build_stores(tmp_path / "store", *sources, max_bad=99, **options), expected)


@settings(max_examples=12)
@given(files=inputs(), options=OPTIONS, sizes=SIZES, data=st.data())
def test_a_killed_build_resumes_to_the_bytes_of_one_run(
    tmp_path_factory: pytest.TempPathFactory, files: dict, options: dict, sizes: dict, data: st.DataObject
) -> None:
    """P8: killed after any parts, any number of times, then with other batches: the same files and list of bad records."""
    options = {**options, "split": None}
    tmp_path = tmp_path_factory.mktemp("killed")
    sources = write_all(tmp_path / "in", files)
    expected = build_twin(files, BuildOptions(("unused",), Path("unused"), "bytes", **options))
    if not expected.splits[None]:
        return
    whole = build_stores(tmp_path / "whole", *sources, max_bad=99, **options)
    real = making.write_atomically
    for left in data.draw(st.lists(st.integers(0, 3), max_size=3)):
        made: list[Path] = []

        def die(path: Path, content: bytes, left: int = left, made: list = made) -> None:
            if len(made) == left:
                raise KeyboardInterrupt
            made.append(path)
            real(path, content)

        with pytest.MonkeyPatch.context() as patched:
            cut(patched, **sizes)
            patched.setattr(making, "write_atomically", die)
            try:
                build_stores(tmp_path / "store", *sources, max_bad=99, **options)
            except KeyboardInterrupt:
                assert not (tmp_path / "store").exists()
    with pytest.MonkeyPatch.context() as patched:
        cut(patched, **{**sizes, "batch": 1 + sizes["batch"]})
        result = build_stores(tmp_path / "store", *sources, max_bad=99, **options)
    assert all_files(result.path) == all_files(whole.path)
    check(result, expected)


CORPUS = {
    "a.jsonl": [
        {"id": i, "text": f"{i % 41} é" * (1 + i % 3), "how": {7: "leave out", 8: "none", 9: "fail"}.get(i % 23)}
        for i in range(150)
    ],
    "b/c.jsonl.gz": [b"{", None, *[{"id": i, "text": f"{i} é"} for i in range(20, 60)]],
    "d.jsonl": [{"text": "no id"}, *[{"id": f"d{i}", "text": "x" * i} for i in range(60)], b"7"],
}
EVERYTHING = {
    "id_field": "id",
    "filter": "tests.support.twins.build:keep",
    "map": "tests.support.twins.build:change",
    "split": "a=0.5,b=0.3,c=0.2",
    "dedup": "exact",
    "min_tokens": 5,
    "max_tokens": 50,
    "document_start": "bos",
    "max_record_bytes": 85,
    "shard_bytes": 300,
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("made", [1, 4])
def test_all_options_at_once_killed_and_resumed_by_other_workers(tmp_path: Path, made: int, workers: int) -> None:
    """P8: hooks, splits, dedup, ids, lengths, long and bad records: killed after some parts and resumed, it equals the
    twin.
    """
    sources = write_all(tmp_path / "in", CORPUS)
    options = {**EVERYTHING, "max_bad": 99}
    expected = build_twin(
        {name: [_too_long(record) for record in rows] for name, rows in CORPUS.items()},
        BuildOptions(("unused",), Path("unused"), "bytes", **EVERYTHING),
    )
    whole = build_stores(tmp_path / "whole", *sources, **options)
    check(whole, expected)
    assert all(whole.counts[name] for name in ("filtered", "short", "long", "duplicates", "bad"))
    real, finished = making.write_atomically, []

    def die(path: Path, content: bytes) -> None:
        if len(finished) == made:
            raise KeyboardInterrupt
        finished.append(path)
        real(path, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=1500))
        patched.setattr(making, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            build_stores(tmp_path / "store", *sources, **options)
        patched.setattr(making, "write_atomically", real)
        notes: list[str] = []
        result = build_stores(tmp_path / "store", *sources, workers=workers, note=notes.append, **options)
    assert notes[0].startswith(f"resuming: {made} of ")
    assert all_files(result.path) == all_files(whole.path)
    assert result.rejects.read_bytes() == whole.rejects.read_bytes()
    check(result, expected)


def _too_long(record: Any) -> Any:
    """A record that is longer than allowed is no record."""
    from tests.support.stores.written import _line

    return b"too long" if isinstance(record, dict) and len(_line(record)) > 85 else record
