"""A store or unfinished build that names code to run: it runs only if the user names it, and is hashed before the
import.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.command_lines import run_here
from tests.support.stores.appended import whole_tree
from tests.support.stores.grown import edit_manifest
from tokenstore.builder import BuildOptions, append_store, build_store, pipeline, retokenize
from tokenstore.builder.documents import hooks
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BadRecordsError, ConfigError
from tokenstore.store import open_store

MARK = "import pathlib; pathlib.Path('ran').touch()\n"
KEEP = "def keep(record):\n    return True\n"
Use = Callable[..., object]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty; modules imported from it are removed afterwards."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(hooks, "_loaded", {})
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]


@pytest.fixture
def source(tmp_path: Path, jsonl: Callable[..., Path]) -> str:
    return str(jsonl("in/a.jsonl", [{"touch": 1, "ran": 2, "text": "x"}]))


def build(output: Path, *inputs: str, **options: Any) -> Path:
    return build_store(BuildOptions(inputs, output, "bytes", **options)).path


def write(name: str, text: str) -> str:
    """Write a module into the working directory; returns its hash."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def again(store: Path, source: str, **named: str) -> object:
    return retokenize(store, [source], 1, **named)


def append(store: Path, source: str, **named: str) -> object:
    other = Path(source).with_name("b.jsonl")
    other.write_text(Path(source).read_text() * 2)
    return append_store(store, [str(other)], **named)


USES = pytest.mark.parametrize("use", [again, append])


@USES
@pytest.mark.parametrize("option", ["filter", "map"])
def test_a_function_that_only_the_store_names_does_not_run(tmp_path: Path, source: str, use: Use, option: str) -> None:
    """P9: `subprocess:run`, with the right hash, ran a command made of a record's fields."""
    store = build(tmp_path / "store", source)
    digest = hashlib.sha256(Path(subprocess.__file__).read_bytes()).hexdigest()
    edit_manifest(store, lambda body: body["options"].update({option: "subprocess:run", f"{option}_sha256": digest}))
    before = whole_tree(store)
    with pytest.raises(
        ConfigError, match=rf"built with --{option} subprocess:run, .* add --{option} subprocess:run if"
    ):
        use(store, source)
    assert not Path("ran").exists()
    assert whole_tree(store) == before
    assert not tmp_path.joinpath("store.tokenstore").exists()


@USES
@pytest.mark.parametrize(
    ("files", "name"),
    [
        (("mine.py",), "mine:keep"),
        (("mine/__init__.py", "mine/clean.py"), "mine.clean:keep"),
        (("mine/one/__init__.py", "mine/one/clean.py"), "mine.one.clean:keep"),
        (("mine/one/clean.py",), "mine.one.clean:keep"),
    ],
    ids=["module", "package", "package in a namespace", "namespaces"],
)
def test_a_changed_module_is_refused_before_it_is_imported(
    tmp_path: Path, source: str, use: Use, files: tuple[str, ...], name: str
) -> None:
    """P9: neither the module nor its package runs; unchanged and named by the user, the function runs."""
    for file in files:
        digest = write(file, KEEP)
    store = build(tmp_path / "store", source)
    recorded = {"filter": name, "filter_sha256": digest}
    edit_manifest(store, lambda body: body["options"].update(recorded))
    for file in files:
        write(file, MARK + KEEP)
    with pytest.raises(ConfigError, match=r"filter_sha256 was"):
        use(store, source, filter=name)
    assert not Path("ran").exists()
    assert "mine" not in sys.modules
    for file in files:
        write(file, KEEP)
    use(store, source, filter=name)
    assert name.partition(":")[0] in sys.modules


@USES
@pytest.mark.parametrize(
    ("recorded", "named", "message"),
    [
        ("mine:keep", "mine:other", 'filter was "mine:keep", is "mine:other"'),
        ("subprocess:run", "mine:keep", 'filter was "subprocess:run", is "mine:keep"'),
        (None, "mine:keep", "built without --filter, but this command names mine:keep"),
        ("x" * 5000, None, "x{200}\\.\\.\\. if you trust"),
        ("", None, "built with --filter , which"),
    ],
)
def test_a_different_function_than_the_recorded_one_is_refused(
    tmp_path: Path, source: str, use: Use, recorded: str | None, named: str | None, message: str
) -> None:
    """P8: old and new documents are selected by the same code."""
    write("mine.py", MARK + KEEP)
    store = build(tmp_path / "store", source)
    edit_manifest(store, lambda body: body["options"].update(filter=recorded))
    with pytest.raises(ConfigError, match=message) as caught:
        use(store, source, **({"filter": named} if named else {}))
    assert len(str(caught.value)) < 2000
    assert not Path("ran").exists()


ODD = {
    "filter": [5, ["a:b"], {"a": "b"}, True],
    "shard_bytes": ["5", None, True, 10**30, -1],
    "eos": [None, "yes", 1],
    "records": ["texts", None, [], {}],
    "text_endings": [".py", None, [1], [[]]],
    "max_tokens": ["7", [], False],
    "split": [3, [], {}],
}


@USES
@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_options_of_wrong_types_are_refused(tmp_path: Path, source: str, use: Use, option: str, value: object) -> None:
    """P9: an error with the option's name, not a TypeError."""
    store = build(tmp_path / "store", source)
    edit_manifest(store, lambda body: body["options"].update({option: value}))
    with pytest.raises(ConfigError, match=option):
        use(store, source)


def test_options_that_no_manifest_records_are_ignored(tmp_path: Path, source: str) -> None:
    """P9: a manifest does not decide where to write, what to read, or which tokenizer to load."""
    store = build(tmp_path / "store", source)
    more = {
        "output": "/nowhere",
        "inputs": ["/etc/passwd"],
        "tokenizer": "/etc/passwd",
        "overwrite": True,
        "workers": 99,
    }
    edit_manifest(store, lambda body: body["options"].update(more))
    with pytest.raises(ConfigError, match=r"inputs was|output was"):
        append(store, source)
    assert len(open_store(store)) == 1


@pytest.mark.parametrize("state", ["unfinished", "finished"])
def test_a_repeated_build_compares_hashes_before_importing(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """P8: a module that changed since the build began is refused without running its code."""
    write("mine.py", KEEP)
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=30))
    bad = Path(source).with_name("bad.jsonl")
    bad.write_text("bad\n")
    inputs = (source, str(bad)) if state == "unfinished" else (source,)
    if state == "unfinished":
        with pytest.raises(BadRecordsError):
            build(tmp_path / "store", *inputs, filter="mine:keep")
    else:
        build(tmp_path / "store", *inputs, filter="mine:keep")
    del sys.modules["mine"]
    write("mine.py", MARK + KEEP)
    with pytest.raises(ConfigError, match=r"options\.filter_sha256 was"):
        build(tmp_path / "store", *inputs, filter="mine:keep")
    assert not Path("ran").exists()
    write("mine.py", KEEP)
    assert build(tmp_path / "store", *inputs, filter="mine:keep", max_bad=1)


def test_commands_accept_the_names_of_functions(tmp_path: Path, source: str) -> None:
    """Exit code 2 with the option to add if the command does not name the store's function; otherwise it works."""
    write("mine.py", KEEP + "def change(record):\n    return record\n")
    store = build(tmp_path / "store", source, filter="mine:keep", map="mine:change")
    other = Path(source).with_name("b.jsonl")
    other.write_text('{"text": "other"}\n')
    check, grow = ["verify", store, "--retokenize", "100%", "--inputs", source], ["append", store, other]
    for command in (check, grow):
        refused = run_here(*command, "--map", "mine:change")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "add --filter mine:keep if you trust that function" in refused.stderr
        done = run_here(*command, "--filter", "mine:keep", "--map", "mine:change")
        assert (done.returncode, done.stderr) == (0, "")
    alone = run_here("verify", store, "--filter", "mine:keep")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "only valid with --retokenize" in alone.stderr
    assert json.loads((store / "manifest.json").read_text())["options"]["filter"] == "mine:keep"
