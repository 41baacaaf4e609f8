"""Unusual and damaged .jsonl and .txt files, plain and compressed: every record is in the store or reported, none
twice.
"""

import gzip
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

import tokenstore
from tests.support.stores.odd_builds import (
    EMPTY,
    Bad,
    Outcome,
    Record,
    Run,
    arguments_of,
    check_built,
    check_refused,
    command,
    run_outside,
    write_all,
)
from tests.support.stores.reading import read_slice
from tokenstore.builder.reading.inputs import find_inputs
from tokenstore.builder.reading.units import Slice

__all__ = ["command"]
MB = 1 << 20
BOM = b"\xef\xbb\xbf"
SKIPPED = Bad("")  # a blank line is not a record, but it has a number
NOT_JSON = Bad("not JSON: ")

LINES: list[tuple[bytes, Outcome]] = [
    (b'{"text": "plain"}', "plain"),
    (b"", SKIPPED),
    (b" \t ", SKIPPED),
    (b'{"text": ""}', EMPTY),
    (b'{"text": " \\n"}', " \n"),
    (b'{"text": null}', Bad("field 'text': expected a string, found null")),
    (b'{"Text": "a", "texts": "b"}', Bad("no field 'text'")),
    (b"{}", Bad("no field 'text'")),
    (b'{"text": 7}', Bad("field 'text': expected a string, found int")),
    (b'{"text": true}', Bad("field 'text': expected a string, found bool")),
    (b'{"text": 1.5}', Bad("field 'text': expected a string, found float")),
    (b'{"text": ["a", "b"]}', Bad("field 'text': expected a string, found list")),
    (b'{"text": {"text": "a"}}', Bad("field 'text': expected a string, found dict")),
    (b'["text"]', Bad("expected a JSON object, found list")),
    (b'"text"', Bad("expected a JSON object, found str")),
    (b"null", Bad("expected a JSON object, found NoneType")),
    (b"7", Bad("expected a JSON object, found int")),
    (b'{"text": "a"} {"text": "b"}', NOT_JSON),
    (b'{"text": "a"},', NOT_JSON),
    (b'{"text": "cut', NOT_JSON),
    (b"{'text': 'a'}", NOT_JSON),
    (b'{"text": "a", "n": NaN}', NOT_JSON),
    (b'{"text": "a", "n": Infinity}', NOT_JSON),
    (b'{"text": "a", "n": -Infinity}', NOT_JSON),
    (b'{"text": "a number of any size", "n": 123456789012345678901234567890}', "a number of any size"),
    (b'{"text": "the first", "text": "the last of two"}', "the last of two"),
    (b'{"text": "the last of two is none", "text": null}', Bad("field 'text': expected a string, found null")),
    (b'{"text": "escaped \\ud83e\\udd8a \\u0000"}', "escaped 🦊 \0"),
    (b'{"text": "a lone surrogate \\ud800"}', NOT_JSON),
    (b'{"text": "a lone surrogate \\udc00 and more"}', NOT_JSON),
    (b'{"text": "its bytes \xed\xa0\x80"}', NOT_JSON),
    (b'{"text": "no UTF-8 \xff"}', NOT_JSON),
    (b'{"text": "cut UTF-8 \xe2\x82"}', NOT_JSON),
    (b'{"text": "too long for a character \xc0\x80"}', NOT_JSON),
    (b'{"text": "a", "other": "\xff"}', NOT_JSON),
    (b'{"text": "a NUL \0"}', NOT_JSON),
    (b'{"text": "a control \x01"}', NOT_JSON),
    (b"\0" * 50, NOT_JSON),
    (b'{"text": "a\xe2\x80\xa8b\xe2\x80\xa9c\xc2\x85d\x7f"}', "a\u2028b\u2029c\u0085d\x7f"),
    (BOM + b'{"text": "a mark in the middle of a file"}', NOT_JSON),
    (b'{"text": "\xef\xbb\xbfa mark in a text"}', "\ufeffa mark in a text"),
    (b'{"text": "nested", "a": ' + b"[" * 1000 + b"]" * 1000 + b"}", "nested"),
    (b'{"text": 7, "a": ' + b"[" * 1000 + b"]" * 1000 + b"}", Bad("field 'text': expected a string, found int")),
    (b'{"text": ' + b'{"text":' * 1000 + b"1" + b"}" * 1001, Bad("field 'text': expected a string, found dict")),
    (b'{"text": "nested too deep", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", NOT_JSON),
    (b"[" * 100_000, NOT_JSON),
    (b'{"text": "<|endoftext|><|padding|>"}', "<|endoftext|><|padding|>"),
    (b'{"text": "last"}', "last"),
]


def zstd(data: bytes, **parameters: object) -> bytes:
    """One frame without its content size, as `zstd < file` writes it."""
    made = zstandard.ZstdCompressionParameters(**{"write_content_size": False, **parameters})
    compressor = zstandard.ZstdCompressor(compression_params=made).compressobj()
    return compressor.compress(data) + compressor.flush()


def records_of(name: str, lines: Sequence[tuple[bytes, Outcome]] = LINES) -> list[Record]:
    """The records of a file of these lines."""
    return [(name, number, outcome) for number, (_, outcome) in enumerate(lines, 1) if outcome is not SKIPPED]


def joined(ends: Sequence[bytes], last: bytes) -> bytes:
    """LINES with alternating line ends, and `last` instead of the last one."""
    ended = [line + ends[i % len(ends)] for i, (line, _) in enumerate(LINES)]
    return b"".join(ended).removesuffix(ends[(len(LINES) - 1) % len(ends)]) + last


def in_members(data: bytes, size: int) -> bytes:
    """A gzip file with a member every `size` bytes."""
    return b"".join(gzip.compress(data[i : i + size]) for i in range(0, len(data), size))


FORMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "LF": ("a.jsonl", lambda: joined([b"\n"], b"\n")),
    "CRLF": ("a.jsonl", lambda: joined([b"\r\n"], b"\r\n")),
    "mixed ends and none at the end": ("a.jsonl", lambda: joined([b"\n", b"\r\n", b" \r\n"], b"")),
    "a mark first": ("a.jsonl", lambda: BOM + joined([b"\n"], b"\n\n\n")),
    "gz, a member a line": ("a.jsonl.gz", lambda: b"".join(gzip.compress(x + b"\n", 1) for x, _ in LINES)),
    "zst, a frame a line": ("a.jsonl.zst", lambda: b"".join(zstd(x + b"\n") for x, _ in LINES)),
    "zst --long": ("a.jsonl.zst", lambda: zstd(joined([b"\n"], b""), window_log=27, enable_ldm=True)),
    "json.gz, cut inside lines": ("a.json.gz", lambda: in_members(joined([b"\n"], b"\n"), 997)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_odd_line_is_a_document_or_a_bad_record_with_its_number(command: Run, tmp_path: Path, form: str) -> None:
    """P9: no line affects another, and the compression of the file makes no difference."""
    name, make = FORMS[form]
    folder = write_all(tmp_path / "in", {name: make()})
    check_built(command, folder, tmp_path / "store", records_of(name))


@pytest.mark.deep
def test_the_command_reports_the_same(tmp_path: Path) -> None:
    """P9: as users run it, in a separate process, without warnings; damage and empty results are exit code 1."""
    folder = write_all(tmp_path / "in", {"a.jsonl": joined([b"\n"], b"\n")})
    check_built(run_outside, folder, tmp_path / "store", records_of("a.jsonl"))
    write_all(folder, {"b.jsonl.zst": zstd(GOOD["jsonl"])[:-1]})
    check_refused(run_outside, folder, tmp_path / "none", 1, ".zst is damaged or incomplete", options=["--max-bad", 99])


SPECIAL = ["<|endoftext|>", "between <|user|>", "<|endoftext", "<|padding|> is none of this tokenizer's"]


@pytest.mark.parametrize("special_text", ["plain", "special", "error"])
def test_special_tokens_in_texts(command: Run, tmp_path: Path, tokenizer_file: Path, special_text: str) -> None:
    """Special tokens in a text are text by default; on request they become ids, or make the record bad."""
    folder = write_all(
        tmp_path / "in", {"a.jsonl": b"".join(json.dumps({"text": t}).encode() + b"\n" for t in SPECIAL)}
    )
    options = ["--tokenizer", tokenizer_file, "--special-text", special_text, "--max-bad", 2]
    code, _, err = command([folder, "--output", tmp_path / "store", *options])
    assert code == 0, err
    with tokenstore.open_store(tmp_path / "store") as store:
        special = [sum(id in (0, 1) for id in document[:-1].tolist()) for document in store]
        texts = [store.tokenizer.decode(document[:-1]) for document in store]
    rejects = tmp_path / "store.tokenstore/rejects.jsonl"
    reasons = [json.loads(line)["reason"] for line in rejects.read_text().splitlines()] if rejects.exists() else []
    if special_text == "error":
        assert texts == SPECIAL[2:]
        assert reasons == [f"special token {token!r} in the text" for token in ("<|endoftext|>", "<|user|>")]
    else:
        assert (texts, reasons) == (SPECIAL, [])
        assert special == ([1, 1, 0, 0] if special_text == "special" else [0] * 4)


TEXT_FILES: dict[str, tuple[bytes, Outcome]] = {
    "bom.txt": (BOM + BOM + b"a", "\ufeffa"),
    "control.txt": (b"a\0b\x01\x1b[31m", "a\0b\x01\x1b[31m"),
    "crlf.txt": (b"a\r\nb\rc\n", "a\r\nb\rc\n"),
    "cut.txt": (b"good \xe2\x82", Bad("not UTF-8: unexpected end of data at byte 5")),
    "empty.txt": (b"", EMPTY),
    "empty.txt.gz": (gzip.compress(b""), EMPTY),
    "empty.txt.zst": (zstd(b""), EMPTY),
    "latin.txt": ("é".encode("latin-1"), Bad("not UTF-8: ")),
    "mark.txt": (BOM, EMPTY),
    "members.txt.gz": (gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"text"), "one text"),
    "separators.txt": ("a\u2028b\u2029c\u0085d".encode(), "a\u2028b\u2029c\u0085d"),
    "surrogate.txt": (b"\xed\xa0\x80", Bad("not UTF-8: ")),
    "utf16.txt": ("a".encode("utf-16"), Bad("this is UTF-16 text; convert it to UTF-8")),
}  # fmt: skip


def test_every_odd_text_file_is_a_document_or_a_bad_record(command: Run, tmp_path: Path) -> None:
    """P9: a file is one record, number 1; empty files are counted among the inputs."""
    lines = {"none.jsonl": b"", "none.jsonl.gz": gzip.compress(b""), "none.jsonl.zst": zstd(b""), "mark.jsonl": BOM, "blank.jsonl": b"\n\r\n \n"}  # fmt: skip
    folder = write_all(tmp_path / "in", {**{name: data for name, (data, _) in TEXT_FILES.items()}, **lines})
    records = [(name, 1, outcome) for name, (_, outcome) in sorted(TEXT_FILES.items())]
    check_built(command, folder, tmp_path / "store", records)
    assert len((tmp_path / "store" / "inputs.jsonl").read_text().splitlines()) == len(TEXT_FILES) + len(lines)


GOOD = {"jsonl": b'{"text": "before"}\n{"text": "after"}\n', "txt": b"a text", "csv": b"text\nbefore\nafter\n"}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "of 0 bytes": lambda whole: b"",
    "cut in its head": lambda whole: whole[:3],
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "without its last byte": lambda whole: whole[:-1],
    "with a cut second part": lambda whole: whole + whole[:-1],
    "with garbage after it": lambda whole: whole + b"garbage",
    "that is not compressed": lambda whole: b'{"text": "not compressed"}\n',
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}


@pytest.mark.parametrize("ending", GOOD)
@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_compressed_file_fails_the_build(
    command: Run, tmp_path: Path, ending: str, kind: str, damage: str
) -> None:
    """P9: exit code 1 with the file's name and no store, even if bad records are allowed and other files are valid."""
    name = f"bad.{ending}{kind}"
    data = DAMAGES[damage](COMPRESS[kind](GOOD[ending]))
    folder = write_all(tmp_path / "in", {"a.jsonl": GOOD["jsonl"], name: data, "z.jsonl": GOOD["jsonl"]})
    parts = (f"error: input: {folder / name} is damaged or incomplete", "fetch it again or omit it")
    check_refused(command, folder, tmp_path / "store", 1, *parts, options=["--max-bad", 9])


def test_a_build_without_documents_fails(command: Run, tmp_path: Path) -> None:
    """P9: exit code 1; exit code 0 means that a store was written."""
    folder = write_all(tmp_path / "in", {"a.jsonl": b"", "b.txt": b""})
    check_refused(command, folder, tmp_path / "none", 1, "documents: expected at least one, found none (2 input files")


LONG = [("jsonl", b'{"text": "%s"}\n'), ("jsonl.gz", b'{"text": "%s"}\n'), ("jsonl.zst", b'{"text": "%s"}\n')]


@pytest.mark.parametrize(("ending", "line"), LONG, ids=[ending for ending, _ in LONG])
def test_a_line_above_the_limit_is_one_bad_record(command: Run, tmp_path: Path, ending: str, line: bytes) -> None:
    """P9: exactly --max-record-size is accepted, one byte more is bad; other lines are kept."""
    room = MB - len(line % b"") + 1  # the line end does not count
    sizes = [1, room, room + 1, 1, (3 if ending == "jsonl.gz" else 40) * MB, 2, MB // 2, room + 5]
    texts = [bytes([97 + i]) * size for i, size in enumerate(sizes)]
    data = b"".join(line % text for text in texts)
    compress = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstd}[ending]
    folder = write_all(tmp_path / "in", {f"a.{ending}": compress(data)})
    too_long = Bad(f"longer than {MB} bytes; --max-record-size allows more")
    outcomes = [text.decode() if size <= room else too_long for text, size in zip(texts, sizes, strict=True)]
    records = [(f"a.{ending}", number, outcome) for number, outcome in enumerate(outcomes, 1)]
    check_built(command, folder, tmp_path / "store", records, "--max-record-size", 1)


def test_a_line_of_many_megabytes(command: Run, tmp_path: Path) -> None:
    """A line of 30 MB, longer than a unit of work, and a text of 5 MB are read completely, and so are their
    neighbours.
    """
    long = "abc " * (30 * MB // 4)
    texts = ("first", long, "last")
    data = b"".join(b'{"text":"%s"}\n' % text.encode() for text in texts)
    records: list[Record] = [("a.jsonl", i, text) for i, text in enumerate(texts, 1)]
    folder = write_all(tmp_path / "in", {"a.jsonl": data, "c.txt": long[: 5 * MB].encode()})
    check_built(command, folder, tmp_path / "store", [*records, ("c.txt", 1, long[: 5 * MB])])


def test_a_hundred_thousand_lines_of_one_letter(command: Run, tmp_path: Path) -> None:
    """Each is a document of two tokens, in order, with its number."""
    letters = np.arange(100_000) % 10 + ord("0")
    data = b"".join(b'{"text":"%c"}\n' % letter for letter in letters.tolist())
    folder = write_all(tmp_path / "in", {"a.jsonl": data})
    assert command(arguments_of(folder, tmp_path / "store"))[0] == 0
    with tokenstore.open_store(tmp_path / "store") as store:
        assert (store.shard(0).reshape(-1, 2)[:, 0] == letters).all()
        assert (store.boundaries()[: len(store)] == np.arange(len(store)) * 2).all()
        assert (store.origins() == np.arange(1, 100_001)).all()


def test_a_decompression_bomb_is_not_held_in_memory(tmp_path: Path) -> None:
    """P9: a line of half a gigabyte of zeros in 16 KB of .zst is a bad record, like other lines that are too long."""
    compressor = zstandard.ZstdCompressor().compressobj()
    zeros = b"".join(compressor.compress(bytes(16 * MB)) for _ in range(32)) + compressor.flush()
    assert len(zeros) < 20_000
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(GOOD["jsonl"]) + zeros + zstd(b"\n" + GOOD["jsonl"]))
    tracemalloc.start()
    try:
        records, _ = read_slice(find_inputs((str(tmp_path),)).files, Slice(0), max_record_bytes=MB)
        assert tracemalloc.get_traced_memory()[1] < 300 * MB
    finally:
        tracemalloc.stop()
    assert [text if isinstance(text, str) else text.reason[:19] for _, text in records] == ["before", "after", "longer than 1048576", "before", "after"]  # fmt: skip


def test_a_text_above_the_limit_is_bad_and_not_held_in_memory(command: Run, tmp_path: Path) -> None:
    """A .txt file is one record; of a compressed one, at most the limit is unpacked."""
    files = {"a.txt": b"a" * MB, "b.txt": b"b" * (MB + 1), "c.txt.gz": gzip.compress(b"c" * (9 * MB)), "d.txt": b"d"}
    too_long = Bad(f"longer than {MB} bytes")
    outcomes = ["a" * MB, too_long, too_long, "d"]
    records = [(name, 1, outcome) for name, outcome in zip(files, outcomes, strict=True)]
    check_built(command, write_all(tmp_path / "in", files), tmp_path / "store", records, "--max-record-size", 1)
