"""`build_store` with splits: one store per split, by the content of documents."""

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import BAD, left_behind
from tests.support.stores.written import SPLITS, all_files, build_stores, json_lines, rows_of, texts_of, write_records
from tokenstore.builder import pipeline
from tokenstore.builder.split import content_hash, parse_split, split_numbers
from tokenstore.errors import BadRecordsError, BuildError, ConfigError

NAMES = ["train", "test", "other"]


def naive_split(text: str, splits: str) -> str:
    """The split whose share of the 2^64 values contains the low word of the text's hash."""
    low = xxhash.xxh3_128_intdigest(text.encode()) & (1 << 64) - 1
    place, total = Fraction(low, 1 << 64), Fraction(0)
    for item in splits.split(","):
        name, share = item.split("=")
        total += Fraction(share)
        if place < total:
            return name
    raise AssertionError(text)


def many(count: int) -> list[dict]:
    """Records of a few words, each text three times."""
    keys = [i % (count // 3) for i in range(count)]
    return [{"id": i, "text": f"{TEXTS[key % len(TEXTS)][:12]} {key}"} for i, key in enumerate(keys)]


def test_every_document_is_in_the_split_of_its_text(tmp_path: Path, small_units: Callable[[int], None]) -> None:
    """One store per split. Together they hold all documents, in the order of the inputs, equal texts in the same split."""
    records = many(300)
    records[5:5] = [BAD, None]
    sources = [write_records(tmp_path / f"{n}.jsonl", records[i:j]) for n, i, j in (("a", 0, 120), ("b", 120, 302))]
    small_units(1500)
    options = {"id_field": "id", "max_bad": 1, "shard_bytes": 900}
    whole = build_stores(tmp_path / "whole", *sources, **options)
    result = build_stores(tmp_path / "split", *sources, split=SPLITS, **options)
    rows = {name: rows_of(tmp_path / "split" / name) for name in NAMES}
    expected: dict[str, list] = {name: [] for name in NAMES}
    for text, row in zip(texts_of(whole.path), rows_of(whole.path), strict=True):
        expected[naive_split(text, SPLITS)].append(row)
    assert rows == expected
    assert [len(texts_of(tmp_path / "split" / name)) for name in NAMES] == [s.num_documents for s in result.splits]
    assert (result.num_documents, result.num_tokens) == (whole.num_documents, whole.num_tokens)
    assert result.counts == whole.counts
    assert [split.path.name for split in result.splits] == NAMES
    assert sorted(path.name for path in result.path.iterdir()) == sorted(NAMES)
    assert left_behind(result.path) == ["rejects.jsonl"]


def test_counts_of_each_input_add_up_over_the_splits(tmp_path: Path) -> None:
    """inputs.jsonl of a split counts its documents; lines and dropped records are those of the input."""
    records = [*many(90), {"id": 1, "text": ""}, BAD]
    sources = [write_records(tmp_path / "a.jsonl", records), write_records(tmp_path / "b.jsonl", records[30:50])]
    whole = build_stores(tmp_path / "whole", *sources, max_bad=2)
    build_stores(tmp_path / "split", *sources, max_bad=2, split=SPLITS)
    rows = [json_lines(tmp_path / "split" / name / "inputs.jsonl") for name in NAMES]
    for number, all_of_it in enumerate(json_lines(whole.path / "inputs.jsonl")):
        each = [of_split[number] for of_split in rows]
        assert sum(row.pop("documents") for row in each) == all_of_it.pop("documents")
        assert each == [all_of_it] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_splits_do_not_depend_on_tokenizer_format_units_or_workers(
    tmp_path: Path, tokenizer_file: Path, small_units: Callable[[int], None], workers: int
) -> None:
    """P8: a text that is held out is held out in every store made from it."""
    records = many(120)
    jsonl = build_stores(tmp_path / "jsonl", write_records(tmp_path / "a.jsonl", records), split=SPLITS)
    small_units(700)
    table = write_records(tmp_path / "a.parquet", records)
    other = build_stores(tmp_path / "bpe", table, split=SPLITS, tokenizer=str(tokenizer_file), workers=workers)
    for name in NAMES:
        with tokenstore.open_store(other.path / name) as store:
            texts = [store.tokenizer.decode(document[:-1]) for document in store]
        assert texts == texts_of(jsonl.path / name)


def test_splits_have_about_their_shares(tmp_path: Path) -> None:
    """Of 20,000 texts, within five standard deviations, also for the smallest split."""
    source = write_records(tmp_path / "in.jsonl", [{"text": f"{i}"} for i in range(20_000)])
    result = build_stores(tmp_path / "store", source, split="a=0.9,b=0.09,c=0.01")
    for split, share in zip(result.splits, (0.9, 0.09, 0.01), strict=True):
        assert abs(split.num_documents - 20_000 * share) < 5 * (20_000 * share * (1 - share)) ** 0.5


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_every_hash_is_in_the_split_of_its_range(shares: list[int], words: list[int]) -> None:
    """Against fractions, also for hashes at a border, the lowest and the highest."""
    scale = 10**6
    parts = [share * scale // sum(shares) for share in shares]
    parts[-1] += scale - sum(parts)
    text = ",".join(f"s{i}={share / scale:.6f}" for i, share in enumerate(parts) if share)
    splits = parse_split(text)
    words = [*words, 0, 2**64 - 1]
    for split in splits[:-1]:
        words += [split.stop - 1, split.stop]
    numbers = split_numbers(np.array(words, np.uint64), splits)
    ends, total = [], Fraction(0)
    for item in text.split(","):
        total += Fraction(item.split("=")[1])
        ends.append(int(total * 2**64))  # whole numbers below it belong to the splits before
    assert [split.stop for split in splits] == ends
    assert numbers.tolist() == [next(i for i, end in enumerate(ends) if word < end) for word in words]


def test_the_hash_of_a_text_is_frozen() -> None:
    """Splits made years apart agree."""
    assert content_hash(b"") == (0x6001C324468D497F, 0x99AA06D3014798D8)
    assert content_hash("Ein Maß".encode()) == tuple(
        int(xxhash.xxh3_128("Ein Maß".encode()).hexdigest()[at : at + 16], 16) for at in (16, 0)
    )


def test_an_empty_split_is_an_error_and_no_store(tmp_path: Path) -> None:
    """P9: the message names the split. With another share it works."""
    source = write_records(tmp_path / "in.jsonl", many(60))
    with pytest.raises(BuildError, match=r"split tiny: expected at least one, found none \(.*no store was written"):
        build_stores(tmp_path / "store", source, split="train=0.999999,tiny=0.000001")
    assert not (tmp_path / "store").exists()
    assert left_behind(tmp_path / "store") == ["building"]
    with pytest.raises(ConfigError, match=r"options\.split was .* use the same options, or --overwrite"):
        build_stores(tmp_path / "store", source, split=SPLITS)
    assert build_stores(tmp_path / "store", source, split=SPLITS, overwrite=True).num_documents == 60
    assert left_behind(tmp_path / "store") == []


WRONG = {
    "": "found ''",
    "train": "found 'train'",
    "train=1,": "found ''",
    "=1": "found '=1'",
    "a=0.5,a=0.5": "found 'a=0.5'",
    "a=0,b=1": "found 'a=0'",
    "a=-0.5,b=1.5": "found 'a=-0.5'",
    "a=nan,b=1": "found 'a=nan'",
    "a=snan": "found 'a=snan'",
    "a=inf": "found 'a=inf'",
    "a=half,b=half": "found 'a=half'",
    "a=1/2,b=1/2": "found 'a=1/2'",
    "a=1=1": "found 'a=1=1'",
    "../a=1": "found '../a=1'",
    "a/b=1": "found 'a/b=1'",
    ".hidden=1": "found '.hidden=1'",
    "ä=1": "found 'ä=1'",
    "a=0.5,b=0.4": "add up to 0.9, not 1",
    "a=0.9,b=0.9": "add up to 1.8, not 1",
    "a=0.333,b=0.333,c=0.333": "add up to 0.999, not 1",
    "a=99,b=1": "found 'a=99'",
    "a=1,b=1e-40": "found 'b=1e-40'",
    "a=1,b=1e-999999999": "found 'b=1e-999999999'",
    "a=9e999999999999999999,b=9e999999999999999999": "found 'a=9e",
    f"a=0.{'9' * 40},b=0.{'0' * 39}1": "found 'a=0.9999",
    ",".join(f"s{i}=0.001" for i in range(1000)): "expected at most 256, found 1000",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=[text[:40] or "empty" for text in WRONG])
def test_invalid_splits_are_refused(text: str, message: str) -> None:
    """ConfigError names the wrong part. Shares never add up by rounding."""
    with pytest.raises(ConfigError, match="split: ") as caught:
        parse_split(text)
    assert message in str(caught.value)


def test_shares_may_have_many_digits_and_spaces() -> None:
    """They are decimal numbers, not floats: ten times 0.1 is 1."""
    assert [split.name for split in parse_split(" a = 0.5 ,b=5e-1")] == ["a", "b"]
    assert parse_split(",".join(f"s{i}=0.1" for i in range(10)))[-1].stop == 1 << 64
    assert parse_split("a=0.999999999999999999,b=0.000000000000000001")[0].stop == (1 << 64) - 19
    assert len(parse_split(",".join(f"s{i}={1 / 256:.8f}" for i in range(256)))) == 256


def test_a_finished_build_of_splits_is_left_alone(tmp_path: Path) -> None:
    """P8: all stores are checked; the same command does nothing and returns the same result."""
    source = write_records(tmp_path / "in.jsonl", [*many(60), BAD])
    first = build_stores(tmp_path / "store", source, split=SPLITS, max_bad=1)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.path.rglob("*")}
    again = build_stores(tmp_path / "store", source, split=SPLITS, max_bad=1, workers=2)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.path.rglob("*")} == before
    assert again.was_there
    assert (again.counts, again.num_tokens, again.rejects) == (first.counts, first.num_tokens, first.rejects)
    assert [s.digest for s in again.splits] == [s.digest for s in first.splits]


OTHERS = [None, "train=1", "train=0.5,test=0.5", "train=0.3,test=0.5,other=0.2", "test=0.5,train=0.3,other=0.2"]


@pytest.mark.parametrize("split", OTHERS)
def test_other_splits_are_refused_and_replaced_only_if_asked(tmp_path: Path, split: str | None) -> None:
    """P8: with overwrite all existing splits are removed."""
    source = write_records(tmp_path / "in.jsonl", many(60))
    first = build_stores(tmp_path / "store", source, split=SPLITS)
    before = all_files(first.path)
    with pytest.raises(ConfigError):
        build_stores(tmp_path / "store", source, split=split)
    assert all_files(first.path) == before
    other = build_stores(tmp_path / "store", source, split=split, overwrite=True)
    assert all_files(other.path) == all_files(build_stores(tmp_path / "fresh", source, split=split).path)
    assert left_behind(other.path) == []


def test_a_store_and_a_folder_of_splits_are_not_mixed_up(tmp_path: Path) -> None:
    """Other files next to the splits are never removed."""
    source = write_records(tmp_path / "in.jsonl", many(60))
    build_stores(tmp_path / "store", source)
    with pytest.raises(ConfigError, match="exists and is not a token store"):
        build_stores(tmp_path / "store", source, split=SPLITS)
    build_stores(tmp_path / "store", source, split=SPLITS, overwrite=True)
    (tmp_path / "store" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a token store"):
        build_stores(tmp_path / "store", source, overwrite=True)
    assert (tmp_path / "store" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("damage", ["gone", "no manifest"])
def test_splits_with_one_missing_are_no_finished_build(tmp_path: Path, damage: str) -> None:
    """P9: it is an error; overwrite builds them again if the folder holds only stores."""
    source = write_records(tmp_path / "in.jsonl", many(60))
    fresh = all_files(build_stores(tmp_path / "store", source, split=SPLITS).path)
    if damage == "gone":
        shutil.rmtree(tmp_path / "store" / "test")
    else:
        (tmp_path / "store" / "test" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="exists and is not a token store"):
        build_stores(tmp_path / "store", source, split=SPLITS)
    if damage == "gone":
        assert all_files(build_stores(tmp_path / "store", source, split=SPLITS, overwrite=True).path) == fresh


def test_an_unfinished_build_of_splits_is_resumed(
    tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: killed when some splits are finished but not committed, it leaves none; resumed, it makes all."""
    small_units(600)
    source = write_records(tmp_path / "in.jsonl", [*many(60), BAD])
    with pytest.raises(BadRecordsError):
        build_stores(tmp_path / "store", source, split=SPLITS)
    finished: list[str] = []
    real = pipeline.write_length_index

    def die_at_the_second(folder: Path) -> None:
        finished.append(folder.name)
        if len(finished) == 2:
            raise KeyboardInterrupt
        real(folder)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "write_length_index", die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            build_stores(tmp_path / "store", source, split=SPLITS, max_bad=1)
    assert finished == NAMES[:2]
    assert not (tmp_path / "store").exists()
    notes: list[str] = []
    result = build_stores(tmp_path / "store", source, split=SPLITS, max_bad=1, note=notes.append)
    assert notes[0].startswith("resuming: ")
    fresh = build_stores(tmp_path / "fresh", source, split=SPLITS, max_bad=1)
    assert all_files(result.path) == all_files(fresh.path)
