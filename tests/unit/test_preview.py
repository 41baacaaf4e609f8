"""`--dry-run`: what a build would do, and that it does nothing."""

import gzip
import json
from pathlib import Path

import pytest

from tokenstore.build import BuildOptions, build_store, preview_build
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
    """Tokens and size within a third of what the build then makes."""
    options = BuildOptions(inputs=(str(folder),), output=folder.parent / "deep" / "store", tokenizer="bytes")
    preview = preview_build(options)
    assert sorted(folder.parent.iterdir()) == [folder]
    assert [row[:2] for row in preview.files] == [(".jsonl", 1), (".jsonl.gz", 1), (".txt", 40)]
    assert sum(size for _, _, size in preview.files) == preview.num_bytes
    assert preview.passed_over == {".png": 1}
    assert (preview.dtype, preview.vocab_size, preview.num_bad) == ("uint16", 259, 0)
    result = build_store(options)
    assert result.num_tokens / 1.33 < preview.num_tokens < result.num_tokens * 1.33
    assert result.num_documents / 1.33 < preview.num_documents < result.num_documents * 1.33
    size = sum(path.stat().st_size for path in result.path.iterdir())
    assert size / 1.4 < preview.store_bytes < size * 1.4
    assert preview.store_bytes < preview.disk_bytes < preview.free_bytes


def test_bad_records_of_the_sample_are_counted(tmp_path: Path) -> None:
    """They are no reason to refuse a look."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnonsense\n{"text": null}\n{"text": "b"}\n')
    preview = preview_build(BuildOptions(inputs=(str(tmp_path / "a.jsonl"),), output=tmp_path / "s", tokenizer="bytes"))
    assert (preview.num_bad, preview.num_documents) == (2, 2)


def test_what_a_build_would_refuse_is_refused(folder: Path) -> None:
    """Inputs and tokenizer are checked as in a build."""
    for inputs, tokenizer in (((str(folder / "none"),), "bytes"), ((str(folder),), "no/such/tokenizer.json")):
        with pytest.raises(ConfigError):
            preview_build(BuildOptions(inputs=inputs, output=folder.parent / "s", tokenizer=tokenizer))


def test_the_command_prints_a_table_or_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both say the same, and the exit code is 0."""
    line = ["build", str(folder), "-o", str(folder.parent / "s"), "--tokenizer", "bytes", "--dry-run"]
    assert run(app, line) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in (".jsonl.gz", "passed over  1 .png", "units", "uint16", "about", "free"))
    assert run(app, [*line, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert f"{row['num_tokens']:,} tokens" in shown
    assert not (folder.parent / "s").exists()
