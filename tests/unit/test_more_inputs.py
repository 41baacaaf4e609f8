"""JSON arrays, .bz2, .xz, tar archives and hive-partitioned tables: every document once, damage named, memory bounded."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import Build, as_bytes, documents
from tests.support.stores.reading import read_slice
from tokenstore.builder.reading import decompress, json_array
from tokenstore.builder.reading.decompress import decompressed
from tokenstore.builder.reading.inputs import find_inputs
from tokenstore.builder.reading.json_array import ArrayItems
from tokenstore.builder.reading.records import Bad
from tokenstore.builder.reading.units import Slice
from tokenstore.errors import BuildError

RECORDS = [{"text": text, "n": [i, {"]": "}"}]} for i, text in enumerate(TEXTS)]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def texts(path: Path, **options: object) -> list[str | Bad]:
    return [text for _, text in read_slice(find_inputs((str(path),)).files, Slice(0), **options)[0]]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".txt", ".csv"])
def test_every_format_is_read_in_every_compression(tmp_path: Path, ending: str, compression: str) -> None:
    data = {
        ".jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS),
        ".json": json.dumps(RECORDS, indent=2),
        ".txt": "\n".join(TEXTS),
        ".csv": 'text,n\n"a ""b""\nc",1\nd,2\n',
    }[ending]
    path = tmp_path / f"a{ending}{compression}"
    path.write_bytes(COMPRESS[compression](data.encode()))
    assert texts(path) == {".txt": ["\n".join(TEXTS)], ".csv": ['a "b"\nc', "d"]}.get(ending, TEXTS)


@given(items=st.lists(NESTED, max_size=8), data=st.data(), ascii=st.booleans())
def test_an_array_gives_the_items_that_a_plain_reader_finds(items: list, data: st.DataObject, ascii: bool) -> None:
    """Whatever the nesting, the white space, and where chunks end."""
    indent = data.draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(items, indent=indent, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    chunk = data.draw(st.integers(1, 9))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_array, "CHUNK", chunk)
        found = [
            json.loads(item.decode("utf-8", "surrogatepass"))
            for item in ArrayItems(io.BytesIO(b" \n" + text + b" \r\n"), 1 << 20)
        ]
    assert found == items


@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=8), chunk=st.integers(1, 40))
def test_items_that_are_too_long_are_skipped_alone(lengths: list[int], chunk: int) -> None:
    """Strings, nested lists and escapes of any length: the items around them are complete."""
    values = [random.Random(n).choice(['"' * n, "\\" * n, [["x" * n]], {"a": ["]" * n]}]) for n in lengths]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_array, "CHUNK", chunk)
        found = [*ArrayItems(io.BytesIO(json.dumps(values).encode()), 20)]
    assert len(found) == len(values)
    for item, value in zip(found, values, strict=True):
        assert item is None or json.loads(item) == value
        assert item is not None or len(json.dumps(value)) > 20


def test_wrong_items_of_an_array_are_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a"}, {bad}, 7, , {"text": "' + "x" * 100 + '"}, {"text": "b"}]')
    found = texts(path, max_record_bytes=50)
    assert [each if isinstance(each, str) else each.reason.split(":")[0] for each in found] == [
        "a", "not JSON", "expected a JSON object, found int", "not JSON", "longer than 50 bytes; --max-record-size allows more", "b",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ['[{"text": "a"}', '[{"text": "a', "[", '[{"text": "a"}] x', "[}]", '["a\\'])
def test_a_damaged_array_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(BuildError, match=r"a\.json is damaged or incomplete"):
        texts(path)


def test_a_json_file_of_lines_is_still_cut_into_units(tmp_path: Path) -> None:
    """Only an array makes it a file that is read from its start."""
    (tmp_path / "lines.json").write_text('{"text": "a"}\n')
    (tmp_path / "array.json").write_text("\ufeff\n [")
    files = find_inputs((str(tmp_path / "lines.json"), str(tmp_path / "array.json"))).files
    assert [file.format for file in files] == [".jsonl", ".json"]


@pytest.mark.parametrize("compression", [".bz2", ".xz"])
def test_all_members_are_read_and_any_truncation_is_found(tmp_path: Path, compression: str) -> None:
    """Concatenated members, and for .xz padding between them; a cut or garbage anywhere is an error, never less text."""
    compress = COMPRESS[compression]
    text = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
    padding = bytes(8) if compression == ".xz" else b""
    data = compress(text[:100]) + padding + compress(b"") + compress(text[100:]) + padding
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(data)
    assert texts(path) == TEXTS
    for cut in (0, 1, 10, len(compress(text[:100])) - 1, len(data) - len(padding) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(BuildError, match="damaged or incomplete"):
            texts(path)
    for garbage in (b"garbage", compress(text)[:20]):
        path.write_bytes(data + garbage)
        with pytest.raises(BuildError, match="damaged or incomplete"):
            texts(path)


@pytest.mark.parametrize("compression", [".bz2", ".xz"])
def test_a_small_file_that_expands_is_read_in_small_steps(compression: str) -> None:
    raw = io.BufferedReader(io.BytesIO(COMPRESS[compression](bytes(50_000_000))))
    stream = decompressed(raw, compression)
    sizes = [len(data) for data in iter(lambda: stream.read1(1 << 30), b"")]
    assert (sum(sizes), max(sizes) <= decompress.CHUNK) == (50_000_000, True)


def test_an_xz_file_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    path = tmp_path / "a.txt.xz"
    path.write_bytes(_with_dictionary(lzma.compress(b"text", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])))
    assert filters
    with pytest.raises(BuildError, match="damaged or incomplete"):
        texts(path)


def _with_dictionary(data: bytes) -> bytes:
    """An .xz file whose block header asks for a dictionary of 4 GiB, with its checksum made to fit."""
    import zlib

    size = (data[12] + 1) * 4
    header = bytearray(data[12 : 12 + size - 4])
    header[header.index(0x21) + 2] = 40
    return data[:12] + bytes(header) + zlib.crc32(bytes(header)).to_bytes(4, "little") + data[12 + size :]


def tar(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


LONG = "d/" * 120 + "ü" * 100
MEMBERS = [
    ("a/0.json", b'{"meta": {"lang": "en"}}'),
    ("a/0.txt", b"first"),
    ("a/0.jpg", bytes(3000)),
    ("a/1.v2.txt", "\ufeffsecond ☃".encode()),
    ("a/.hidden.txt", b"no"),
    (f"{LONG}.txt", b"x" * 5000),
    ("b.md", b"not read"),
    ("c.json", b'{"text": "of json"}'),
]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.tar.xz", "a.tar.bz2"])
def test_an_archive_of_texts_is_read_as_samples(tmp_path: Path, name: str, form: int) -> None:
    """Files with one name are one record: fields of .json, the text of .txt. Long names, other files, folders."""
    path = tmp_path / name
    path.write_bytes(COMPRESS[{"tgz": ".gz", "tar": ""}.get(name.split(".")[-1], path.suffix)](tar(MEMBERS, form)))
    assert texts(path) == ["first", "second ☃", "x" * 5000, "of json"]


def test_fields_of_samples_can_be_kept(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(MEMBERS[:4]))
    result = build(tmp_path / "a.tar", id_field="__key__", keep=("meta.lang",))
    with tokenstore.open_store(result.path) as store:
        assert [(store.id(i), store.metadata(i)["meta.lang"], store.origin(i).record) for i in range(2)] == [
            ("a/0", "en", 1),
            ("a/1.v2", None, 2),
        ]


def test_other_endings_in_an_archive_are_texts_on_request(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar([("x.md", b"# x"), ("y.md", b"# y")]))
    with pytest.raises(BuildError, match=r"has no members that end in \.txt or \.json \(it has: 2 \.md\)"):
        build(tmp_path / "a.tar")
    assert documents(build(tmp_path / "a.tar", text_endings=(".md",), text_field="md").path) == as_bytes("# x", "# y")


def test_wrong_members_are_bad_records_and_damage_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar([("a.txt", b"\xff"), ("b.json", b"[]"), ("c.txt", b"x" * 2000), ("d.txt", b"good")]))
    found = texts(path, max_record_bytes=1000)
    assert [each if isinstance(each, str) else each.reason[:20] for each in found] == [
        "a.txt: not UTF-8: in", "b.json: expected a J", "longer than 1000 byt", "good",
    ]  # fmt: skip
    sound = tar(MEMBERS)
    header = bytearray(sound)
    header[600] ^= 1  # the checksum of the second header is wrong
    end = sound.rstrip(b"\0")
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    for data in (
        sound[:100],
        sound[: len(end)],
        sound[: -(-len(end) // 512) * 512],
        bytes(header),
        sound + sound,
        huge.tobuf(),
    ):
        path.write_bytes(data)
        with pytest.raises(BuildError, match="damaged or incomplete"):
            texts(path)


def test_partitions_of_a_table_are_columns(build: Build, tmp_path: Path) -> None:
    """Hive style: the folders name columns that the files lack. They can be kept, and are given to functions."""
    for lang, day in (("en", "2024-01"), ("de%20at", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / f"table/lang={lang}/day={day}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"text": [f"text {lang}"], "n": [1]}), folder / "part-0.parquet")
    result = build(tmp_path / "table", keep=("lang", "day", "n"))
    with tokenstore.open_store(result.path) as store:
        assert [store.metadata(i) for i in range(2)] == [
            {"lang": "de at", "day": None, "n": 1},
            {"lang": "en", "day": "2024-01", "n": 1},
        ]
    with pytest.raises(BuildError, match="there is no column 'land'"):
        build(tmp_path / "table", output="b", keep=("land",))


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".arrow"])
def test_a_field_inside_a_list_is_found_by_its_index(build: Build, tmp_path: Path, ending: str) -> None:
    rows = [{"m": [{"c": "a"}, {"c": "b"}], "id": "1"}, {"m": [{"c": "c"}], "id": "2"}]
    path = tmp_path / f"a{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, pa.Table.from_pylist(rows).schema) as out:
            out.write_table(pa.Table.from_pylist(rows))
    assert documents(build(path, output="a", text_field="m[0].c").path) == as_bytes("a", "c")
    assert documents(build(path, output="b", text_field="m.-1.c").path) == as_bytes("b", "c")
    with pytest.raises(tokenstore.TokenStoreError, match=r"no field 'm\[1\].c'; 'm' has 1 items"):
        build(path, output="c", text_field="m[1].c")
