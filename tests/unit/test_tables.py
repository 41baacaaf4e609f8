"""Tables as inputs: every row exactly once, and a bad row does not affect others."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import tokenstore
from tests.support.stores.reading import read_slice
from tokenstore.builder import BuildOptions, build_store
from tokenstore.builder.reading.inputs import find_inputs
from tokenstore.builder.reading.records import Bad
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BuildError, ConfigError

TEXTS = [f"text {i} " + "wörd ☃ " * (i % 37) for i in range(3000)]


def read(path: Path, field: str = "text", unit_bytes: int = 1 << 24) -> list[str | Bad]:
    """All records of a file, read in the units of a build."""
    files = find_inputs((str(path),)).files
    rows = []
    for unit in cut_units(files, unit_bytes):
        for part in unit:
            records, reader = read_slice(files, part, text_field=field)
            assert [number for number, _ in records] == list(range(1, len(records) + 1))
            assert reader.num_lines == len(records)
            assert reader.num_bytes == (part.stop or files[0].num_bytes) - part.start
            rows += [text for _, text in records]
    return rows


def write_parquet(path: Path, column: pa.Array, **options: object) -> Path:
    parquet.write_table(pa.table({"id": pa.array(range(len(column))), "text": column}), path, **options)
    return path


def write_arrow(path: Path, column: pa.Array, writer: Callable = pa.ipc.new_stream) -> Path:
    table = pa.table({"id": pa.array(range(len(column))), "text": column})
    with pa.OSFile(str(path), "wb") as raw, writer(raw, table.schema) as out:
        out.write_table(table, max_chunksize=100)
    return path


KINDS = {
    "string": lambda texts: pa.array(texts),
    "large_string": lambda texts: pa.array(texts, pa.large_string()),
    "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "binary": lambda texts: pa.array([text.encode() for text in texts]),
    "large_binary": lambda texts: pa.array([text.encode() for text in texts], pa.large_binary()),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_text_column_is_read(tmp_path: Path, kind: Callable) -> None:
    """Parquet and both Arrow formats yield the texts in order, whatever the column's type."""
    column = kind(TEXTS)
    assert read(write_parquet(tmp_path / "a.parquet", column)) == TEXTS
    assert read(write_arrow(tmp_path / "s.arrow", column)) == TEXTS
    if not pa.types.is_dictionary(column.type):  # a file of one dictionary a batch cannot be written
        assert read(write_arrow(tmp_path / "f.arrow", column, pa.ipc.new_file)) == TEXTS


@pytest.mark.parametrize("unit_bytes", [1, 500, 5000, 1 << 20])
def test_a_parquet_file_is_cut_by_row_groups_and_each_is_read_once(tmp_path: Path, unit_bytes: int) -> None:
    """Ragged row groups, units of any size: every row once and in order."""
    path = tmp_path / "a.parquet"
    schema = pa.schema([("text", pa.string())])
    with parquet.ParquetWriter(path, schema) as writer:
        first = 0
        for size in (1, 700, 3, 1200, 96, 1000):
            writer.write_table(pa.table({"text": TEXTS[first : first + size]}, schema), row_group_size=size)
            first += size
    if unit_bytes == 1:
        unit_bytes = path.stat().st_size // 3000 + 1
    assert read(path, unit_bytes=unit_bytes) == TEXTS


def test_nested_and_dotted_columns(tmp_path: Path) -> None:
    """`meta.text` is field text of column meta, or a column of that name; inside null it is null."""
    nested = pa.array([{"text": "a", "k": 1}, {"text": None, "k": 2}, None, {"text": "d", "k": 4}])
    parquet.write_table(pa.table({"meta": nested, "x.y": ["1", "2", "3", "4"]}), tmp_path / "a.parquet")
    null = "field 'meta.text': expected a string, found null"
    found = [text if isinstance(text, str) else text.reason for text in read(tmp_path / "a.parquet", "meta.text")]
    assert found == ["a", null, null, "d"]
    assert read(tmp_path / "a.parquet", "x.y") == ["1", "2", "3", "4"]


def test_nulls_and_bytes_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    """The other rows are read."""
    column = pa.array([b"good", None, b"\xff\xfe", b"too"])
    good, null, bad, too = read(write_parquet(tmp_path / "a.parquet", column))
    assert (good, too) == ("good", "too")
    assert null.reason == "field 'text': expected a string, found null"
    assert bad.reason == "not UTF-8: invalid start byte at byte 0"


def test_a_missing_column_or_one_without_text_is_reported(tmp_path: Path) -> None:
    """The message lists the columns."""
    path = write_parquet(tmp_path / "a.parquet", pa.array(["a"]))
    for field in ("body", "text.body", "id.x"):
        with pytest.raises(BuildError, match=rf"no column '{field}' in .*a\.parquet; its columns are 'id', 'text'"):
            read(path, field)
    assert read(path, "id")[0].reason == "field 'id': expected a string, found int"
    with pytest.raises(BuildError, match="there is no column"):
        read(write_arrow(tmp_path / "a.arrow", pa.array(["a"])), "body")


def test_a_truncated_table_is_an_error(tmp_path: Path) -> None:
    """Also a stream cut between two batches, which looks complete to pyarrow."""
    makers = {"a.parquet": write_parquet, "s.arrow": write_arrow}
    for name, make in makers.items():
        data = make(tmp_path / name, pa.array(TEXTS[:500])).read_bytes()
        cut = tmp_path / f"cut{Path(name).suffix}"
        for size in {0, 1, 7, len(data) // 2, *range(len(data) - 40, len(data))}:
            cut.write_bytes(data[:size])
            with pytest.raises(BuildError, match=f"{cut.name} is damaged or incomplete"):
                read(cut)


def test_a_saved_dataset_is_its_listed_files(tmp_path: Path) -> None:
    """Caches in the same folder, and its settings, are skipped and counted."""
    folder = tmp_path / "set"
    folder.mkdir()
    for i in range(2):
        write_arrow(folder / f"data-0000{i}-of-00002.arrow", pa.array([f"part {i}"]))
    write_arrow(folder / "cache-0123.arrow", pa.array(["another table"]))
    files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    (folder / "dataset_info.json").write_text("{}")
    found = find_inputs((str(folder),))
    assert [file.name for file in found.files] == [each["filename"] for each in files]
    assert found.skipped == {".arrow": 1, ".json": 2}
    (folder / "state.json").write_text("[")
    with pytest.raises(
        ConfigError, match=r"state\.json is not the state of a saved data set .*fix it, or name the \.arrow files"
    ):
        find_inputs((str(folder),))


class TestCsv:
    """`csv` of the standard library reads; rows are checked here."""

    def write(self, path: Path, data: bytes) -> Path:
        path.write_bytes(data)
        return path

    def test_quotes_line_ends_and_a_byte_order_mark(self, tmp_path: Path) -> None:
        """A field may hold commas, quotes and line ends."""
        data = b'\xef\xbb\xbftext,id\r\n"a, ""b""\r\nc",1\r\n\r\nplain,2\r\n'
        assert read(self.write(tmp_path / "a.csv", data)) == ['a, "b"\r\nc', "plain"]
        assert read(self.write(tmp_path / "a.tsv", b"id\ttext\n1\ta,b\n")) == ["a,b"]

    def test_only_rows_of_another_width_or_not_utf8_are_bad(self, tmp_path: Path) -> None:
        """The rows around them are read."""
        rows = read(self.write(tmp_path / "a.csv", b"id,text\n1,a\n2\n3,b,c\n4,\xff\n5,e\n"))
        assert [row if isinstance(row, str) else row.reason for row in rows] == [
            "a",
            "expected 2 fields, found 1",
            "expected 2 fields, found 3",
            "not UTF-8: invalid start byte at byte 0",
            "e",
        ]

    def test_no_such_column_and_a_quote_that_never_ends(self, tmp_path: Path) -> None:
        """Both end the build, with the file's name."""
        with pytest.raises(BuildError, match=r"no column 'text' in .*its columns are 'id', 'body'"):
            read(self.write(tmp_path / "a.csv", b"id,body\n1,a\n"))
        with pytest.raises(BuildError, match=r"is not valid CSV: unexpected end of data"):
            read(self.write(tmp_path / "b.csv", b'text\n"a\n'))

    def test_a_field_of_a_megabyte_and_compressed_files(self, tmp_path: Path) -> None:
        """The standard library's limit of 128 KB per field does not apply."""
        data = b"text\n" + b"x" * (1 << 20) + b"\n"
        assert read(self.write(tmp_path / "a.csv.gz", gzip.compress(data))) == ["x" * (1 << 20)]


def test_json_gz_is_lines_of_json_and_plain_json_must_be_named(tmp_path: Path) -> None:
    """C4 and others name their data .json.gz; in a folder, plain .json files usually are settings."""
    lines = b'{"text": "a"}\n{"text": "b"}\n'
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(lines[:14]) + gzip.compress(lines[14:]))
    (tmp_path / "config.json").write_bytes(lines)
    assert read(tmp_path / "c4.json.gz") == ["a", "b"]
    assert read(tmp_path / "config.json") == ["a", "b"]
    assert [file.name for file in find_inputs((str(tmp_path),)).files] == ["c4.json.gz"]


def test_stores_of_the_same_texts_in_every_format_are_equal(tmp_path: Path) -> None:
    """P8: tokens depend neither on the format nor on workers; the library that read a table is recorded."""
    texts = TEXTS[:200]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_parquet(tmp_path / "b.parquet", pa.array(texts), row_group_size=7)
    write_arrow(tmp_path / "c.arrow", pa.array(texts))
    digests = set()
    for name in ("a.jsonl", "b.parquet", "c.arrow"):
        options = BuildOptions(
            inputs=(str(tmp_path / name),), output=tmp_path / f"{name}.store", tokenizer="bytes", workers=1
        )
        digests.add(build_store(options).digest)
        with tokenstore.open_store(tmp_path / f"{name}.store") as store:
            assert ("pyarrow" in store.manifest.package_versions) == (name != "a.jsonl")
    assert len(digests) == 1
