"""Records of an input file: every line once with its number, reasons for bad ones, damaged files refused by name."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.data.texts import TEXTS
from tests.support.stores.reading import document_reader, read_slice
from tokenstore.builder.reading.inputs import find_inputs
from tokenstore.builder.reading.records import Bad, Reading, SliceReader
from tokenstore.builder.reading.units import Slice, cut_units
from tokenstore.errors import BuildError

LINES = b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in TEXTS)


def records(path: Path, part: Slice = Slice(0), **options: object) -> list[tuple[int, str | Bad]]:  # noqa: B008  # frozen
    """All records of a file, or of a slice of it."""
    return read_slice(find_inputs((str(path),)).files, part, **options)[0]


def texts(path: Path) -> list[str | Bad]:
    """The texts of a file's records."""
    return [text for _, text in records(path)]


def zstd(data: bytes, **parameters: object) -> bytes:
    """One frame without its content size in the header, as `zstd < file` writes it."""
    parameters = zstandard.ZstdCompressionParameters(**{"write_content_size": False, **parameters})
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


SKIPPABLE = b"\x50\x2a\x4d\x18\x05\x00\x00\x00extra"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Write bytes to a file with a given name; return its path."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_txt_file_is_one_document(written: Callable[..., Path], compression: str) -> None:
    """The whole .txt file, including line ends, is one text."""
    data = "\r\n".join(TEXTS).encode()
    path = written("a.txt" + compression, COMPRESS[compression](data))
    assert records(path) == [(1, data.decode())]


@pytest.mark.parametrize("compression", COMPRESS)
def test_each_line_of_a_jsonl_file_is_a_document(written: Callable[..., Path], compression: str) -> None:
    """Lines are in order and numbered from 1, whatever the compression."""
    path = written("a.jsonl" + compression, COMPRESS[compression](LINES))
    assert records(path) == list(enumerate(TEXTS, 1))


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_all_bytes_of_a_read_file_are_counted(written: Callable[..., Path], ending: str, compression: str) -> None:
    """Progress grows to the size of the file on disk, never decreases and never exceeds it."""
    path = written("a" + ending + compression, COMPRESS[compression](LINES * 50))
    reader = SliceReader(find_inputs((str(path),)).files[0], Slice(0), Reading(None))
    seen = [reader.num_bytes for _ in reader] + [reader.num_bytes]
    assert seen == sorted(seen)
    assert seen[-1] == path.stat().st_size


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_all_members_and_frames_of_a_file_are_read(written: Callable[..., Path], compression: str) -> None:
    """Concatenated compressed files are read completely; a line may cross the border."""
    pieces = [LINES[:100], LINES[100:101], b"", LINES[101:]]
    path = written("a.jsonl" + compression, b"".join(map(COMPRESS[compression], pieces)))
    assert texts(path) == TEXTS


def test_hundreds_of_tiny_frames_are_read(written: Callable[..., Path]) -> None:
    """A frame per record, as loggers write them, is read like one frame."""
    lines = LINES.splitlines(keepends=True) * 30
    assert texts(written("a.jsonl.zst", b"".join(map(zstd, lines)))) == TEXTS * 30
    assert texts(written("b.jsonl.gz", b"".join(map(gzip.compress, lines)))) == TEXTS * 30


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_skippable_frames_are_skipped(written: Callable[..., Path], place: str) -> None:
    """A zstd file may hold frames of other data, such as a seek table at its end."""
    frames = [zstd(LINES[:50]), zstd(LINES[50:])]
    frames.insert({"first": 0, "middle": 1, "last": 2}[place], SKIPPABLE)
    assert texts(written("a.jsonl.zst", b"".join(frames))) == TEXTS


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_highly_compressed_text_is_complete(written: Callable[..., Path], compression: str) -> None:
    """Text a thousand times as large as its compressed form is decompressed to the last byte."""
    size = 20_000_000
    path = written("a.txt" + compression, COMPRESS[compression](b"a" * size))
    assert path.stat().st_size < size // 900
    assert [len(text) for text in texts(path)] == [size]


@pytest.mark.parametrize("window_log", [24, 27])
def test_long_windows_are_read(written: Callable[..., Path], window_log: int) -> None:
    """Files made with `zstd --long` up to its default window decompress without an option."""
    data = zstd(LINES, window_log=window_log, enable_ldm=True)
    assert zstandard.get_frame_parameters(data).window_size == 1 << window_log
    assert texts(written("a.jsonl.zst", data)) == TEXTS


@pytest.mark.parametrize("window_log", [28, 31])
def test_windows_that_zstd_itself_refuses_by_default_are_read(written: Callable[..., Path], window_log: int) -> None:
    """Files made with `zstd --long=31` need no option. Only their header is made here, which is enough for a refusal."""
    data = bytearray(zstd(LINES))
    data[5] = (window_log - 10) << 3
    assert zstandard.get_frame_parameters(bytes(data)).window_size == 1 << window_log
    assert texts(written("a.jsonl.zst", bytes(data))) == TEXTS


def test_a_window_beyond_the_format_is_refused_by_name(written: Callable[..., Path]) -> None:
    """P9: a header that asks for terabytes is an error, not an allocation."""
    data = bytearray(zstd(LINES))
    data[5] = 0xF8
    path = written("a.jsonl.zst", bytes(data))
    with pytest.raises(BuildError, match=str(path)):
        records(path)


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_truncated_file_is_refused_by_name(written: Callable[..., Path], ending: str, compression: str) -> None:
    """P9: at every length except at a border of members or frames, where the file is a valid one, shorter by whole
    members.
    """
    pieces = [b'{"text": "first"}\n', b'{"text": "second"}\n{"text": "third"}\n']
    members = [COMPRESS[compression](piece) for piece in pieces]
    whole = b"".join(members)
    border = len(members[0])
    for size in range(len(whole)):
        path = written("a" + ending + compression, whole[:size])
        if size == border:
            assert texts(path) == (["first"] if ending == ".jsonl" else [pieces[0].decode()])
            continue
        with pytest.raises(BuildError, match=f"{compression} is damaged or incomplete") as caught:
            records(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_changed_byte_is_refused_or_changes_nothing(written: Callable[..., Path], compression: str) -> None:
    """P9: with checksums in the file, no changed byte yields another text: it is refused, or made no difference."""
    data = {".gz": gzip.compress, ".zst": lambda text: zstd(text, write_checksum=True)}[compression](LINES[:300])
    good = texts(written("good.txt" + compression, data))
    refused = 0
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            path = written("a.txt" + compression, data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
            try:
                assert texts(path) == good
            except BuildError as error:
                assert str(path) in str(error)  # noqa: PT017  # either outcome is right
                refused += 1
    assert refused > 2 * len(data)


@pytest.mark.parametrize("garbage", [b"g", b"\x1f", b"\x28\xb5\x2f", b"garbage", b"\n", LINES], ids=repr)
@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_trailing_garbage_is_refused_by_name(written: Callable[..., Path], compression: str, garbage: bytes) -> None:
    """P9: bytes after the last member or frame are an error."""
    path = written("a.jsonl" + compression, COMPRESS[compression](LINES) + garbage)
    with pytest.raises(BuildError, match=f"{compression} is damaged or incomplete") as caught:
        records(path)
    assert str(path) in str(caught.value)


def test_zeros_after_a_gzip_file_are_padding(written: Callable[..., Path]) -> None:
    """Tapes and block devices pad gzip files with zeros, which gzip itself allows."""
    assert texts(written("a.jsonl.gz", gzip.compress(LINES) + bytes(512))) == TEXTS


@pytest.mark.parametrize("compression", [".gz", ".zst"])
@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_an_empty_compressed_file_is_refused_by_name(
    written: Callable[..., Path], ending: str, compression: str
) -> None:
    """P9: 0 bytes are not a compressed file: probably fetching it failed."""
    path = written("a" + ending + compression, b"")
    with pytest.raises(BuildError, match=f"{compression} is damaged or incomplete") as caught:
        records(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("compression", COMPRESS)
def test_an_empty_text_is_an_empty_document_and_an_empty_jsonl_has_none(
    written: Callable[..., Path], compression: str
) -> None:
    """A complete file with nothing in it is no error."""
    assert records(written("a.txt" + compression, COMPRESS[compression](b""))) == [(1, "")]
    assert records(written("a.jsonl" + compression, COMPRESS[compression](b""))) == []


def test_a_file_that_cannot_be_read_is_refused_by_name(written: Callable[..., Path]) -> None:
    """A file that disappeared since it was found is an error that names it."""
    path = written("a.jsonl", LINES)
    reader = SliceReader(find_inputs((str(path),)).files[0], Slice(0), Reading(None))
    path.unlink()
    with pytest.raises(BuildError, match=f"{path} cannot be read .No such file"):
        list(reader)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_byte_order_mark_is_dropped(written: Callable[..., Path], compression: str) -> None:
    """A BOM before the first character is dropped, once; elsewhere U+FEFF is an ordinary character."""
    bom = b"\xef\xbb\xbf"
    compress = COMPRESS[compression]
    assert texts(written("a.txt" + compression, compress(bom + bom + b"a"))) == ["\ufeffa"]
    data = bom + '{"text": "\ufeffa"}\n'.encode() + bom + b'{"text": "b"}\n'
    first, second = texts(written("a.jsonl" + compression, compress(data)))
    assert first == "\ufeffa"
    assert isinstance(second, Bad)
    assert records(written("b.jsonl" + compression, compress(bom))) == []


def test_a_line_ends_at_a_newline_only(written: Callable[..., Path]) -> None:
    """CRLF, a missing last newline and blank lines are fine; U+2028, U+2029 and U+0085 do not end a line."""
    odd = "a\u2028b\u2029c\u0085d"
    data = b'{"text": "x"}\r\n\r\n \t\n\n' + json.dumps({"text": odd}, ensure_ascii=False).encode()
    assert records(written("a.jsonl", data)) == [(1, "x"), (5, odd)]


JSON_BAD = [
    (b"not json", "not JSON"),
    (b'{"text": "cut', "not JSON"),
    (b'{"text": "a"} {"text": "b"}', "not JSON"),
    (b"{'text': 'a'}", "not JSON"),
    (b'{"text": "a\x01b"}', "not JSON"),
    (b'{"text": "invalid utf-8 \xff"}', "not JSON"),
    (b'{"text": "cut utf-8 \xe2\x82"}', "not JSON"),
    (b'{"text": "utf-8 of a surrogate \xed\xa0\x80"}', "not JSON"),
    (b'{"text": "lone surrogate \\ud800"}', "not JSON"),
    (b'{"text": "lone surrogate \\udc00"}', "not JSON"),
    (b'{"text": "a", "score": NaN}', "not JSON"),
    (b'{"text": "a", "score": Infinity}', "not JSON"),
    (b'{"text": ' + b"[" * 100_000, "not JSON"),
    (b'["text", "a"]', "expected a JSON object, found list"),
    (b'"text"', "expected a JSON object, found str"),
    (b"null", "expected a JSON object, found NoneType"),
    (b"{}", "no field 'text'"),
    (b'{"Text": "a"}', "no field 'text'"),
    (b'{"text": null}', "field 'text': expected a string, found null"),
    (b'{"text": 7}', "field 'text': expected a string, found int"),
    (b'{"text": true}', "field 'text': expected a string, found bool"),
    (b'{"text": ["a"]}', "field 'text': expected a string, found list"),
    (b'{"text": {"text": "a"}}', "field 'text': expected a string, found dict"),
]


@pytest.mark.parametrize(
    ("line", "reason"), JSON_BAD, ids=[line[:40].decode("ascii", "replace") for line, _ in JSON_BAD]
)
def test_a_bad_record_has_a_reason_a_line_number_and_its_beginning(
    written: Callable[..., Path], line: bytes, reason: str
) -> None:
    """P9: it gives no document, and the records around it are read."""
    found = records(written("a.jsonl", b'{"text": "before"}\n\n' + line + b'\n{"text": "after"}\n'))
    assert [number for number, _ in found] == [1, 3, 4]
    assert (found[0][1], found[2][1]) == ("before", "after")
    bad = found[1][1]
    assert isinstance(bad, Bad)
    assert bad.reason.startswith(reason)
    begins = line[:200].decode("utf-8", "replace").replace(" ", "")  # spaces between fields need not be kept
    assert bad.start.replace(" ", "")[:8] == begins[:8]


@pytest.mark.parametrize("data", [b"\xff", b"good \xe2\x82", b"\xed\xa0\x80", "é".encode("latin-1")])
def test_a_txt_file_that_is_not_utf8_is_one_bad_record(written: Callable[..., Path], data: bytes) -> None:
    """P9: text in another encoding is never read with replacement characters."""
    (found,) = records(written("a.txt", data))
    assert found[0] == 1
    assert isinstance(found[1], Bad)
    assert found[1].reason.startswith("not UTF-8")


@pytest.mark.parametrize(
    ("line", "field", "text"),
    [
        (b'{"body": "a"}', "body", "a"),
        (b'{"a": {"b": {"c": "deep"}}}', "a.b.c", "deep"),
        (b'{"a.b": "a name with a dot", "a": {"b": "nested"}}', "a.b", "a name with a dot"),
        (b'{"text": "x", "text": "the last of two"}', "text", "the last of two"),
        (b'{"text": ""}', "text", ""),
        (b'{"text": "\\ud83e\\udd8a \\u0000"}', "text", "🦊 \0"),
        (b'{"text": "a", "n": 123456789012345678901234567890}', "text", "a"),
    ],
)
def test_a_field_is_found_by_its_name_or_its_path(line: bytes, field: str, text: str) -> None:
    """`a.b` is field b of object a, unless a field has exactly that name."""
    assert document_reader(text_field=field).document(json.loads(line)).text == text


@pytest.mark.parametrize("line", [b'{"a": 1}', b'{"a": {"c": "x"}}', b'{"b": "x"}', b'{"a": ["b"]}'])
def test_a_missing_nested_field_makes_the_record_bad(line: bytes) -> None:
    """The reason names its whole path, whichever level is missing."""
    assert document_reader(text_field="a.b").document(json.loads(line)).reason.startswith("no field 'a.b'; ")


def test_a_field_inside_null_is_null() -> None:
    """As in a table."""
    found = document_reader(text_field="a.b").document({"a": None})
    assert found.reason == "field 'a.b': expected a string, found null"


@st.composite
def jsonl_bytes(draw: st.DrawFn) -> bytes:
    """JSON lines of any length, some blank, some bad, with both line ends, with or without the last one."""
    line = st.one_of(
        st.text(max_size=30).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()),
        st.sampled_from([b"", b" ", b"bad", b'{"text": 1}']),
    )
    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    lines = draw(st.lists(st.tuples(line, ends), min_size=1, max_size=20))
    data = b"".join(text + end for text, end in lines)
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + (data if draw(st.booleans()) else data.rstrip(b"\r\n"))


@given(jsonl_bytes(), st.data())
def test_slices_of_any_size_yield_every_line_once(tmp_path: Path, data: bytes, draw: st.DataObject) -> None:
    """P8: where a .jsonl file is cut changes neither its records nor their line numbers."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    files = find_inputs((str(path),)).files
    unit_bytes = draw.draw(st.integers(1, len(data) + 1), "unit_bytes")
    found, lines = [], 0
    for unit in cut_units(files, unit_bytes):
        for part in unit:
            some, reader = read_slice(files, part)
            found += [(lines + number, text) for number, text in some]
            lines += reader.num_lines
    assert found == records(path)
    assert lines == data.count(b"\n") + (data[-1:] not in (b"\n", b""))


@pytest.mark.deep
@given(data=jsonl_bytes())
def test_slices_of_every_size_yield_every_line_once(tmp_path: Path, data: bytes) -> None:
    """P8: the same for all slice sizes of a file, from one byte up."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    files = find_inputs((str(path),)).files
    whole = [text for _, text in records(path)]
    for unit_bytes in range(1, len(data) + 2):
        slices = [part for unit in cut_units(files, unit_bytes) for part in unit]
        assert [text for part in slices for _, text in records(path, part)] == whole


def test_the_text_field_may_have_any_name(written: Callable[..., Path]) -> None:
    """The user names it."""
    path = written("a.jsonl", b'{"body": {"raw": "x"}}\n')
    assert records(path, text_field="body.raw") == [(1, "x")]
