"""`build_store`: documents that are too short or too long, and records too long to be read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, ClassVar

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.building import left_behind
from tests.support.stores.reading import read_slice
from tests.support.stores.written import build_stores, json_lines, rows_of, texts_of, write_records
from tokenstore.builder.documents import collect as batches
from tokenstore.builder.reading import records
from tokenstore.builder.reading.inputs import find_inputs
from tokenstore.builder.reading.records import Bad
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BadRecordsError, BuildError, ConfigError

TOO_LONG = "longer than 40 bytes; --max-record-size allows more"


def naive_lengths(lengths: list[int], low: int, high: int | None, keep_empty: bool) -> tuple[list[int], dict[str, int]]:
    """Lengths that are kept, and the number of others by reason."""
    kept, dropped = [], {"empty": 0, "short": 0, "long": 0}
    for length in lengths:
        if length == 0 and not keep_empty:
            dropped["empty"] += 1
        elif length < low:
            dropped["short"] += 1
        elif high is not None and length > high:
            dropped["long"] += 1
        else:
            kept.append(length)
    return kept, dropped


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=15),
    low=st.integers(0, 4),
    more=st.none() | st.integers(0, 3),
    keep_empty=st.booleans(),
    tokens=st.booleans(),
    eos=st.booleans(),
)
def test_documents_of_other_lengths_are_dropped_and_counted(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    low: int,
    more: int | None,
    keep_empty: bool,
    tokens: bool,
    eos: bool,
) -> None:
    """Against a twin: lengths without added tokens; every document is kept or counted for one reason."""
    tmp_path = tmp_path_factory.mktemp("lengths")
    high = None if more is None else max(low + more, 1)
    rows = [{"input_ids": [65] * n} if tokens else {"text": "A" * n} for n in lengths]
    source = write_records(tmp_path / "in.jsonl", rows)
    kept, dropped = naive_lengths(lengths, low, high, keep_empty)
    if not eos:  # nothing is left to keep of an empty one
        dropped["empty"] += kept.count(0)
        kept = [n for n in kept if n]
    options = {"min_tokens": low, "max_tokens": high, "keep_empty": keep_empty, "eos": eos}
    options |= {"records": "tokens"} if tokens else {}
    if not kept:
        with pytest.raises(BuildError, match="expected at least one, found none"):
            build_stores(tmp_path / "store", source, **options)
        return
    result = build_stores(tmp_path / "store", source, **options)
    assert [row[0] for row in rows_of(result.path)] == [[65] * n + [256] * eos for n in kept]
    assert {name: result.counts[name] for name in dropped} == dropped
    (line,) = json_lines(result.path / "inputs.jsonl")
    assert {name: line[name] for name in dropped} == dropped
    assert (line["lines"], line["documents"]) == (len(lengths), len(kept))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_tokens": -1}, "min_tokens: expected 0 or more, found -1"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more, found 0"),
        ({"max_record_bytes": 0}, "max_record_bytes: expected 1 or more, found 0"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens: expected at most max_tokens, 5, found 6"),
    ],
)
def test_contradictory_length_limits_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=message):
        build_stores(tmp_path / "store", tmp_path, **options)


def test_added_special_tokens_do_not_count_for_the_length(tmp_path: Path) -> None:
    """At both limits, with start and end token; those that a document already has count."""
    source = write_records(tmp_path / "in.jsonl", [{"text": "x" * n} for n in (1, 2, 3, 4)])
    options = {"min_tokens": 2, "max_tokens": 3, "document_start": "bos"}
    assert [len(row[0]) for row in rows_of(build_stores(tmp_path / "store", source, **options).path)] == [4, 5]
    ids = write_records(tmp_path / "ids.jsonl", [{"input_ids": [*range(n), 256]} for n in (1, 2, 3)])
    kept = build_stores(tmp_path / "ids", ids, records="tokens", min_tokens=3, max_tokens=3)
    assert [row[0] for row in rows_of(kept.path)] == [[0, 1, 256]]


def line(size: int, letter: str = "x") -> bytes:
    """A record of this many bytes, without its newline."""
    return json.dumps({"text": letter * (size - 12)}).encode()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_the_longest_line_allowed_is_read_and_one_byte_more_is_bad(tmp_path: Path, ending: str, newline: bytes) -> None:
    """First, between others and last, with a newline after it or not."""
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix, bytes)
    for size in (39, 40, 41, 42, 500):
        path = tmp_path / f"in{size}{ending}"
        path.write_bytes(compress(b"\n".join([line(size), line(20), line(size), line(21), line(size)]) + newline))
        result = build_stores(tmp_path / f"store{size}", path, max_record_bytes=40, max_bad=3)
        long = ["x" * (size - 12)]
        assert texts_of(result.path) == ([*long, "x" * 8, *long, "x" * 9, *long] if size <= 40 else ["x" * 8, "x" * 9])
        assert [row[3][1] for row in rows_of(result.path)] == ([1, 2, 3, 4, 5] if size <= 40 else [2, 4])
        if size > 40:
            rejects = json_lines(result.rejects)
            assert [(row["record"], row["reason"]) for row in rejects] == [(n, TOO_LONG) for n in (1, 3, 5)]
            assert all(row["start"] == line(size).decode()[:41] for row in rejects)


@given(
    sizes=st.lists(st.sampled_from([0, 13, 20, 39, 40, 41, 42, 55, 80, 81, 82, 200]), min_size=1, max_size=12),
    unit=st.integers(1, 130),
    chunk=st.sampled_from([2, 7, 64, 1 << 20]),
    newline=st.booleans(),
)
def test_long_lines_are_bad_and_others_kept_wherever_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], unit: int, chunk: int, newline: bool
) -> None:
    """Against a twin that splits the whole file: every line once, in order, whichever slices a long line spans."""
    lines = [line(size, "abcdefghijkl"[i]) if size else b"" for i, size in enumerate(sizes)]
    path = tmp_path_factory.mktemp("cut") / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" * newline)
    expected = []
    for text in lines:
        if text:
            expected.append(TOO_LONG if len(text) > 40 else json.loads(text)["text"])
    found, num_lines = [], 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "CHUNK", chunk)
        files = find_inputs((str(path),)).files
        for slices in cut_units(files, unit):
            for piece in slices:
                rows, reader = read_slice(files, piece, max_record_bytes=40)
                assert all(1 <= number <= reader.num_lines for number, _ in rows)
                found += [(num_lines + number, row) for number, row in rows]
                num_lines += reader.num_lines
    assert [row.reason if isinstance(row, Bad) else row for _, row in found] == expected
    assert [number for number, _ in found] == [i for i, text in enumerate(lines, 1) if text]
    assert num_lines == len(lines) - (not newline and not lines[-1])


def test_a_long_line_over_several_units_of_a_build(tmp_path: Path, small_units: Callable[[int], None]) -> None:
    """Records after a line that fills several units keep their numbers; two workers see the same."""
    small_units(100)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([line(1000), line(30), line(30), b"", line(777), line(777), line(30), line(350), b""]))
    one = build_stores(tmp_path / "one", path, max_record_bytes=40, max_bad=4)
    two = build_stores(tmp_path / "two", path, max_record_bytes=40, max_bad=4, workers=2)
    assert [row[3][1] for row in rows_of(one.path)] == [2, 3, 7]
    assert [row["record"] for row in json_lines(one.rejects)] == [1, 5, 6, 8]
    assert one.rejects.read_bytes() == two.rejects.read_bytes()
    assert rows_of(one.path) == rows_of(two.path)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.zst"])
def test_a_text_file_too_long_is_one_bad_record(tmp_path: Path, ending: str) -> None:
    """With exactly the maximum size it is read; the other files are kept."""
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix, bytes)
    for name, size in (("a", 40), ("b", 41), ("c", 100_000), ("d", 1)):
        (tmp_path / f"{name}{ending}").write_bytes(compress(name.encode() * size))
    result = build_stores(tmp_path / "store", *sorted(tmp_path.glob("*.txt*")), max_record_bytes=40, max_bad=2)
    assert texts_of(result.path) == ["a" * 40, "d"]
    assert [(r["file"], r["record"], r["reason"]) for r in json_lines(result.rejects)] == [
        (f"{name}{ending}", 1, TOO_LONG) for name in "bc"
    ]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_a_row_too_long_is_one_bad_record(tmp_path: Path, ending: str) -> None:
    """The bytes of all its fields count; a quoted field over many lines is skipped to its end."""
    rows = [
        ("1", "x" * 39),
        ("2", "x" * 40),
        ("3", "é" * 20),
        ("4", "é" * 19),
        ("5", "a\nb\nc," * 50),
        ("6", "end\nend"),
        ("7" * 41, ""),
        ("8", "😀" * 9),
    ]
    comma = "\t" if ending == ".tsv" else ","
    data = "".join(f'"{a}"{comma}"{b}"\n' for a, b in [("id", "text"), *rows]).encode()
    path = tmp_path / f"in{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    with pytest.raises(BadRecordsError):
        build_stores(tmp_path / "store", path, max_record_bytes=40)
    result = build_stores(tmp_path / "store", path, max_record_bytes=40, max_bad=4)
    assert texts_of(result.path) == ["x" * 39, "é" * 19, "end\nend", "😀" * 9]
    assert [row["record"] for row in json_lines(result.rejects)] == [2, 3, 5, 7]
    assert {row["reason"] for row in json_lines(result.rejects)} == {TOO_LONG}


class Watched:
    """A stream that records the sizes of reads, and how many bytes they returned."""

    asked: ClassVar[list[int]] = []
    given = 0

    def __init__(self, raw: BinaryIO, compression: str):
        self.raw = raw

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)

    def readline(self, size: int) -> bytes:
        data = self.raw.readline(size)
        Watched.asked.append(size)
        Watched.given += len(data)
        return data

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *exc: object) -> None:
        self.raw.close()


def test_a_line_too_long_is_read_once_in_pieces(
    tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is skipped piece by piece; a unit that begins inside it does not read on to its end."""
    monkeypatch.setattr(records, "CHUNK", 64)
    monkeypatch.setattr(records, "decompressed", Watched)
    Watched.asked.clear()
    Watched.given = 0
    small_units(1000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(20_000) + b"\n" + line(30) + b"\n")
    assert texts_of(build_stores(tmp_path / "store", path, max_record_bytes=40, max_bad=1).path) == ["x" * 18]
    assert 0 <= min(Watched.asked) <= max(Watched.asked) <= 64
    assert Watched.given < 3 * path.stat().st_size


def test_rejects_are_those_of_all_parts_when_some_are_resumed(
    tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of bad records is complete and in order, whichever run made a part, and nothing else remains."""
    small_units(120)
    monkeypatch.setattr(batches, "_BATCH_DOCUMENTS", 2)
    lines = [line(30) if i % 3 else line(50 + i) for i in range(60)]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    for allowed in (0, 5, 12):
        with pytest.raises(
            BadRecordsError, match=f"records: {allowed + 1} so far, and {allowed} are allowed; the first is record 1 of"
        ):
            build_stores(tmp_path / "store", path, max_record_bytes=40, max_bad=allowed)
        some = json_lines(tmp_path / "store.tokenstore/rejects.jsonl")
        assert [row["record"] for row in some] == list(range(1, 61, 3))[: allowed + 1]
    notes: list[str] = []
    result = build_stores(tmp_path / "store", path, max_record_bytes=40, max_bad=20, note=notes.append)
    assert "resuming" in notes[0]
    assert [row["record"] for row in json_lines(result.rejects)] == list(range(1, 61, 3))
    fresh = build_stores(tmp_path / "fresh", path, max_record_bytes=40, max_bad=20)
    assert fresh.rejects.read_bytes() == result.rejects.read_bytes()
    assert left_behind(result.path) == ["rejects.jsonl"]
