"""`build_store` of documents that are tokens already: ids, loss masks, ends of documents."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.reading import document_reader
from tests.support.stores.written import build_stores, rows_of, write_records
from tokenstore.builder.reading.records import Bad
from tokenstore.errors import BuildError, ConfigError

EOS, BOS = 256, 257
FORMATS = [".jsonl", ".jsonl.gz", ".parquet", ".arrow"]
ALL = [
    {"input_ids": [1, 2, 3], "loss_mask": [1, 0, 1], "labels": [1, -100, 3]},
    {"input_ids": [4, EOS], "loss_mask": [1, 0], "labels": [4, -100]},
    {"input_ids": [5, 6], "loss_mask": [1, 0], "labels": [5, -100]},
    {"input_ids": [EOS, 7, EOS], "loss_mask": [0, 1, 1], "labels": [-100, 7, EOS]},
    {"input_ids": [0, 258], "loss_mask": [0, 1], "labels": [-100, 258]},
]
LEARNED = [[True, False, True], [True, False], [True, False], [False, True, True], [False, True]]


def only(*names: str) -> list[dict]:
    """ALL, reduced to some of its fields."""
    return [{name: record[name] for name in names} for record in ALL]


def found(path: Path) -> list[tuple[list[int], list[bool]]]:
    """(tokens, in the loss) of all documents."""
    return [row[:2] for row in rows_of(path)]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("field", ["labels", "loss_mask", None])
def test_tokens_and_masks_are_those_of_the_records(tmp_path: Path, ending: str, field: str | None) -> None:
    """An eos token is appended if missing, and is in the loss if the token before it is."""
    source = write_records(tmp_path / f"in{ending}", only("input_ids", *([field] if field else [])))
    result = build_stores(tmp_path / "store", source, records="tokens")
    expected = []
    for record, mask in zip(ALL, LEARNED, strict=True):
        ids, mask = list(record["input_ids"]), list(mask) if field else [True] * len(mask)
        ended = ids[-1] == EOS
        expected.append((ids if ended else [*ids, EOS], mask if ended else [*mask, mask[-1]]))
    assert found(result.path) == expected


@pytest.mark.parametrize(("fields", "taken"), [(("loss_mask", "labels"), "loss_mask"), (("labels",), "labels")])
def test_the_first_good_record_decides_the_mask_field(tmp_path: Path, fields: tuple, taken: str) -> None:
    """`loss_mask` before `labels`; bad records and empty lines before the first good one do not count."""
    records = [None, b"{", *only("input_ids", *fields), {"input_ids": [8, 9], "loss_mask": [1, 1], "labels": [-100, 9]}]
    source = write_records(tmp_path / "in.jsonl", records)
    found_so = build_stores(tmp_path / "auto", source, records="tokens", max_bad=1)
    named = build_stores(tmp_path / "named", source, records="tokens", mask_field=taken, max_bad=1)
    assert found_so.digest == named.digest
    assert found(found_so.path)[0] == ([1, 2, 3, EOS], [True, False, True, True])
    assert found(found_so.path)[-1] == ([8, 9, EOS], [taken == "loss_mask", True, True])


@pytest.mark.parametrize("first", [[], [None], [b"{"], [b"7"]], ids=["empty", "blank", "no JSON", "no object"])
def test_a_first_file_without_a_good_record_does_not_hide_the_masks(tmp_path: Path, first: list) -> None:
    """P9: then the next file decides."""
    sources = [write_records(tmp_path / "a.jsonl", first), write_records(tmp_path / "b.jsonl", ALL)]
    result = build_stores(tmp_path / "store", *sources, records="tokens", max_bad=1)
    assert found(result.path)[0] == ([1, 2, 3, EOS], [True, False, True, True])


def test_a_record_without_the_mask_the_others_have_is_bad(tmp_path: Path) -> None:
    """The loss mask of a token is never guessed."""
    records = [*ALL, {"input_ids": [1]}, {"input_ids": [1], "loss_mask": None}]
    result = build_stores(
        tmp_path / "store", write_records(tmp_path / "in.jsonl", records), records="tokens", max_bad=2
    )
    assert result.num_documents == len(ALL)
    assert result.counts["bad"] == 2


BAD_IDS = {
    "float": [1.0],
    "float among integers": [1, 2.5],
    "bool": [True],
    "bool among integers": [1, True],
    "null": [1, None],
    "string": ["1"],
    "nested": [[1]],
    "nested, ragged": [[1], [2, 3]],
    "nested, empty": [[]],
    "nested at the end": [1, [2]],
    "object": [{}],
    "text": "1 2",
    "number": 7,
    "no list": None,
    "negative": [1, -1],
    "out of range": [1, 259],
    "above int32": [1 << 31],
    "above int64": [1 << 63],
    "largest uint64": [(1 << 64) - 1],
    "above uint64": [1 << 64],
    "above int64 and negative": [1 << 63, -1],
    "far above": [1 << 200],
    "0-d array": np.array(5),
    "2-d array": np.array([[1, 2]]),
    "array of floats": np.array([1.0]),
    "array of bools": np.array([True]),
    "numpy bool": [np.True_, 1],
}


@pytest.mark.parametrize("ids", BAD_IDS.values(), ids=BAD_IDS)
def test_invalid_ids_make_a_record_bad(ids: object) -> None:
    """P9: a value that is no list of ids, from a file or a user's map, makes the record bad with a reason."""
    bad = document_reader(records="tokens").document({"input_ids": ids})
    assert isinstance(bad, Bad)
    assert bad.reason.startswith("field 'input_ids': expected ")
    assert "found" in bad.reason


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([1 << 63], f"found {1 << 63}"), ([5, -7], "found -7"), ([3, 259], "found 259"), ([[]], "found lists inside")],
)
def test_the_reason_quotes_the_wrong_value(ids: list, reason: str) -> None:
    """With the number that is in the record."""
    assert reason in document_reader(records="tokens").document({"input_ids": ids}).reason


BAD_MASKS = {
    "too short": [1],
    "too long": [1, 0, 1],
    "empty": [],
    "null": None,
    "text": "10",
    "object": {"a": 1, "b": 0},
    "all zero": [0, 0],
    "two": [2, 1],
    "negative": [-1, 1],
    "half": [0.5, 1],
    "not a number": [float("nan"), 1],
    "strings": ["1", "0"],
    "a string among floats": [1.0, "1"],
    "word among floats": [0.0, "x"],
    "null among integers": [1, None],
    "null among floats": [1.0, None],
    "object among floats": [1.0, {"a": 1}],
    "object among integers": [{}, 1],
    "nested": [[1], [0]],
    "nested, square": [[1, 1], [0, 0]],
    "nested, ragged": [[1], [0, 1]],
    "nested among floats": [1.0, [1]],
    "huge": [1 << 200, 1],
    "0-d array": np.array(1),
    "2-d array": np.array([[1, 0], [1, 0]]),
}
BAD_LABELS = {
    "shifted": [6, -100],
    "swapped": [6, 5],
    "all ignored": [-100, -100],
    "another ignored value": [-1, 6],
    "nested": [[5], [6]],
    "nested, square": [[5, 6], [5, 6]],
    "nested, ignored": [[-100], [6]],
    "huge and ignored": [1 << 63, -100],
    "null among floats": [-100.0, None],
    "object among floats": [-100.0, {}],
    "strings": ["5", "6"],
}
CASES = [("loss_mask", mask) for mask in BAD_MASKS.values()] + [("labels", mask) for mask in BAD_LABELS.values()]


@pytest.mark.parametrize(("name", "mask"), CASES, ids=[*BAD_MASKS, *(f"labels {name}" for name in BAD_LABELS)])
def test_invalid_masks_make_a_record_bad(name: str, mask: object) -> None:
    """P9: labels are the token itself or -100, a mask is zeros and ones; one per token, in a flat list."""
    bad = document_reader(records="tokens", mask_field=name).document({"input_ids": [5, 6], name: mask})
    assert isinstance(bad, Bad)
    assert bad.reason.startswith(f"field {name!r}: expected ")


@pytest.mark.parametrize(
    ("name", "mask"),
    [("loss_mask", [False, True]), ("loss_mask", [0.0, 1.0]), ("labels", [-100.0, 6.0]), ("a.labels", [-100, 6])],
)
def test_masks_may_be_bools_or_whole_floats(name: str, mask: list) -> None:
    """As some libraries write them; the field may be inside an object."""
    row = {"input_ids": [5, 6], name: mask} if "." not in name else {"input_ids": [5, 6], "a": {"labels": mask}}
    document = document_reader(records="tokens", mask_field=name).document(row)
    assert document.mask.tolist() == [False, True]


@pytest.mark.parametrize("extra", [{}, {"loss_mask": []}, {"labels": []}], ids=["no mask", "loss_mask", "labels"])
def test_a_record_without_tokens_is_an_empty_document(tmp_path: Path, extra: dict) -> None:
    """It is dropped and counted like an empty text. With keep_empty it is kept, and none of it is in the loss."""
    names = ["input_ids", *extra]
    records = [*only(*names)[:1], {"input_ids": [], **extra}, *only(*names)[2:3]]
    source = write_records(tmp_path / "in.jsonl", records)
    result = build_stores(tmp_path / "store", source, records="tokens")
    assert (result.num_documents, result.counts["empty"], result.counts["bad"]) == (2, 1, 0)
    kept = build_stores(tmp_path / "kept", source, records="tokens", keep_empty=True)
    assert found(kept.path)[1] == ([EOS], [not extra])
    both = build_stores(tmp_path / "both", source, records="tokens", keep_empty=True, document_start="bos")
    assert found(both.path)[1] == ([BOS, EOS], [not extra] * 2)


def naive_ends(ids: list[int], mask: list[bool], start: int | None, end: int | None) -> tuple[list[int], list[bool]]:
    """A document with its special tokens added, unless it has them already."""
    before = [start] if start is not None and ids[:1] != [start] else []
    after = [end] if end is not None and ids[-1:] != [end] else []
    in_loss = bool(mask) and mask[-1]
    return [*before, *ids, *after], [*([False] * len(before)), *mask, *([in_loss] * len(after))]


@given(st.data())
def test_special_tokens_are_added_where_missing(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    """Against a twin: any ids, special ones anywhere among them, any start and end, with masks or without."""
    tmp_path = tmp_path_factory.mktemp("tokens")
    few = st.sampled_from([0, 1, EOS, BOS, 258])
    documents = data.draw(st.lists(st.lists(few, min_size=1, max_size=5), min_size=1, max_size=12))
    masks = [data.draw(st.lists(st.booleans(), min_size=len(d), max_size=len(d))) for d in documents]
    for mask in masks:  # at least one token in the loss
        mask[data.draw(st.integers(0, len(mask) - 1))] = True
    masked, eos = data.draw(st.booleans()), data.draw(st.booleans())
    start = data.draw(st.sampled_from(["none", "eos", "bos"]))
    records = [{"input_ids": d, **({"loss_mask": m} if masked else {})} for d, m in zip(documents, masks, strict=True)]
    source = write_records(tmp_path / "in.jsonl", records)
    result = build_stores(tmp_path / "store", source, records="tokens", eos=eos, document_start=start)
    first, last = {"none": None, "eos": EOS, "bos": BOS}[start], EOS if eos else None
    expected = [naive_ends(d, m, first, last) for d, m in zip(documents, masks, strict=True)]
    assert [tokens for tokens, _ in found(result.path)] == [tokens for tokens, _ in expected]
    if masked:
        assert [mask for _, mask in found(result.path)] == [mask for _, mask in expected]


def test_a_vocabulary_above_uint16_keeps_its_ids(
    tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are checked against their tokenizer: its last id is kept, the next one is bad."""
    source = write_records(tmp_path / "in.parquet", [{"input_ids": [599]}, {"input_ids": [0, 0]}])
    result = build_stores(tmp_path / "store", source, records="tokens", tokenizer=str(tokenizer_file))
    assert found(result.path) == [([599, 0], [True, True]), ([0, 0], [True, True])]
    monkeypatch.setattr("tokenstore.tokenizer.raw_bytes.ByteTokenizer.vocab_size", 1 << 17)
    wide = write_records(tmp_path / "wide.jsonl", [{"input_ids": [(1 << 17) - 1]}, {"input_ids": [1 << 17]}])
    result = build_stores(tmp_path / "wide", wide, records="tokens", max_bad=1)
    assert found(result.path) == [([(1 << 17) - 1, EOS], [True, True])]
    assert result.dtype == "uint32"


def test_a_mask_goes_with_its_document_when_others_are_dropped(tmp_path: Path) -> None:
    """Documents dropped for their length take their masks along, wherever they are."""
    masks = [[1] * 5, [0, 1], [], [0, 1, 0], [1], [0, 0, 0, 1], [1, 0]]
    records = [{"input_ids": [9] * len(mask), "loss_mask": mask} for mask in masks]
    source = write_records(tmp_path / "in.jsonl", records)
    result = build_stores(tmp_path / "store", source, records="tokens", min_tokens=2, max_tokens=3, eos=False)
    assert [mask for _, mask in found(result.path)] == [[False, True], [False, True, False], [True, False]]


@pytest.mark.parametrize("start", ["none", "eos", "bos"])
def test_a_document_without_tokens_does_not_affect_its_neighbours(tmp_path: Path, start: str) -> None:
    """If kept, it gets its own special tokens, whatever the documents around it begin and end with."""
    first = {"none": [], "eos": [EOS], "bos": [BOS]}[start]
    documents = [[], [1, EOS], [], [], [*first, 2, EOS], [], [EOS], [], [BOS, EOS]]
    source = write_records(tmp_path / "in.jsonl", [{"input_ids": d} for d in documents])
    result = build_stores(tmp_path / "store", source, records="tokens", keep_empty=True, document_start=start)
    numbers = {"none": None, "eos": EOS, "bos": BOS}
    expected = [naive_ends(d, [True] * len(d), numbers[start], EOS)[0] for d in documents]
    assert [tokens for tokens, _ in found(result.path)] == expected


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_a_table_without_the_field_is_refused_by_name(tmp_path: Path, ending: str) -> None:
    """A missing column is an error of the file, not of each of its rows."""
    source = write_records(tmp_path / f"in{ending}", [{"tokens": [1]}])
    with pytest.raises(BuildError, match=r"no column 'input_ids' in .*its columns are 'tokens'"):
        build_stores(tmp_path / "store", source, records="tokens")
    result = build_stores(tmp_path / "other", source, records="tokens", tokens_field="tokens")
    assert found(result.path) == [([1, EOS], [True, True])]


def test_a_mask_is_only_for_tokens(tmp_path: Path) -> None:
    """An option that would have no effect is refused."""
    with pytest.raises(ConfigError, match="mask_field: only for records=tokens, found records=text"):
        build_stores(tmp_path / "store", tmp_path, mask_field="labels")


def test_masks_stay_with_their_tokens_over_units_shards_and_workers(
    tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P8: also over batches, with a bad record in between."""
    rng = np.random.default_rng(1)
    records: list = []
    for i in range(400):
        ids = rng.integers(0, 250, rng.integers(1, 20)).tolist()
        mask = (rng.random(len(ids)) < 0.5).astype(int).tolist()
        mask[int(rng.integers(len(ids)))] = 1
        records.append({"input_ids": ids, "loss_mask": mask} if i % 7 else {"input_ids": ids})
    records[0]["loss_mask"] = [1] * len(records[0]["input_ids"])
    source = write_records(tmp_path / "in.jsonl", records)
    good = [record for record in records if "loss_mask" in record]
    options = {"records": "tokens", "max_bad": len(records) - len(good), "shard_bytes": 500}
    whole = build_stores(tmp_path / "whole", source, **options)
    small_units(2000)
    cut = build_stores(tmp_path / "cut", source, workers=2, **options)
    assert cut.digest == whole.digest
    expected = [naive_ends(r["input_ids"], list(map(bool, r["loss_mask"])), None, EOS) for r in good]
    assert found(cut.path) == found(whole.path) == expected
