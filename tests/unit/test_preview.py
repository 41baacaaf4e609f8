"""`--dry-run`: shows what a build would do, and does nothing."""

import csv
import gzip
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from tokenstore.builder import BuildOptions, build_store, estimate, preview_build
from tokenstore.commands.app import app, run
from tokenstore.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """600 documents as plain and as compressed lines, 40 as files, and a picture."""
    lines = [json.dumps({"text": f"document {i} " + "word " * (i * 37 % 90)}) + "\n" for i in range(600)]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(lines))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    for i in range(40):
        (folder / f"{i:02d}.txt").write_text("short text " * (i + 1))
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_the_estimate_is_near_and_nothing_is_written(folder: Path) -> None:
    """Tokens and size are within a tenth of those of the build."""
    options = BuildOptions(inputs=(str(folder),), output=folder.parent / "deep" / "store", tokenizer="bytes")
    preview = preview_build(options)
    assert sorted(folder.parent.iterdir()) == [folder]
    assert [row[:2] for row in preview.files] == [(".jsonl", 1), (".jsonl.gz", 1), (".txt", 40)]
    assert sum(size for _, _, size in preview.files) == preview.num_bytes
    assert preview.skipped == {".png": 1}
    assert (preview.dtype, preview.vocab_size, preview.num_bad) == ("uint16", 259, 0)
    result = build_store(options)
    assert result.num_tokens / 1.1 < preview.num_tokens < result.num_tokens * 1.1
    assert result.num_documents / 1.1 < preview.num_documents < result.num_documents * 1.1
    size = sum(path.stat().st_size for path in result.path.iterdir())
    assert size / 1.4 < preview.store_bytes < size * 1.4
    assert preview.store_bytes < preview.disk_bytes < preview.free_bytes


# ---- within a tenth, whatever the format, where short records come first and long ones last

SHORT, LONG = [f"short {i}" for i in range(1500)], ["long words " * (20 + i * 7 % 150) + str(i) for i in range(150)]
TEXTS = {
    "short first": [*SHORT, *LONG],
    "alike first": ["a" * 200] * 800 + [f"{(i + 7) ** 60:x} {(i + 9) ** 40} " * (1 + i % 7) for i in range(300)],
}


def lines_of(texts: list[str], change: Callable[[str], dict] = lambda text: {"text": text}) -> bytes:
    return "".join(json.dumps(change(text)) + "\n" for text in texts).encode()


def write_csv(path: Path, texts: list[str]) -> None:
    with open(path, "w", newline="") as out:
        rows = csv.writer(out, delimiter="," if path.suffix == ".csv" else "\t")
        rows.writerows([["text"], *([text + '\n"quoted"'] for text in texts)])


def write_arrow(path: Path, texts: list[str], kind: str = "stream") -> None:
    table = pyarrow.table({"text": texts, "n": [*range(len(texts))]})
    with pyarrow.OSFile(str(path), "wb") as out, getattr(pyarrow.ipc, f"new_{kind}")(out, table.schema) as writer:
        writer.write_table(table, 100)


def write_saved(folder: Path, texts: list[str]) -> None:
    """Write a data set of two files as Hugging Face `save_to_disk` does."""
    folder.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    write_arrow(folder / names[0], texts[: len(texts) // 2])
    write_arrow(folder / names[1], texts[len(texts) // 2 :])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def write_files(folder: Path, texts: list[str], ending: str) -> None:
    folder.mkdir()
    for i, text in enumerate(texts[::4]):
        (folder / f"{i:05d}{ending}").write_text(text)


def write_many(folder: Path, texts: list[str]) -> None:
    folder.mkdir()
    for first in range(0, len(texts), 40):
        (folder / f"{first:05d}.jsonl").write_bytes(lines_of(texts[first : first + 40]))


def chat(text: str) -> dict:
    return {"messages": [{"role": "user", "content": "a question"}, {"role": "assistant", "content": text}]}


def parquet_of(rows: int) -> Callable[[Path, list[str]], None]:
    return lambda path, texts: parquet.write_table(
        pyarrow.table({"text": texts}), path, row_group_size=rows, compression="zstd"
    )


COMPRESSED = {".gz": gzip.compress, ".zst": zstandard.compress, ".xz": partial(lzma.compress, preset=0)}
WRITERS: dict[str, Callable[[Path, list[str]], object]] = {
    "a.jsonl": lambda path, texts: path.write_bytes(lines_of(texts)),
    "a.jsonl.gz": lambda path, texts: path.write_bytes(gzip.compress(lines_of(texts))),
    "a.jsonl.zst": lambda path, texts: path.write_bytes(zstandard.compress(lines_of(texts))),
    "a.json.gz": lambda path, texts: path.write_bytes(gzip.compress(lines_of(texts))),
    "many": write_many,
    "a.csv": write_csv,
    "a.tsv": write_csv,
    "groups.parquet": parquet_of(20),
    "one.parquet": parquet_of(1 << 20),
    "stream.arrow": write_arrow,
    "file.arrow": lambda path, texts: write_arrow(path, texts, "file"),
    "saved": write_saved,
    "texts": lambda path, texts: write_files(path, texts, ".txt"),
    "code": lambda path, texts: write_files(path, texts, ".py"),
    "chat.jsonl": lambda path, texts: path.write_bytes(lines_of(texts[::5], chat)),
    "tokens.jsonl": lambda path, texts: path.write_bytes(lines_of(texts, lambda t: {"input_ids": [*t.encode()]})),
}
OPTIONS: dict[str, dict] = {
    "code": {"text_endings": (".py",)},
    "chat.jsonl": {"records": "chat", "chat_template": "chatml"},
    "tokens.jsonl": {"records": "tokens"},
}


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make samples small, as if the inputs were some hundred times as large."""
    sizes = {"_SAMPLE": 32 << 10, "_LINES_WINDOW": 1 << 10, "_WINDOW": 256, "_ALL_PIECES": 16, "_MOST_DRAWS": 128}
    for name, size in {**sizes, "_EXCERPT": 256}.items():
        monkeypatch.setattr(estimate, name, size)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        *[(name, "short first") for name in WRITERS],
        *[(name, "alike first") for name in ("a.jsonl", "one.parquet", "texts")],
        *[
            pytest.param(name, "alike first", marks=pytest.mark.deep)
            for name in WRITERS
            if name not in ("a.jsonl", "one.parquet", "texts")
        ],
    ],
)
def test_the_estimate_is_within_a_tenth(tmp_path: Path, small_samples: None, name: str, texts: str) -> None:
    """Documents and tokens, if the beginning of the inputs differs from their end; the same each time."""
    WRITERS[name](tmp_path / name, TEXTS[texts])
    options = BuildOptions((str(tmp_path / name),), tmp_path / "store", "bytes", **OPTIONS.get(name, {}))
    preview = preview_build(options)
    assert preview == replace(preview_build(options), free_bytes=preview.free_bytes)
    result = build_store(options)
    assert preview.num_tokens == pytest.approx(result.num_tokens, rel=0.1)
    assert preview.num_documents == pytest.approx(result.num_documents, rel=0.1)
    assert preview.error < 0.5
    assert (preview.is_exact, preview.read_in_part) == (False, 0)


def test_small_inputs_are_counted_exactly(folder: Path) -> None:
    """If everything is tokenized, nothing is estimated."""
    options = BuildOptions(
        inputs=(str(folder / "a.jsonl"), str(folder / "00.txt")), output=folder.parent / "s", tokenizer="bytes"
    )
    preview, result = preview_build(options), build_store(options)
    assert (preview.num_tokens, preview.num_documents) == (result.num_tokens, result.num_documents)
    assert (preview.is_exact, preview.error) == (True, 0)


def hexadecimal(number: int) -> list[str]:
    """Random texts of 800 characters, which compress to half everywhere."""
    return [random.Random(i).randbytes(400).hex() for i in range(number)]


@pytest.mark.parametrize("most", [800_000, 930_000])
@pytest.mark.parametrize("compression", [".gz", ".zst", ".xz"])
def test_what_is_read_ahead_does_not_bias_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, most: int
) -> None:
    """Python reads .gz files 128 KiB ahead since version 3.12; our readers of other formats decompress up to 1 MiB ahead."""
    monkeypatch.setattr(estimate, "_READ", most)
    monkeypatch.setattr(gzip, "READ_BUFFER_SIZE", 1 << 17, raising=False)
    texts = hexadecimal(2000)
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(COMPRESSED[compression](lines_of(texts)))
    preview = preview_build(BuildOptions(inputs=(str(path),), output=tmp_path / "s", tokenizer="bytes"))
    assert preview.num_tokens == pytest.approx(sum(len(text) + 1 for text in texts), rel=0.02)
    assert (preview.read_in_part, preview.is_exact) == (1, False)


def test_a_stream_too_large_to_read_is_reported_as_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its beginning is scaled by its share of the compressed file, and the output says what is assumed."""
    monkeypatch.setattr(estimate, "_READ", 1 << 20)
    texts = hexadecimal(4000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines_of(texts)))
    line = ["build", str(tmp_path / "a.jsonl.gz"), "-o", str(tmp_path / "s"), "--tokenizer", "bytes", "--dry-run"]
    assert run(app, [*line, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["num_tokens"] == pytest.approx(sum(len(text) + 1 for text in texts), rel=0.02)
    assert row["read_in_part"] == 1
    assert run(app, line) == 0
    assert "only the beginning of 1 large input was read" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_sample_without_a_good_record_is_an_error(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong text field is not "about 0 tokens": the exit code is that of bad records, and the fields are named."""
    WRITERS[name](tmp_path / name, TEXTS["short first"])
    line = ["build", str(tmp_path / name), "-o", str(tmp_path / "s"), "--tokenizer", "bytes", "--dry-run"]
    assert run(app, [*line, "--text-field", "txt"]) == 3
    found = capsys.readouterr().err
    assert "all " in found
    assert "no field 'txt'; the record has 'text'" in " ".join(found.split())


def test_bad_records_of_the_sample_are_counted(tmp_path: Path) -> None:
    """They do not make the preview fail."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnonsense\n{"text": null}\n{"text": "b"}\n')
    preview = preview_build(BuildOptions(inputs=(str(tmp_path / "a.jsonl"),), output=tmp_path / "s", tokenizer="bytes"))
    assert (preview.num_bad, preview.num_documents) == (2, 2)


def test_what_a_build_would_refuse_is_refused(folder: Path) -> None:
    """Inputs and tokenizer are checked as in a build."""
    for inputs, tokenizer in (((str(folder / "none"),), "bytes"), ((str(folder),), "no/such/tokenizer.json")):
        with pytest.raises(ConfigError):
            preview_build(BuildOptions(inputs=inputs, output=folder.parent / "s", tokenizer=tokenizer))


def test_the_command_prints_a_table_or_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the same numbers, and the exit code is 0."""
    line = ["build", str(folder), "-o", str(folder.parent / "s"), "--tokenizer", "bytes", "--dry-run"]
    assert run(app, line) == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown
        for word in (".jsonl.gz", "skipped      other endings: 1 .png", "1 unit;", "uint16", "about", "free")
    )
    assert run(app, [*line, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert f"{row['num_tokens']:,} tokens" in shown
    assert not (folder.parent / "s").exists()
