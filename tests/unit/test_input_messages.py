"""Files with the wrong ending: recognised by their first bytes, with what to do."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from tests.support.processes.command_lines import run_here

TABLE = pa.table({"text": ["a", "b"]})
LINE = b'{"text": "a"}\n'


def as_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(TABLE, out)
    return out.getvalue()


def as_arrow(writer: Callable) -> bytes:
    out = io.BytesIO()
    with writer(out, TABLE.schema) as stream:
        stream.write_table(TABLE)
    return out.getvalue()


def as_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.jsonl", LINE)
    return out.getvalue()


MISNAMED = [
    ("a.jsonl", gzip.compress(LINE, mtime=0), "gzip data; rename it to a.jsonl.gz"),
    ("a.jsonl", zstandard.compress(LINE), "zstd data; rename it to a.jsonl.zst"),
    ("a.jsonl", as_parquet(), "a Parquet file; rename it to a.parquet"),
    ("a.jsonl", as_arrow(pa.ipc.new_file), "an Arrow file; rename it to a.arrow"),
    ("a.jsonl", as_arrow(pa.ipc.new_stream), "an Arrow stream; rename it to a.arrow"),
    ("a.jsonl", lzma.compress(LINE), "xz data; rename it to a.jsonl.xz"),
    ("a.jsonl", bz2.compress(LINE), "bzip2 data; rename it to a.jsonl.bz2"),
    ("a.jsonl", as_zip(), "a zip archive; unpack it first"),
    ("a.csv", "text\nä".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
    ("a.jsonl.gz", zstandard.compress(LINE), "zstd data; rename it to a.jsonl.zst"),
    ("a.jsonl.zst", gzip.compress(LINE, mtime=0), "gzip data; rename it to a.jsonl.gz"),
    ("a.parquet", as_arrow(pa.ipc.new_file), "an Arrow file; rename it to a.arrow"),
    ("a.arrow", as_parquet(), "a Parquet file; rename it to a.parquet"),
]


@pytest.mark.parametrize(("name", "data", "message"), MISNAMED, ids=[f"{row[0]}-{row[2][:12]}" for row in MISNAMED])
def test_a_misnamed_input_is_recognized(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    """The build fails, even with bad records allowed; the message says what the file is, its path and what to do."""
    (tmp_path / name).write_bytes(data)
    done = run_here("build", tmp_path / name, "-o", tmp_path / "s", "--tokenizer", "bytes", "--max-bad", 99)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: input: {tmp_path / name} cannot be read as {Path(name).suffix}: this is {message}\n"
    )


def test_a_text_file_of_another_kind_is_one_bad_record(tmp_path: Path) -> None:
    """It may be allowed like other bad records. A text that only begins like a Parquet file is a text."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(gzip.compress(b"text"))
    (tmp_path / "in" / "b.txt").write_bytes(b"PAR1, the first part")
    build = ("build", tmp_path / "in", "-o", tmp_path / "s", "--tokenizer", "bytes")
    done = run_here(*build)
    assert done.returncode == 3
    assert "record 1 of a.txt: this is gzip data; rename it to a.txt.gz" in done.stderr
    done = run_here(*build, "--max-bad", 1)
    assert done.returncode == 0
    assert "documents    1 from 2 files" in done.stdout


def test_the_message_for_a_missing_field_lists_existing_ones(tmp_path: Path) -> None:
    """Those of the record, or of the object that should contain it, and not too many."""
    (tmp_path / "a.jsonl").write_bytes(b'{"content": "a", "meta": {"url": "u"}}\n')
    build = ("build", tmp_path / "a.jsonl", "-o", tmp_path / "s", "--tokenizer", "bytes")
    assert "no field 'text'; the record has 'content', 'meta' (" in run_here(*build).stderr
    assert "); name the field of the text with --text-field, or allow more" in run_here(*build).stderr
    assert "no field 'meta.text'; 'meta' has 'url' (" in run_here(*build, "--text-field", "meta.text").stderr
    assert "'content' has no fields, it is str (" in run_here(*build, "--text-field", "content.text").stderr
    (tmp_path / "a.jsonl").write_text("{" + ", ".join(f'"{"x" * 99}{i}": 1' for i in range(2000)) + "}")
    error = run_here(*build).stderr
    assert "and 1992 more (" in error
    assert len(error) < 1500


def test_a_repeated_column_is_reported_as_such(tmp_path: Path) -> None:
    """Not as a missing column `text` among `text` and `text`."""
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    done = run_here("build", tmp_path / "a.csv", "-o", tmp_path / "s", "--tokenizer", "bytes")
    assert done.returncode == 1
    assert f"2 columns are named 'text' ({tmp_path / 'a.csv'}); rename all but one" in done.stderr


def test_an_append_reports_what_it_added(tmp_path: Path) -> None:
    """The documents, tokens and speed of the append, not of the whole store."""
    for name, count in (("a", 50), ("b", 3)):
        (tmp_path / f"{name}.jsonl").write_bytes(b'{"text": "0123456789"}\n' * count)
    run_here("build", tmp_path / "a.jsonl", "-o", tmp_path / "s", "--tokenizer", "bytes")
    done = run_here("append", tmp_path / "s", tmp_path / "b.jsonl")
    assert "added        3 documents, 33 tokens\n" in done.stdout
    assert "tokens       583 as" in done.stdout
    again = run_here("append", tmp_path / "s", tmp_path / "b.jsonl", "--json")
    assert '"new_documents": 0, "new_tokens": 0' in again.stdout
