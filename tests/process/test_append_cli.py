"""`tokenstore append` and `verify --retokenize` as a user runs them: exit codes, messages, signals, JSON output."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.processes.command_lines import (
    INTERRUPTIONS,
    MAIN,
    ROOT,
    Start,
    in_small_units,
    interrupt,
    run,
    run_here,
)
from tests.support.stores.building import contents
from tokenstore.builder import BuildOptions, BuildResult, append_store, build_store
from tokenstore.store.work import exclusive_work

APPENDERS = {"tools": [sys.executable, "-m", "tools.append_store"], "tokenstore": [*MAIN, "append"]}
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, jsonl: Callable[..., Path]) -> Make:
    """A store of the texts, in in/a.jsonl."""

    def build(**options: object) -> Path:
        source = jsonl("in/a.jsonl", TEXTS)
        return build_store(BuildOptions((str(source),), tmp_path / "store", **{"tokenizer": "bytes", **options})).path

    return build


@pytest.mark.parametrize("entry", ["tools", pytest.param("tokenstore", marks=pytest.mark.deep)])
def test_an_append_exits_0_and_prints_the_store(make: Make, jsonl: Callable[..., Path], entry: str) -> None:
    """Both ways to run it print documents, tokens, digest and bad records; repeated, it says that nothing was done."""
    store = make()
    command = [*APPENDERS[entry], store, jsonl("in/b.jsonl", ["one", "", {"text": 1}]), "--max-bad", 1]
    done = run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    with tokenstore.open_store(store) as opened:
        assert (len(opened), opened.version) == (len(TEXTS) + 1, 2)
        shown = (
            str(store),
            f"{len(opened)} from 2 files",
            "1 without text",
            opened.digest,
            "store.tokenstore/rejects-v2.jsonl",
        )
        assert [text for text in shown if text not in done.stdout] == []
    again = run(*command)
    assert (again.returncode, again.stderr) == (0, "")
    assert "already complete; nothing done" in again.stdout


def test_json_is_one_object_on_standard_output(make: Make, jsonl: Callable[..., Path]) -> None:
    """--json prints the whole result, with seconds and splits, and nothing else."""
    store = make(split="a=0.5,b=0.5")
    command = ["append", store, jsonl("in/b.jsonl", [*TEXTS[::-1], "x"]), "--json"]
    first, second = run_here(*command), run_here(*command)
    assert (first.stderr, second.stderr) == ("", "")
    values = [json.loads(done.stdout) for done in (first, second)]
    for value, was_there in zip(values, (False, True), strict=True):
        assert set(value) == {*BuildResult.__dataclass_fields__, "seconds"}
        assert (value["path"], value["was_there"], value["rejects"]) == (str(store), was_there, None)
        assert (value["num_documents"], value["counts"]["input files"]) == (2 * len(TEXTS) + 1, 2)
        assert [part["path"] for part in value["splits"]] == [str(store / "a"), str(store / "b")]
        assert sum(part["num_documents"] for part in value["splits"]) == value["num_documents"]


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, ["{store}"], "INPUTS"),
        ({}, ["{store}", "{in}", "--wrokers", "2"], "--wrokers"),
        ({}, ["{store}", "{in}", "--workers", "0"], "workers: expected 1 or more, found 0"),
        ({}, ["{store}", "{in}x"], "input: {in}x does not exist"),
        ({}, ["{store}", "{old}", "{in}"], "1 of 2 inputs are in the store already, such as a.jsonl"),
        ({"split": "a=0.5,b=0.5"}, ["{store}/a", "{in}"], "{store}/a is split 'a' of a build"),
        ({}, ["{folder}", "{in}"], "{folder} is neither a store nor a folder of splits"),
    ],
)
def test_a_wrong_command_line_exits_2_and_names_what_is_wrong(
    make: Make, jsonl: Callable[..., Path], tmp_path: Path, options: dict, arguments: list[str], message: str
) -> None:
    """Usage and configuration errors share an exit code: nothing was tried, and the command line must change."""
    store = make(**options)
    places = {"{store}": str(store), "{in}": str(jsonl("in/b.jsonl", ["b"])), "{old}": str(tmp_path / "in/a.jsonl"), "{folder}": str(tmp_path)}  # fmt: skip

    def filled(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    done = run_here("append", *map(filled, arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert filled(message) in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.glob("store*")) == ["store"]


def test_failures_exit_1(make: Make, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """P9: no store, no new document, a damaged input, another process at work: one message, no traceback, the store
    unchanged.
    """
    store = make()
    before = contents(store)
    (tmp_path / "in/cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    new = jsonl("in/b.jsonl", ["b"])
    for arguments, message in (
        ([tmp_path / "nowhere", new], "found nothing"),
        ([store, jsonl("in/empty.jsonl", [""])], "documents: expected at least one, found none"),
        ([store, tmp_path / "in/cut.jsonl.gz"], "cut.jsonl.gz is damaged or incomplete"),
    ):
        done = run_here("append", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"error: .*{re.escape(message)}.*\n", done.stderr)
    with exclusive_work(tmp_path / "store"):
        done = run_here("append", store, new)
    assert done.returncode == 1
    assert f"process {os.getpid()} is writing it" in done.stderr
    assert contents(store) == before


def test_more_bad_records_than_allowed_exit_3_and_are_listed(make: Make, jsonl: Callable[..., Path]) -> None:
    """P9: the message names the list and the option that allows more."""
    store = make()
    before = contents(store)
    done = run_here("append", store, jsonl("in/b.jsonl", ["b", {"text": 1}]))
    assert (done.returncode, done.stdout) == (3, "")
    assert "record 2 of b.jsonl" in done.stderr
    assert str(store.with_name("store.tokenstore") / "rejects-v2.jsonl") in done.stderr
    assert contents(store) == before


@pytest.mark.deep
@INTERRUPTIONS
def test_an_interrupted_append_exits_130_and_resumes_to_the_same_bytes(
    start: Start, make: Make, many_texts: Path, tokenizer_file: Path, tmp_path: Path, name: str, workers: int
) -> None:
    """P8: Ctrl-C or a scheduler's SIGTERM leaves the store unchanged and no process, and the same command resumes."""
    store = make(tokenizer=str(tokenizer_file))
    before = contents(store)
    command = in_small_units("append", store, many_texts, "--workers", workers)
    interrupt(start(*in_small_units(*command[3:], stops=True), start_new_session=True), name)
    assert contents(store) == before
    assert run(*command).returncode == 0
    undisturbed = build_store(
        BuildOptions((str(tmp_path / "in/a.jsonl"),), tmp_path / "other/store", str(tokenizer_file))
    ).path
    append_store(undisturbed, [str(many_texts)])
    assert contents(store) == contents(undisturbed)
    assert sorted(path.name for path in tmp_path.glob("store*")) == ["store"]


# ---- verify --retokenize


def test_retokenize_exits_0_for_a_sound_store(make: Make, tmp_path: Path) -> None:
    """P9: with a fraction and in percent, as text and as JSON; it says what was compared."""
    store = make()
    append_store(store, [str(tmp_path / "in/../in/a.jsonl")])  # there already
    for share in ("1%", "0.01", "100%"):
        done = run_here("verify", store, "--retokenize", share, "--inputs", tmp_path / "in")
        assert (done.returncode, done.stderr) == (0, "")
        percent = share if share.endswith("%") else "1%"
        assert f"no damage found, {sum(p.stat().st_size for p in store.iterdir() if p.name != 'manifest.json'):,} bytes checked, {percent[:-1]} % of the documents tokenized again" in done.stdout  # fmt: skip
    done = run_here(
        "verify", store, "--version", 1, "--retokenize", "50%", "--inputs", tmp_path / "in/a.jsonl", "--json"
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"path": str(store), "findings": [], "unlisted": []})


def test_retokenize_exits_4_for_another_input(make: Make, tmp_path: Path) -> None:
    """P9: the record is named; a damaged store is reported first and not compared."""
    store, source = make(), tmp_path / "in/a.jsonl"
    source.write_text(source.read_text().replace("holds documents", "holds dokuments"))
    command = ["verify", store, "--retokenize", "100%", "--inputs", source]
    done = run_here(*command)
    assert done.returncode == 4
    assert re.match(r"a\.jsonl: record 1: expected the tokens of document 0, found \d+ tokens instead of \d+, .*\n.*1 finding\n", done.stdout)  # fmt: skip
    done = run_here(*command, "--json")
    assert done.returncode == 4
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["file"], finding["place"]) == ("a.jsonl", "record 1")
    assert set(finding) == {"file", "place", "expected", "found"}
    (store / "tokens-00000.bin").chmod(0o644)
    (store / "tokens-00000.bin").write_bytes(bytes((store / "tokens-00000.bin").stat().st_size))
    done = run_here(*command)
    assert done.returncode == 4
    assert "record 1" not in done.stdout
    assert "tokens-00000.bin" in done.stdout


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, ["--retokenize", "1%"], "verify: --retokenize needs the original files, and --inputs needs --retokenize"),
        ({}, ["--inputs", "{in}"], "verify: --retokenize needs the original files, and --inputs needs --retokenize"),
        ({}, ["--retokenize", "some", "--inputs", "{in}"], "retokenize: expected a share such as 1%, found 'some'"),
        ({}, ["--retokenize", "%", "--inputs", "{in}"], "retokenize: expected a share such as 1%, found '%'"),
        ({}, ["--retokenize", "101%", "--inputs", "{in}"], "expected more than 0 and at most 100 %, found 101 %"),
        ({}, ["--retokenize", "nan", "--inputs", "{in}"], "expected more than 0 and at most 100 %, found nan %"),
        ({}, ["--retokenize", "1%", "--inputs", "{in}x"], "input: {in}x does not exist"),
        ({"origins": False}, ["--retokenize", "1%", "--inputs", "{in}"], "has no origins"),
    ],
)
def test_a_wrong_command_line_of_retokenize_exits_2(
    make: Make, tmp_path: Path, options: dict, arguments: list[str], message: str
) -> None:
    """Usage and configuration errors share an exit code."""
    store, source = make(**options), str(tmp_path / "in/a.jsonl")
    done = run_here("verify", store, *(argument.replace("{in}", source) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert message.replace("{in}", source) in done.stderr
    assert "Traceback" not in done.stderr


def test_standard_input_is_built_and_appended_by_a_pipe(tmp_path: Path) -> None:
    """The lone - of the command line, as in a shell."""
    for command, text in (
        (["build", "-", "-o", str(tmp_path / "s"), "--tokenizer", "bytes"], '{"text": "one"}\n'),
        (["append", str(tmp_path / "s"), "-"], '{"text": "two"}\n'),
    ):
        done = subprocess.run([*MAIN, *command], cwd=ROOT, input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    with tokenstore.open_store(tmp_path / "s") as store:
        assert [store.decode(i).removesuffix("<|endoftext|>") for i in range(2)] == ["one", "two"]
