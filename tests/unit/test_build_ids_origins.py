"""`build_store`: the documents' own ids, and their origins."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.written import all_files, build_stores, json_lines, rows_of, texts_of, write_records
from tokenstore.builder import part
from tokenstore.builder.documents import collect as batches
from tokenstore.errors import BadRecordsError, BuildError, CorruptionError
from tokenstore.format.layout import IDS_NAME, MAX_ID_BYTES

BAD = b'{"text": 7}'


def ids_of(path: Path) -> list[str | None]:
    """The ids one by one, which equal those read in blocks."""
    with tokenstore.open_store(path) as store:
        found = [store.id(i) for i in range(len(store))]
        assert not store.has_ids or store.ids_between(0, len(store)) == found
        return found


@pytest.mark.parametrize("place", [0, 8, -1], ids=["first start", "second start", "text"])
def test_a_damaged_id_is_named_also_where_ids_are_read_in_blocks(tmp_path: Path, place: int) -> None:
    source = write_records(tmp_path / "in.jsonl", [{"id": "aa", "text": "x"}, {"id": "bb", "text": "y"}])
    path = build_stores(tmp_path / "store", source, id_field="id").path
    ids = path / IDS_NAME
    data = bytearray(ids.read_bytes())
    data[place] = 255
    ids.chmod(0o644)
    ids.write_bytes(data)
    with tokenstore.open_store(path) as store, pytest.raises(CorruptionError, match=r"id of document [01]"):
        store.ids_between(0, 2)


def origins_of(path: Path) -> list[tuple[str, int] | None]:
    return [row[3] for row in rows_of(path)]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet", ".arrow", ".csv"])
@pytest.mark.parametrize("kind", [str, int])
def test_ids_come_from_the_id_field(tmp_path: Path, ending: str, kind: type) -> None:
    """Strings and integers, of every format, as text; without the option a store has no ids."""
    numbers = [0, 7, 7, 1 << 40, 12]
    source = write_records(tmp_path / f"in{ending}", [{"id": kind(n), "text": f"t{n}"} for n in numbers])
    assert ids_of(build_stores(tmp_path / "store", source, id_field="id").path) == [str(n) for n in numbers]
    without = build_stores(tmp_path / "without", source)
    assert ids_of(without.path) == [None] * len(numbers)
    assert not (without.path / "ids.bin").exists()


def test_ids_of_any_text_are_kept(tmp_path: Path) -> None:
    """Empty ids, one of the maximum size, every script, zero bytes, newlines, and one id twice."""
    longest = ["x" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2), "🦊" * (MAX_ID_BYTES // 4)]
    ids = ["", "a", "a", "\x00", "a\nb\r\n", " ", "\u2028", "\ufeff", "\U0010ffff", *TEXTS, *longest, ""]
    source = write_records(tmp_path / "in.jsonl", [{"id": name, "text": "t"} for name in ids])
    assert ids_of(build_stores(tmp_path / "store", source, id_field="id").path) == ids


@settings(max_examples=15)
@given(names=st.lists(st.text(max_size=5), min_size=1, max_size=20), batch=st.integers(1, 5))
def test_any_ids_in_any_batches_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], batch: int
) -> None:
    """However many documents are encoded or read at once."""
    tmp_path = tmp_path_factory.mktemp("ids")
    source = write_records(tmp_path / "in.jsonl", [{"id": name, "text": "t"} for name in names])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "_BATCH_DOCUMENTS", batch)
        patched.setattr(part, "_BLOCK_DOCUMENTS", 3)
        patched.setattr(part, "_BLOCK_TOKENS", 4)
        assert ids_of(build_stores(tmp_path / "store", source, id_field="id").path) == names


WRONG_IDS = {
    "missing": ({}, "no field 'id'"),
    "null": ({"id": None}, "field 'id': expected a string, found null"),
    "bool": ({"id": True}, "field 'id': expected a string, found bool"),
    "float": ({"id": 1.5}, "field 'id': expected a string, found float"),
    "list": ({"id": ["a"]}, "field 'id': expected a string, found list"),
    "object": ({"id": {"a": "b"}}, "field 'id': expected a string, found dict"),
    "too long": ({"id": "x" * (MAX_ID_BYTES + 1)}, "field 'id': expected at most 65535 bytes, found more"),
    "too long in bytes": ({"id": "é" * (MAX_ID_BYTES // 2 + 1)}, "field 'id': expected at most 65535 bytes"),
}


@pytest.mark.parametrize(("fields", "reason"), WRONG_IDS.values(), ids=WRONG_IDS)
def test_a_record_without_an_id_is_bad(tmp_path: Path, fields: dict, reason: str) -> None:
    """P9: no document gets another's id or none: its record is bad, and the others keep theirs."""
    records = [{"id": "a", "text": "x"}, {"text": "y", **fields}, {"id": "b", "text": "z"}]
    source = write_records(tmp_path / "in.jsonl", records)
    with pytest.raises(BadRecordsError, match=r"record 2 of in\.jsonl"):
        build_stores(tmp_path / "store", source, id_field="id")
    result = build_stores(tmp_path / "store", source, id_field="id", max_bad=1)
    assert [row[2:] for row in rows_of(result.path)] == [("a", ("in.jsonl", 1)), ("b", ("in.jsonl", 3))]
    (reject,) = json_lines(result.rejects)
    assert reject["reason"].startswith(reason)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".arrow"])
def test_an_id_inside_an_object_is_named_by_its_path(tmp_path: Path, ending: str) -> None:
    """`a.b` is field b of object a; inside null it is null."""
    records = [{"meta": {"id": 5}, "text": "x"}, {"meta": {"id": 6}, "text": "y"}, {"meta": None, "text": "z"}]
    source = write_records(tmp_path / f"in{ending}", records)
    result = build_stores(tmp_path / "store", source, id_field="meta.id", max_bad=1)
    assert ids_of(result.path) == ["5", "6"]
    assert json_lines(result.rejects)[0]["reason"] == "field 'meta.id': expected a string, found null"


def test_the_text_itself_may_be_the_id(tmp_path: Path) -> None:
    """One column is used twice."""
    for ending in (".parquet", ".arrow", ".csv", ".jsonl"):
        source = write_records(tmp_path / f"in{ending}", [{"text": "x"}, {"text": "y"}])
        assert ids_of(build_stores(tmp_path / f"store{ending}", source, id_field="text").path) == ["x", "y"]


def test_a_table_without_the_id_column_is_refused_by_name(tmp_path: Path) -> None:
    """As for the text, it is an error of the file."""
    source = write_records(tmp_path / "in.parquet", [{"text": "x"}])
    with pytest.raises(BuildError, match=r"no column 'id' in .*its columns are 'text'"):
        build_stores(tmp_path / "store", source, id_field="id")


def test_ids_of_binary_columns_are_text_or_bad(tmp_path: Path) -> None:
    """Bytes that are UTF-8 are text; a row with other bytes is bad."""
    table = pa.table({"id": pa.array([b"a", b"\xff", "ü".encode()]), "text": ["x", "y", "z"]})
    parquet.write_table(table, tmp_path / "in.parquet")
    result = build_stores(tmp_path / "store", tmp_path / "in.parquet", id_field="id", max_bad=1)
    assert [row[2:] for row in rows_of(result.path)] == [("a", ("in.parquet", 1)), ("ü", ("in.parquet", 3))]


def mixed(folder: Path) -> tuple[list[Path], list[tuple[str, tuple[str, int]]]]:
    """Files of every format with bad, empty and blank records in between, and (text, origin) of every document."""
    inputs, expected = [], []

    def add(name: str, records: list, skipped: tuple[int, ...] = ()) -> None:
        inputs.append(write_records(folder / name, records))
        for number, record in enumerate(records, 1):
            if isinstance(record, dict) and number not in skipped and record["text"]:
                expected.append((record["text"], (name, number)))

    def texts(prefix: str, count: int) -> list:
        return [{"text": f"{prefix}{i} " + "x" * (i * 37 % 90)} for i in range(count)]

    lines = texts("a", 60)
    for at in (3, 17, 18, 40):
        lines[at : at + 1] = [BAD, None, {"text": ""}]
    add("a.jsonl", [None, b"{", *lines, BAD])
    add("sub/b.parquet", [{"text": t["text"] if i % 5 else ""} for i, t in enumerate(texts("b", 31))])
    add("sub/c.jsonl.gz", [*texts("c", 9), b"\xff", *texts("d", 3)])
    add("d.arrow", texts("e", 11))
    add("e.csv", texts("f", 8))
    (folder / "f.txt").write_text("the whole")
    inputs.append(folder / "f.txt")
    expected.append(("the whole", ("f.txt", 1)))
    add("g.jsonl", [BAD, BAD])
    add("h.jsonl", texts("h", 40))
    return inputs, expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("unit_bytes", [300, 1 << 20])
def test_the_origin_of_a_document_is_its_file_and_record(
    tmp_path: Path, small_units: Callable[[int], None], unit_bytes: int, workers: int
) -> None:
    """For all formats, any units and one or two workers. Blank lines count, as in a text editor."""
    inputs, expected = mixed(tmp_path / "in")
    small_units(unit_bytes)
    result = build_stores(tmp_path / "store", *inputs, max_bad=20, workers=workers)
    assert list(zip(texts_of(result.path), origins_of(result.path), strict=True)) == expected
    rejects = [(row["file"], row["record"]) for row in json_lines(result.rejects)]
    for name, record in rejects:
        if name == "a.jsonl":
            assert (tmp_path / "in" / name).read_bytes().split(b"\n")[record - 1] in (BAD, b"{")
    assert [record for name, record in rejects if name != "a.jsonl"] == [10, 1, 2]


def test_the_record_of_an_origin_is_the_line_of_the_file(tmp_path: Path, small_units: Callable[[int], None]) -> None:
    """`sed -n 5p` prints the line with the document of record 5."""
    inputs, expected = mixed(tmp_path / "in")
    small_units(600)
    result = build_stores(tmp_path / "store", *inputs, max_bad=20)
    seen = 0
    for text, (name, record) in zip(texts_of(result.path), origins_of(result.path), strict=True):
        if name.endswith(".jsonl"):
            line = (tmp_path / "in" / name).read_bytes().split(b"\n")[record - 1]
            assert json.loads(line) == {"text": text}
            seen += 1
    assert seen == sum(name.endswith(".jsonl") for _, (name, _) in expected) > 90


def test_without_origins_a_store_has_none_and_the_same_digest(tmp_path: Path) -> None:
    """The origin of a document is not part of its content."""
    inputs, expected = mixed(tmp_path / "in")
    known = build_stores(tmp_path / "known", *inputs, max_bad=20)
    without = build_stores(tmp_path / "without", *inputs, max_bad=20, origins=False)
    assert origins_of(without.path) == [None] * len(expected)
    assert not (without.path / "origins.bin").exists()
    assert without.digest == known.digest
    with tokenstore.open_store(without.path) as store:
        assert not store.has_origins
        assert sum(row["documents"] for row in json_lines(without.path / "inputs.jsonl")) == len(store)


@pytest.mark.parametrize("options", [{"id_field": "id"}, {"id_field": "id", "origins": False}, {"id_field": "other"}])
def test_ids_and_origins_are_options_of_the_store(tmp_path: Path, options: dict) -> None:
    """The same command recognises its store, but not one with other ids."""
    source = write_records(tmp_path / "in.jsonl", [{"id": "a", "other": 1, "text": "x"}])
    first = build_stores(tmp_path / "store", source, **options)
    before = all_files(first.path)
    assert build_stores(tmp_path / "store", source, **options).was_there
    with pytest.raises(tokenstore.TokenStoreError, match=r"options\.(id_field|origins) was"):
        build_stores(tmp_path / "store", source)
    assert all_files(first.path) == before


def test_dropped_documents_take_their_ids_along(tmp_path: Path) -> None:
    """Empty, short and long documents are dropped with their ids, also at the borders of batches."""
    lengths = [0, 3, 1, 9, 4, 0, 5, 2, 8, 6, 4, 0]
    records = [{"id": i, "text": "x" * n} for i, n in enumerate(lengths)]
    source = write_records(tmp_path / "in.jsonl", records)
    expected = [(str(i), ("in.jsonl", i + 1)) for i, n in enumerate(lengths) if 2 <= n <= 6]
    for batch in (1, 2, 5, 100):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(batches, "_BATCH_DOCUMENTS", batch)
            options = {"id_field": "id", "min_tokens": 2, "max_tokens": 6}
            result = build_stores(tmp_path / f"store{batch}", source, **options)
        assert [row[2:] for row in rows_of(result.path)] == expected


def test_an_empty_document_that_cannot_be_kept_leaves_no_id(tmp_path: Path) -> None:
    """Without special tokens an empty text has no tokens; the ids after it still belong to their documents."""
    records = [{"id": name, "text": text} for name, text in zip("abcde", ["", "x", "", "yy", ""], strict=True)]
    source = write_records(tmp_path / "in.jsonl", records)
    result = build_stores(tmp_path / "store", source, id_field="id", keep_empty=True, eos=False)
    assert [row[2:] for row in rows_of(result.path)] == [("b", ("in.jsonl", 2)), ("d", ("in.jsonl", 4))]
