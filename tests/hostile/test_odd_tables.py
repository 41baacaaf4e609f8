"""Unusual and damaged tables, .csv, .tsv, .parquet and .arrow: every row is in the store or reported, none twice."""

import datetime
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.stores.odd_builds import (
    EMPTY,
    Bad,
    Outcome,
    Record,
    Run,
    check_built,
    check_refused,
    command,
    write_all,
)

__all__ = ["command"]
BOM = b"\xef\xbb\xbf"
NULL = Bad("field 'text': expected a string, found null")
NOT_UTF8 = Bad("not UTF-8: invalid start byte at byte ")


def numbered(name: str, outcomes: list[Outcome]) -> list[Record]:
    """Records of a file, from 1."""
    return [(name, number, outcome) for number, outcome in enumerate(outcomes, 1)]


CSV: dict[str, tuple[bytes, list[Outcome]]] = {
    "blank lines": (b"text,id\n\na,1\n\r\n\nb,2", ["a", "b"]),
    "other widths": (b"text,id\na,1\nb\nc,3,4\n,\nd,5\n", ["a", Bad("expected 2 fields, found 1"), Bad("expected 2 fields, found 3"), EMPTY, "d"]),
    "not UTF-8": (b"id,text\n1,a\n2,b \xff\n\xfe,c\n3,d \xe2\x82\n", ["a", NOT_UTF8, "c", Bad("not UTF-8: unexpected end of data")]),
    "not UTF-8 in the header": (b"text,\xff\na,1\n", ["a"]),
    "NULs": (b"text,id\na\0b,1\n\0,2\n", ["a\0b", "\0"]),
    "quotes": (b'text,id\r\n"a, ""b""\r\nc\n\n",1\r\nx"y,2\r\n"",3\r\n', ['a, "b"\r\nc\n\n', 'x"y', EMPTY]),
    "a mark": (BOM + b"text,id\na,1\n", ["a"]),
    "a mark before a quote": (BOM + b'"text","id"\r\n"a, b","1"\r\n', ["a, b"]),
    "a mark in the middle": (b"text,id\na,1\n" + BOM + b"b,2\n", ["a", "\ufeffb"]),
    "mixed line ends": (b"text,id\na,1\r\nb,2\rc,3\nd,4", ["a", "b", "c", "d"]),
    "separators of Unicode": ("text,id\na\u2028b\u2029c\u0085d,1\n\x0b\x0c\x1c,2\n".encode(), ["a\u2028b\u2029c\u0085d", "\x0b\x0c\x1c"]),
    "special tokens": (b"text\n<|endoftext|>\n", ["<|endoftext|>"]),
}  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gz"])
def test_every_odd_csv_row_is_a_document_or_a_bad_record(command: Run, tmp_path: Path, compressed: bool) -> None:
    """P9: rows are counted from 1 after the header, without blank lines; a bad row does not affect others."""
    files, records = {}, []
    for name, (data, outcomes) in sorted(CSV.items()):
        file = f"{name}.csv.gz" if compressed else f"{name}.csv"
        files[file] = gzip.compress(data) if compressed else data
        records += numbered(file, outcomes)
    records.sort(key=lambda record: record[0])
    check_built(command, write_all(tmp_path / "in", files), tmp_path / "store", records)


def test_tsv_files_and_rows_above_the_limit(command: Run, tmp_path: Path) -> None:
    """A .tsv is a .csv with tabs; a row above --max-record-size is one bad record."""
    long = b"x" * (1 << 20)
    files = {"a.tsv": b'id\ttext\n1\ta, b\n2\t"c\td"\n', "b.csv": b"text,id\na,1\n%s,2\nb,3\n" % long}
    records = [*numbered("a.tsv", ["a, b", "c\td"]), *numbered("b.csv", ["a", Bad("longer than 1048576 bytes"), "b"])]
    check_built(command, write_all(tmp_path / "in", files), tmp_path / "store", records, "--max-record-size", 1)


REFUSED_CSV = {
    "an open quote": (b'text,id\na,1\n"b,2\nc,3\n', "is not valid CSV: unexpected end of data after"),
    "a letter after a quote": (
        b'text,id\n"a"b,1\nc,2\n',
        "is not valid CSV: ',' expected after '\"'",
    ),
    "no such column": (b"id,body\n1,a\n", "b.csv; its columns are 'id', 'body'; name one with --text-field"),
    "a column twice": (b"text,text\na,b\n", "field: 2 columns are named 'text'"),
    "0 bytes": (b"", "field: there is no column 'text'"),
    "no header in UTF-8": (b"t\xe9xt\na\n", "its columns are 't\\udce9xt'"),
}


@pytest.mark.parametrize("case", REFUSED_CSV)
def test_a_csv_file_with_an_open_quote_is_refused(command: Run, tmp_path: Path, case: str) -> None:
    """P9: all rows after the quote would be one text; exit code 1, and no store of the rows before it."""
    data, message = REFUSED_CSV[case]
    folder = write_all(tmp_path / "in", {"a.csv": b"text\nsound\n", "b.csv": data})
    check_refused(command, folder, tmp_path / "store", 1, message, str(folder / "b.csv"), options=["--max-bad", 9])


def parquet_of(column: pa.Array, **options: object) -> Callable[[Path], object]:
    """Writes a .parquet file."""
    table = pa.table({"id": pa.array(range(len(column))), "text": column})
    return lambda path: parquet.write_table(table, path, **options)


def arrow_of(column: pa.Array, new: Callable = pa.ipc.new_stream, rows: int = 2) -> Callable[[Path], object]:
    """Writes an .arrow stream or file, in batches."""

    def write(path: Path) -> None:
        table = pa.table({"id": pa.array(range(len(column))), "text": column})
        with pa.OSFile(str(path), "wb") as raw, new(raw, table.schema) as out:
            out.write_table(table, max_chunksize=rows)

    return write


ODD = ["a", "", None, "b\u2028\u0085\ufeff\0", "<|endoftext|>", " ", "\n", "c" * 5000, "🦊", None, "z"]
ODD_OUTCOMES = [NULL if text is None else text or EMPTY for text in ODD]
BYTES = [b"a", b"\xff", None, b"", b"\xed\xa0\x80", "ü".encode(), BOM + b"b", b"c" * 5000 + b"\xe2\x82"]
BYTES_OUTCOMES = ["a", NOT_UTF8, NULL, EMPTY, Bad("not UTF-8: "), "ü", "\ufeffb", Bad("not UTF-8: unexpected end")]
broken = pa.Array.from_buffers(pa.string(), len(BYTES), pa.array(BYTES, pa.binary()).buffers())  # no UTF-8 in strings
COLUMNS: dict[str, tuple[pa.Array, list[Outcome]]] = {
    "string": (pa.array(ODD), ODD_OUTCOMES),
    "large_string": (pa.array(ODD, pa.large_string()), ODD_OUTCOMES),
    "string_view": (pa.array(ODD, pa.string_view()), ODD_OUTCOMES),
    "dictionary": (pa.array(ODD * 3).dictionary_encode(), ODD_OUTCOMES * 3),
    "binary": (pa.array(BYTES), BYTES_OUTCOMES),
    "string, not UTF-8": (broken, BYTES_OUTCOMES),
    "large_binary": (pa.array(BYTES, pa.large_binary()), BYTES_OUTCOMES),
    "sliced": (pa.array(["no", *ODD, "no"]).slice(1, len(ODD)), ODD_OUTCOMES),
    "int": (pa.array([7, None]), [Bad("field 'text': expected a string, found int"), NULL]),
    "list": (pa.array([["a"], None]), [Bad("field 'text': expected a string, found list"), NULL]),
    "struct": (pa.array([{"text": "a"}]), [Bad("field 'text': expected a string, found dict")]),
    "null": (pa.nulls(2), [NULL, NULL]),
    "no rows": (pa.array([], pa.string()), []),
}


def test_every_kind_of_column_in_every_table(command: Run, tmp_path: Path) -> None:
    """P9: rows are counted from 1; nulls, empty texts and bytes that are not text, for every column type."""
    forms: dict[str, Callable[[pa.Array], Callable]] = {
        "{}.snappy.parquet": parquet_of,
        "{}.ragged.parquet": lambda column: parquet_of(column, row_group_size=3, use_dictionary=False, compression="zstd"),
        "{}.stream.arrow": arrow_of,
        "{}.file.arrow": lambda column: arrow_of(column, pa.ipc.new_file),
    }  # fmt: skip
    files, records = {"sound.txt": b"sound"}, [("sound.txt", 1, "sound")]
    for name, (column, outcomes) in COLUMNS.items():
        for form, make in forms.items():
            if (name, form) == ("dictionary", "{}.file.arrow"):
                make = lambda column: arrow_of(column, pa.ipc.new_file, rows=99)  # noqa: E731  # one dictionary a file
            files[form.format(name)] = make(column)
            records += numbered(form.format(name), outcomes)
    folder = write_all(tmp_path / "in", files)
    check_built(command, folder, tmp_path / "store", sorted(records, key=lambda record: record[0]))


def test_row_groups_of_any_size_and_nested_text(command: Run, tmp_path: Path) -> None:
    """`meta.text` is field text of column meta, null if meta is null; a table without rows has no records."""
    schema = pa.schema(
        [("meta", pa.struct([("text", pa.string()), ("k", pa.int64())])), ("other", pa.list_(pa.string()))]
    )
    rows = [
        {"meta": {"text": f"text {i}"} if i % 5 else [None, {"text": None}, {"text": ""}][i % 3]} for i in range(60)
    ]

    def ragged(path: Path) -> None:
        with parquet.ParquetWriter(path, schema) as writer:
            for first, size in ((0, 1), (1, 30), (31, 0), (31, 2), (33, 27)):
                writer.write_table(pa.Table.from_pylist(rows[first : first + size], schema))

    def no_row_group(path: Path) -> None:
        parquet.ParquetWriter(path, schema).close()

    folder = write_all(tmp_path / "in", {"a.parquet": ragged, "b.parquet": no_row_group})
    assert parquet.ParquetFile(folder / "b.parquet").num_row_groups == 0
    null = Bad("field 'meta.text': expected a string, found null")
    outcomes = [f"text {i}" if i % 5 else EMPTY if i % 3 == 2 else null for i in range(60)]
    check_built(command, folder, tmp_path / "store", numbered("a.parquet", outcomes), "--text-field", "meta.text")


def test_values_without_a_python_equivalent_are_bad_rows(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: if all columns are read, a time after the year 9999 or in nanoseconds does not affect other rows."""
    (tmp_path / "all_columns.py").write_text("def keep(row):\n    return len(row) == 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    times = {"us": [1, 253402300800000000, None], "ns": [1001, 2000, 3000]}
    files = {}
    for unit, values in times.items():
        table = pa.table({"text": ["a", "b", "c"], "at": pa.array(values, pa.timestamp(unit))})
        files[f"{unit}.parquet"] = lambda path, table=table: parquet.write_table(table, path)
    bad = Bad("a value that Python cannot represent: ")
    records = [*numbered("ns.parquet", [bad, "b", "c"]), *numbered("us.parquet", ["a", bad, "c"])]
    folder = write_all(tmp_path / "in", files)
    check_built(command, folder, tmp_path / "store", records, "--filter", "all_columns:keep")
    assert datetime.MAXYEAR == 9999


def bytes_of(make: Callable[[Path], object], path: Path) -> bytes:
    """The bytes that a writer writes."""
    make(path)
    data = path.read_bytes()
    path.unlink()
    return data


REFUSED_TABLES: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "0 bytes": ("", lambda whole, _: b""),
    "a head": ("", lambda whole, _: whole[:6]),
    "half": ("", lambda whole, _: whole[: len(whole) // 2]),
    "all but a byte": ("", lambda whole, _: whole[:-1]),
    "all but the end mark": ("", lambda whole, _: whole[:-8]),
    "lines of JSON": ("", lambda *_: b'{"text": "a"}\n'),
    "two put together": ("stream", lambda whole, other: whole + other),
}


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
@pytest.mark.parametrize("damage", REFUSED_TABLES)
def test_a_damaged_table_fails_the_build(command: Run, tmp_path: Path, kind: str, damage: str) -> None:
    """P9: exit code 1 with the file's name, and no store of the rows that can still be read."""
    only, cut = REFUSED_TABLES[damage]
    if only and kind != only:
        return
    make = {"stream": arrow_of, "file": lambda column: arrow_of(column, pa.ipc.new_file), "parquet": parquet_of}[kind]
    whole, other = (bytes_of(make(pa.array([text] * 9)), tmp_path / "x") for text in ("one", "two"))
    ending = ".parquet" if kind == "parquet" else ".arrow"
    folder = write_all(tmp_path / "in", {"a.txt": b"sound", f"b{ending}": cut(whole, other)})
    parts = (f"input: {folder}/b{ending} is damaged or incomplete", "fetch it again or omit it")
    check_refused(command, folder, tmp_path / "store", 1, *parts, options=["--max-bad", 99])


def test_a_repeated_or_missing_column_is_refused(command: Run, tmp_path: Path) -> None:
    """It would be ambiguous which column is meant."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    makers = {"a.parquet": lambda path: parquet.write_table(table, path), "b.parquet": lambda path: parquet.write_table(pa.table({"body": ["a"]}), path)}  # fmt: skip
    found = {
        "a.parquet": "2 columns are named 'text' ({})",
        "b.parquet": "there is no column 'text' in {}; its columns are 'body'",
    }
    for name, make in makers.items():
        folder = write_all(tmp_path / name, {name: make})
        check_refused(command, folder, tmp_path / "store", 1, "field: " + found[name].format(folder / name))
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as out:
        out.write_table(table)
    check_refused(command, tmp_path / "c.arrow", tmp_path / "store", 1, "2 columns are named 'text'")


def saved(folder: Path, splits: dict[str, list[str]]) -> dict[str, object]:
    """The files that `save_to_disk` of Hugging Face datasets writes for a dict of data sets with two files each."""
    files: dict[str, object] = {"dataset_dict.json": json.dumps({"splits": list(splits)}).encode()}
    for split, texts in splits.items():
        names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
        for i, name in enumerate(names):
            files[f"{split}/{name}"] = arrow_of(pa.array(texts[i::2]))
        files[f"{split}/state.json"] = json.dumps({"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}).encode()  # fmt: skip
        files[f"{split}/dataset_info.json"] = b"{}"
        files[f"{split}/cache-0123.arrow"] = arrow_of(pa.array(["of another table"]))
    return files


def test_a_saved_dict_of_data_sets(command: Run, tmp_path: Path) -> None:
    """The listed files of all splits are read, and nothing else in the folder."""
    folder = write_all(tmp_path / "set", saved(tmp_path, {"train": ["a", "b", "c"], "test": ["d", "e"]}))
    expected = [("test", 0, "d", 1), ("test", 1, "e", 1), ("train", 0, "a", 1), ("train", 0, "c", 2), ("train", 1, "b", 1)]  # fmt: skip
    records = [(f"{split}/data-0000{i}-of-00002.arrow", number, text) for split, i, text, number in expected]
    check_built(command, folder, tmp_path / "store", records)


def test_a_missing_listed_file_is_reported(command: Run, tmp_path: Path) -> None:
    """P9: a data set with missing files is not a smaller data set."""
    folder = write_all(tmp_path / "set", saved(tmp_path, {"train": ["a", "b"], "test": ["c", "d"]}))
    lost = folder / "test" / "data-00001-of-00002.arrow"
    lost.unlink()
    check_refused(command, folder, tmp_path / "store", 2, f"input: {lost} is missing")
    for path in (folder / "test").glob("*.arrow"):
        path.unlink()
    check_refused(command, folder, tmp_path / "store", 2, f"input: {lost} is missing")
    (folder / "test" / "state.json").write_text('{"step": 7}')  # of a training run
    (folder / "train" / "state.json").write_text("[")
    check_refused(command, folder, tmp_path / "store", 2, "train/state.json is not the state of a saved data set")


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
def test_a_changed_byte_never_crashes_or_loses_a_row(tmp_path: Path, kind: str) -> None:
    """P9: tables have no checksums, so a letter may change, but no row is lost."""
    from tests.support.stores.reading import read_slice
    from tokenstore.builder.reading.inputs import find_inputs
    from tokenstore.builder.reading.units import cut_units
    from tokenstore.errors import TokenStoreError

    column = pa.array([f"text number {i}" for i in range(60)])
    makers = {"stream": arrow_of(column, rows=20), "file": arrow_of(column, pa.ipc.new_file, 20), "parquet": parquet_of(column, row_group_size=20, compression="none")}  # fmt: skip
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    makers[kind](path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for change in (0x01, 0x10, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
            try:
                files = find_inputs((str(path),)).files
                parts = [part for unit in cut_units(files, 700) for part in unit]
                assert sum(len(read_slice(files, part)[0]) for part in parts) == len(column), (at, change)
            except TokenStoreError as error:
                assert str(path) in str(error)  # noqa: PT017  # either outcome is right
