"""`build_store`: what it does with an existing output: a finished store, an unfinished build, something else."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import BAD, Build, as_bytes, contents, documents, left_behind
from tokenstore.builder import BuildResult, replacing
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, TokenStoreError
from tokenstore.store.work import exclusive_work


def test_a_finished_store_is_left_alone(build: Build, jsonl: Callable[..., Path]) -> None:
    """P8: the same command again writes no file and says so."""
    source = jsonl("in.jsonl", [*TEXTS, BAD])
    first = build(source, max_bad=1)
    before = {path: path.stat() for path in first.path.iterdir()}
    again = build(source, max_bad=1, workers=3)
    assert {path: path.stat() for path in first.path.iterdir()} == before
    assert again == BuildResult(**{**vars(first), "was_there": True, "new_documents": 0, "new_tokens": 0})


OTHER = [
    ({"eos": False}, r"options\.eos was true, is false"),
    ({"document_start": "eos"}, r'options\.document_start was "none", is "eos"'),
    ({"special_text": "special"}, r'options\.special_text was "plain", is "special"'),
    ({"text_field": "a.text"}, r'options\.text_field was "text", is "a\.text"'),
    ({"text_endings": (".md",)}, r'options\.text_endings\[0\] was null, is "\.md"'),
    ({"keep_empty": True}, r"options\.keep_empty was false, is true"),
    ({"shard_bytes": 4096}, r"options\.shard_bytes was 1073741824, is 4096"),
    ({"tokenizer": "a file"}, r'tokenizer\.kind was "bytes", is "huggingface"'),
]


@pytest.mark.parametrize(("options", "message"), OTHER, ids=[next(iter(options)) for options, _ in OTHER])
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_store_or_build_with_other_options_is_refused(
    build: Build,
    jsonl: Callable[..., Path],
    small_units: Callable[[int], None],
    tokenizer_file: Path,
    tmp_path: Path,
    state: str,
    options: dict,
    message: str,
) -> None:
    """P8: a store or an unfinished build with other options is neither resumed nor replaced unless asked."""
    options = {name: str(tokenizer_file) if value == "a file" else value for name, value in options.items()}
    small_units(1000)  # so that a part of an unfinished build is finished
    source = jsonl("in.jsonl", [*TEXTS, {"text": "x", "a": {"text": "y"}}, *([BAD] if state == "unfinished" else [])])
    if state == "finished":
        build(source)
    else:
        with pytest.raises(BadRecordsError):
            build(source)
    before = {path: path.read_bytes() for path in tmp_path.glob("store*/**/*") if path.is_file()}
    with pytest.raises(ConfigError, match=message) as caught:
        build(source, **options)
    assert "--overwrite" in str(caught.value)
    assert str(tmp_path / "store") in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.glob("store*/**/*") if path.is_file()} == before
    replaced = build(source, overwrite=True, max_bad=100, **options)
    assert contents(replaced.path) == contents(build(source, output="fresh", max_bad=100, **options).path)
    assert "replaced" not in left_behind(replaced.path)
    assert "building" not in left_behind(replaced.path)


def test_an_unfinished_build_without_finished_parts_is_replaced(
    build: Build, jsonl: Callable[..., Path], notes: list[str]
) -> None:
    """After a first try with a wrong field the next command needs no --overwrite, and says what it discarded."""
    source = jsonl("in.jsonl", [{"body": "x"}])
    with pytest.raises(BadRecordsError):
        build(source)
    assert documents(build(source, text_field="body", note=notes.append).path) == as_bytes("x")
    assert 'options.text_field was "text", is "body"' in notes[0]


def test_a_store_of_other_inputs_is_refused(build: Build, jsonl: Callable[..., Path]) -> None:
    """P8: one input more, one less or one of another size is another command; the message names it."""
    a, b = jsonl("a.jsonl", TEXTS), jsonl("b.jsonl", ["b"])
    build(a, b)
    for inputs in ((a,), (b, a), (a, b, jsonl("c.jsonl", ["c"])), (a, jsonl("b.jsonl", ["bb"]))):
        with pytest.raises(ConfigError, match=r"inputs\["):
            build(*inputs)
    assert documents(build(b, a, overwrite=True).path) == as_bytes("bb", *TEXTS)


@pytest.mark.parametrize("library", ["tokenstore", "orjson", "zstandard"])
def test_a_store_made_with_other_package_versions_is_refused(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """P8: equal bytes are promised only for the same library versions, so they are recorded and compared."""
    source = jsonl("in.jsonl", ["a"])
    build(source)
    monkeypatch.setattr(f"{library}.__version__", "0.0.7")
    with pytest.raises(ConfigError, match=rf'package_versions\.{library} was ".*", is "0\.0\.7"'):
        build(source)


def test_a_changed_tokenizer_file_is_another_tokenizer(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
) -> None:
    """P8: a tokenizer is identified by its file's content, not by its path."""
    source, mine = jsonl("in.jsonl", ["a"]), tmp_path / "mine.json"
    shutil.copy(tokenizer_file, mine)
    build(source, tokenizer=str(tokenizer_file))
    assert build(source, tokenizer=str(mine)).was_there
    mine.write_bytes(mine.read_bytes() + b"\n")
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256 was"):
        build(source, tokenizer=str(mine))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "other manifest", "no manifest"])
def test_an_output_that_is_no_store_is_refused_and_unchanged(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, kind: str, overwrite: bool
) -> None:
    """P9: only a store is ever replaced, never another file or folder of the user, not even with overwrite."""
    output = tmp_path / "store"
    if kind != "file":
        output.mkdir()
    files = {
        "file": output,
        "folder": output / "thesis.txt",
        "other manifest": output / "manifest.json",
        "no manifest": output / "tokens-00000.bin",
    }
    files[kind].write_text('{"name": "an app of mine"}')
    with pytest.raises(TokenStoreError, match=str(output)) as caught:
        build(jsonl("in.jsonl", ["a"]), overwrite=overwrite)
    assert isinstance(caught.value, ConfigError) or kind == "other manifest"
    assert files[kind].read_text() == '{"name": "an app of mine"}'
    assert left_behind(output) == []


def test_an_empty_folder_may_become_the_store(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """An existing empty folder and missing parent folders are fine."""
    (tmp_path / "store").mkdir()
    assert build(jsonl("in.jsonl", ["a"])).num_documents == 1
    assert build(jsonl("in.jsonl", ["a"]), output="deep/down/store").num_documents == 1


@pytest.mark.parametrize("target", ["nothing", "empty folder", "store"])
def test_an_output_that_is_a_link_is_followed(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, target: str
) -> None:
    """A link to another disk stays a link: the store and its work folder are at its target."""
    source, there = jsonl("in.jsonl", ["a"]), tmp_path / "big disk/store"
    there.parent.mkdir()
    (tmp_path / "store").symlink_to(there)
    if target == "empty folder":
        there.mkdir()
    if target == "store":
        build(source, eos=False)
    assert build(source, overwrite=True).path == there
    assert build(source).was_there
    assert (tmp_path / "store").is_symlink()
    assert os.listdir(there.parent) == ["store"]


@pytest.mark.parametrize("name", ["manifest.json", "inputs.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"\x00", b"{}\n[]\n", b"\xff\xfe"])
def test_a_damaged_store_is_not_a_finished_one(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, name: str, damage: bytes
) -> None:
    """P9: damage found by a second run is an error that names the file; overwrite builds the store again."""
    source = jsonl("in.jsonl", ["a"])
    build(source)
    path = tmp_path / "store" / name
    size = path.stat().st_size
    path.chmod(0o644)
    path.write_bytes(damage.ljust(size, b" "))
    with pytest.raises(TokenStoreError, match=name):
        build(source)
    if name == "inputs.jsonl":  # without a valid manifest it cannot be recognised as a store
        assert not build(source, overwrite=True).was_there


def test_a_store_that_cannot_be_replaced_is_kept(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: if renaming the new store fails, the old one gets its name back, and the same command resumes."""
    old, new = jsonl("old.jsonl", ["old"]), jsonl("new.jsonl", ["new"])
    store = build(old).path

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(replacing, "commit_directory", fail)
        with pytest.raises(BuildError, match="Input/output error"):
            build(new, overwrite=True)
    assert documents(store) == as_bytes("old")
    assert documents(build(new, overwrite=True).path) == as_bytes("new")
    assert left_behind(store) == []


def test_concurrent_builds_of_the_same_output_are_refused(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """P8: two builds never write to one place; the message names the process to wait for."""
    with exclusive_work(tmp_path / "store"):
        with pytest.raises(tokenstore.errors.StoreBusyError, match=f"process {os.getpid()} is writing it"):
            build(jsonl("in.jsonl", ["a"]))
    assert build(jsonl("in.jsonl", ["a"])).num_documents == 1
