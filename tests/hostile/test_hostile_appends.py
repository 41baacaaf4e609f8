"""Appending to forged stores: refused before any document is tokenized, and the store is unchanged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from tests.support.stores.forge import forge, list_tokenizer, replace
from tokenstore.builder import BuildOptions, append_store, build_store, pipeline, retokenize
from tokenstore.builder.part import FILES, SUMMARY
from tokenstore.errors import BuildError, ConfigError, CorruptionError
from tokenstore.format.layout import MAX_VERSION
from tokenstore.store import open_store, verify
from tokenstore.store.writer import FileWriter

Jsonl = Callable[..., Path]


def build(path: Path, inputs: Path, tokenizer: str = "bytes", **options: object) -> Path:
    build_store(BuildOptions((str(inputs),), path, tokenizer, **options))
    return path


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def refused(path: Path, more: Path, match: str) -> None:
    before = contents(path)
    with pytest.raises((ConfigError, CorruptionError), match=match):
        append_store(path, [str(more)])
    assert contents(path) == before


@pytest.mark.parametrize(
    "options", [{"origins": False}, {"id_field": "id"}, {"eos": False}], ids=["origins", "ids", "eos"]
)
def test_options_that_do_not_fit_the_store_are_refused(tmp_path: Path, jsonl: Jsonl, options: dict) -> None:
    """These led to a traceback, or to documents without the end-of-text token that all others have."""
    path = build(tmp_path / "s", jsonl("a.jsonl", [{"text": "one", "id": "1"}]))
    forge(path, lambda body: body["options"].update(options))
    refused(path, jsonl("b.jsonl", [{"text": "two", "id": "2"}]), "does not have the eos tokens, origins, ids, masks")


def test_a_whole_store_that_claims_to_be_a_split_is_refused(tmp_path: Path, jsonl: Jsonl) -> None:
    """Half of the documents were silently dropped."""
    path = build(tmp_path / "s", jsonl("a.jsonl", ["one"]))
    forge(path, lambda body: body["options"].update(split="a=0.5,b=0.5"))
    refused(path, jsonl("b.jsonl", [f"text {i}" for i in range(20)]), "is split None of a build")


def swap_two_tokens(path: Path) -> None:
    """Write another vocabulary into a file of the same size."""
    data = (path / "tokenizer.json").read_bytes()
    fields = json.loads(data)
    vocabulary = fields["model"]["vocab"]
    vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
    replace(path / "tokenizer.json", json.dumps(fields, ensure_ascii=False).encode().ljust(len(data)))
    assert (path / "tokenizer.json").stat().st_size == len(data)


def test_a_changed_tokenizer_does_not_tokenize_new_documents(
    tmp_path: Path, jsonl: Jsonl, tokenizer_file: Path
) -> None:
    """The file has the right size and different content: new documents got other tokens than old ones."""
    first = jsonl("a.jsonl", ["tree"])
    path = build(tmp_path / "s", first, str(tokenizer_file))
    swap_two_tokens(path)
    refused(path, jsonl("b.jsonl", ["feet"]), "expected the checksum")
    with pytest.raises(CorruptionError, match="expected the checksum"):
        retokenize(path, [str(first)], 1.0)


def test_the_tokenizer_must_match_the_digest(tmp_path: Path, jsonl: Jsonl, tokenizer_file: Path) -> None:
    """The digest contains the sha256 of the tokenizer's file, so a different file is damage."""
    path = build(tmp_path / "s", jsonl("a.jsonl", ["tree"]), str(tokenizer_file))
    sha256 = json.loads((path / "manifest.json").read_bytes())["tokenizer"]["sha256"]
    swap_two_tokens(path)
    list_tokenizer(path)
    forge(path, lambda body: body["tokenizer"].update(sha256=sha256))
    refused(path, jsonl("b.jsonl", ["feet"]), f"expected the sha256 {sha256}")
    with pytest.raises(CorruptionError, match=f"expected the sha256 {sha256}"):
        open_store(path).decode(0)
    assert [finding.expected for finding in verify(path)] == [f"the sha256 {sha256}"]


def test_splits_with_different_tokenizers_are_refused(tmp_path: Path, jsonl: Jsonl, tokenizer_file: Path) -> None:
    """All splits are built with one tokenizer: documents for the second were tokenized by the first one's."""
    first = jsonl("a.jsonl", [f"text {i}" for i in range(40)])
    for tokenizer in ("bytes", str(tokenizer_file)):
        build(tmp_path / tokenizer[-4:], first, tokenizer, split="a=0.5,b=0.5")
    shutil.rmtree(tmp_path / "ytes" / "b")
    shutil.move(tmp_path / "json" / "b", tmp_path / "ytes" / "b")
    refused(tmp_path / "ytes", jsonl("b.jsonl", ["two"]), "has another tokenizer than")


def test_the_last_version_cannot_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jsonl: Jsonl) -> None:
    """A version has nine digits; the next one's names belonged to no version and raised a KeyError."""
    path = build(tmp_path / "s", jsonl("a.jsonl", ["one"]))
    with open_store(path) as store:
        monkeypatch.setattr(store, "version", MAX_VERSION)
        with pytest.raises(BuildError, match=f"found {MAX_VERSION}"):
            FileWriter.extending(store, tmp_path / "next", 1000)


def test_a_store_without_counts_can_be_inspected(tmp_path: Path, jsonl: Jsonl, capsys: pytest.CaptureFixture) -> None:
    """Counts are informational and may be absent in a forged store; the command raised a KeyError."""
    from tokenstore.commands import app

    inputs = jsonl("a.jsonl", ["one"])
    path = build(tmp_path / "s", inputs)
    forge(path, lambda body: body.update(counts={}))
    assert app.run(app.app, ["build", str(inputs), "--output", str(path), "--tokenizer", "bytes"]) == 0
    assert "nothing done" in capsys.readouterr().out


def forge_tokens(work: Path) -> None:
    """Change the tokens of a finished part, and their checksum in its summary; their size stays."""
    (tokens,) = (work / "building" / "parts").glob("*/tokens")
    tokens.write_bytes(tokens.read_bytes().replace(b"g\0o\0o\0d\0", b"e\0v\0i\0l\0"))
    summary = json.loads((tokens.parent / SUMMARY).read_bytes())
    summary["checksums"][FILES.index("tokens")] = xxhash.xxh3_128_hexdigest(tokens.read_bytes())
    (tokens.parent / SUMMARY).write_text(json.dumps(summary))


@pytest.mark.parametrize("is_copied", [True, False])
def test_parts_of_a_copied_work_folder_do_not_count(
    tmp_path: Path, jsonl: Jsonl, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    """Only parts made on this machine are used: an archive may contain any tokens, with checksums that fit."""
    inputs, work = jsonl("a.jsonl", ["good"]), tmp_path / "s.tokenstore"
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "s", inputs)
    if is_copied:
        shutil.move(work, tmp_path / "archive")
        shutil.copytree(tmp_path / "archive", work)
    forge_tokens(work)
    assert open_store(build(tmp_path / "s", inputs)).decode(0)[:4] == ("good" if is_copied else "evil")


def die(*args: object) -> None:
    raise KeyboardInterrupt
