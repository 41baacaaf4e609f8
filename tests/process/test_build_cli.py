"""`tokenstore build` and `verify` as a user runs them: exit codes, messages, signals, JSON output, pipes."""

import json
import os
import pty
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.processes.command_lines import (
    INTERRUPTIONS,
    MAIN,
    WAIT_SECONDS,
    Start,
    environment,
    in_small_units,
    interrupt,
    run,
    run_here,
    wait_until_stopped,
)
from tests.support.stores.building import contents, counts

BUILDERS = {"tools": [sys.executable, "-m", "tools.build_store"], "tokenstore": [*MAIN, "build"]}
VERIFIERS = {"tools": [sys.executable, "-m", "tools.verify_store"], "tokenstore": [*MAIN, "verify"]}
BUILD = BUILDERS["tools"]
# Unknown to users: lines of progress at once, instead of every ten seconds.
EAGER = [sys.executable, "-c", "import tokenstore.commands.progress_bar as p; p._LINE_SECONDS = 0; from tokenstore.commands.entry import main; main()", "build"]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(many_texts: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The output of a build of `many_texts` that is not interrupted."""
    output = tmp_path_factory.mktemp("undisturbed") / "store"
    assert run_here("build", many_texts, "--tokenizer", tokenizer_file, "--output", output).returncode == 0
    return contents(output)


@pytest.fixture
def slow_build(many_texts: Path, tokenizer_file: Path, tmp_path: Path) -> list[object]:
    """Arguments of a build that is still tokenizing when its first files appear."""
    return [many_texts, "--tokenizer", tokenizer_file, "--output", tmp_path / "store"]


@pytest.mark.parametrize("entry", ["tools", pytest.param("tokenstore", marks=pytest.mark.deep)])
def test_a_build_exits_0_and_prints_the_store(jsonl: Callable[..., Path], tmp_path: Path, entry: str) -> None:
    """Both ways to run it build the store and print its path, documents, tokens and digest on standard output."""
    source = jsonl("in.jsonl", [*TEXTS, "", {"no": "text"}])
    done = run(*BUILDERS[entry], source, "--output", tmp_path / "store", "--tokenizer", "bytes", "--max-bad", 1)
    assert (done.returncode, done.stderr) == (0, "")
    with tokenstore.open_store(tmp_path / "store") as store:
        assert len(store) == len(TEXTS)
        shown = (
            str(tmp_path / "store"),
            f"{len(TEXTS)} from 1 file",
            "1 without text",
            f"{store.num_tokens:,} as uint16",
        )
        assert [
            text for text in (*shown, store.digest, "store.tokenstore/rejects.jsonl") if text not in done.stdout
        ] == []


@pytest.mark.parametrize("entry", ["tokenstore", pytest.param("tools", marks=pytest.mark.deep)])
def test_verify_exits_0_for_a_sound_store_and_4_for_a_damaged_one(make_store: Callable[..., Path], entry: str) -> None:
    """P9: damage is reported with file and position, and by the exit code; --json has the same."""
    path = make_store("store", [[1, 2, 3]] * 100)
    done = run_here("verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no damage found" in done.stdout
    shard = path / "tokens-00000.bin"
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    done = run(*VERIFIERS[entry], path)
    assert done.returncode == 4
    assert re.search(r"tokens-00000\.bin: bytes 0\.\.600: expected checksum \w+, found \w+\n.*1 finding", done.stdout)
    done = run_here("verify", path, "--json")
    assert done.returncode == 4
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["file"] == "tokens-00000.bin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "INPUTS"),
        (["{in}", "--tokenizer", "bytes"], "output"),
        (["{in}", "--output", "{out}", "--tokenizer", "bytes", "--wrokers", "2"], "--wrokers"),
        (["{in}", "--output", "{out}", "--tokenizer", "bytes", "--document-start", "sos"], "sos"),
        (
            ["{in}", "--output", "{out}", "--tokenizer", "bytes", "--shard-size", "0"],
            "Invalid value for --shard-size: expected 1 or more MiB, found 0",
        ),
        (["{in}", "--output", "{out}", "--tokenizer", "no.json"], "give the path of a tokenizer file, or 'bytes'"),
        (["{in}x", "--output", "{out}", "--tokenizer", "bytes"], "input: {in}x does not exist"),
        (["{in}", "--output", "{in}", "--tokenizer", "bytes"], "{in} exists and is not a token store"),
    ],
)
def test_a_wrong_command_line_exits_2_and_names_what_is_wrong(
    jsonl: Callable[..., Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Usage and configuration errors share an exit code: nothing was tried, and the command line must change."""
    places = {"{in}": str(jsonl("in.jsonl", ["a"])), "{out}": str(tmp_path / "store")}

    def filled(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    done = run_here("build", *map(filled, arguments))
    assert done.returncode == 2
    assert filled(message) in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("store*"))


def test_a_command_that_does_not_exist_exits_2() -> None:
    """A misspelled command is a usage error."""
    done = run_here("biuld")
    assert done.returncode == 2
    assert "biuld" in done.stderr


def test_other_options_than_those_of_the_store_exit_2(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """P8: an existing store is not replaced unless asked; repeated, the same command exits 0 and says that nothing was
    done.
    """
    command = ["build", jsonl("in.jsonl", ["a"]), "--output", tmp_path / "store", "--tokenizer", "bytes"]
    assert run_here(*command).returncode == 0
    again = run_here(*command)
    assert again.returncode == 0
    assert "already complete; nothing done" in again.stdout
    other = run_here(*command, "--no-eos")
    assert other.returncode == 2
    assert "options.eos was true, is false" in other.stderr
    assert run_here(*command, "--no-eos", "--overwrite").returncode == 0


def test_a_build_that_fails_exits_1_and_names_the_file(tmp_path: Path) -> None:
    """P9: a truncated input is a failure with one message and no traceback, and leaves no store."""
    (tmp_path / "in.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    done = run_here("build", tmp_path / "in.jsonl.gz", "--output", tmp_path / "store", "--tokenizer", "bytes")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: input: .*in\.jsonl\.gz is damaged or incomplete .*\n", done.stderr)
    assert not (tmp_path / "store").exists()


def test_a_build_without_documents_exits_1(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """No store is written."""
    done = run_here("build", jsonl("in.jsonl", [""]), "--output", tmp_path / "store", "--tokenizer", "bytes")
    assert done.returncode == 1
    assert "documents: expected at least one, found none" in done.stderr
    assert not (tmp_path / "store").exists()


def test_more_bad_records_than_allowed_exit_3_and_are_listed(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """P9: the message names the list and the option that allows more."""
    source = jsonl("in.jsonl", ["a", b"{", "b", b"[]"])
    command = ["build", source, "--output", tmp_path / "store", "--tokenizer", "bytes"]
    done = run_here(*command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "record 2 of in.jsonl: not JSON" in done.stderr
    assert str(tmp_path / "store.tokenstore/rejects.jsonl") in done.stderr
    assert not (tmp_path / "store").exists()
    assert run_here(*command, "--max-bad", 1).returncode == 3
    assert run_here(*command, "--max-bad", 2).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "store.tokenstore/rejects.jsonl").read_text().splitlines()]
    assert [(row["file"], row["record"]) for row in rows] == [("in.jsonl", 2), ("in.jsonl", 4)]


def test_json_is_one_object_on_standard_output(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """--json prints the whole result, with seconds and splits, and nothing else."""
    source = jsonl("in.jsonl", [*TEXTS, b"bad"])
    command = ["build", source, "-o", tmp_path / "store", "--tokenizer", "bytes", "--max-bad", 1, "--json"]
    first, second = (json.loads(run_here(*command).stdout) for _ in range(2))
    assert first["path"] == str(tmp_path / "store")
    assert first["rejects"] == str(tmp_path / "store.tokenstore/rejects.jsonl")
    assert first["counts"] == {"input files": 1, **counts(documents=len(TEXTS), bad=1)}
    assert first["num_tokens"] == sum(len(text.encode()) + 1 for text in TEXTS)
    assert (first["was_there"], second["was_there"]) == (False, True)
    changed = {"was_there", "seconds", "new_documents", "new_tokens"}
    assert {k: v for k, v in first.items() if k not in changed} == {k: v for k, v in second.items() if k not in changed}


@pytest.mark.parametrize(
    ("invoke", "command"),
    [
        pytest.param(run_here, ["build"], id="build"),
        pytest.param(run_here, ["verify"], id="verify"),
        *[
            pytest.param(run, command, id=f"process-{number}", marks=pytest.mark.deep)
            for number, command in enumerate([*BUILDERS.values(), *VERIFIERS.values()])
        ],
    ],
)
def test_help_shows_examples_and_every_option(invoke: Callable, command: list[str]) -> None:
    """--help exits 0, shows commands to copy, and explains the options."""
    done = invoke(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"Examples?:", done.stdout)
    assert re.search(r"^\s*tokenstore (build \S+ --output|verify stores)", done.stdout, re.MULTILINE)
    options = re.findall(r"--[a-z-]+", done.stdout)
    expected = {"--json"} if "verify" in " ".join(command) else {"--output", "--tokenizer", "--text-field", "--workers", "--max-bad", "--json", "--no-eos", "--overwrite"}  # fmt: skip
    assert expected <= set(options)


def test_the_command_without_arguments_lists_its_commands() -> None:
    """`tokenstore --help` names the commands, `--version` the version."""
    done = run(*MAIN, "--help")
    assert done.returncode == 0
    assert {"build", "verify"} <= set(done.stdout.split())
    done = run(*MAIN, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, tokenstore.__version__)


@INTERRUPTIONS
def test_an_interrupted_build_exits_130_and_resumes_to_the_same_bytes(
    start: Start, slow_build: list[object], undisturbed: dict[str, bytes], tmp_path: Path, name: str, workers: int
) -> None:
    """P8: Ctrl-C or a scheduler's SIGTERM leaves no store and no process, says so, and the same command resumes."""
    command = ("build", *slow_build, "--workers", workers)
    interrupt(start(*in_small_units(*command, stops=True), start_new_session=True), name)
    assert not (tmp_path / "store").exists()
    assert run(*in_small_units(*command)).returncode == 0
    assert contents(tmp_path / "store") == undisturbed
    assert sorted(path.name for path in tmp_path.glob("store*")) == ["store"]


_SLOW_SECOND_WORKER = """
import pathlib, sys, time
if "--multiprocessing-fork" in sys.orig_argv:
    try:
        (pathlib.Path(__file__).parent / "first").touch(exist_ok=False)
    except FileExistsError:
        time.sleep(20)
"""


def test_a_worker_that_is_starting_prints_nothing_when_the_build_is_interrupted(
    start: Start, slow_build: list[object], tmp_path: Path
) -> None:
    """P8: Ctrl-C reaches the whole process group, also a worker in which Python is not ready yet."""
    (tmp_path / "sitecustomize.py").write_text(_SLOW_SECOND_WORKER)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command = in_small_units("build", *slow_build, "--workers", 2, stops=True)
    interrupt(start(*command, start_new_session=True, env={**environment(), "PYTHONPATH": paths}), "SIGINT")


def test_a_concurrent_build_is_refused(start: Start, slow_build: list[object], tmp_path: Path) -> None:
    """P8: the second exits 1 at once and names the process that builds; the first is not affected."""
    first = start(*in_small_units("build", *slow_build, stops=True))
    wait_until_stopped(first)
    second = run_here("build", *slow_build)
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 1
    assert f"process {first.pid} is writing it ({tmp_path / 'store.tokenstore'})" in second.stderr
    _, err = first.communicate(timeout=WAIT_SECONDS)
    assert first.returncode == 0, err
    assert tokenstore.verify(tmp_path / "store") == []
    assert not (tmp_path / "store.tokenstore").exists()


def test_a_killed_build_does_not_block_others(
    start: Start, slow_build: list[object], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """P8: its lock is released, even if the lock file still exists."""
    first = start(*in_small_units("build", *slow_build, stops=True))
    wait_until_stopped(first)
    first.kill()
    first.wait()
    assert (tmp_path / "store.tokenstore").exists()
    assert run_here("build", *slow_build).returncode == 0
    assert contents(tmp_path / "store") == undisturbed


def test_progress_is_plain_lines_when_piped(slow_build: list[object]) -> None:
    """Without a terminal there are no control characters: a line from time to time, with share, tokens/s and time left."""
    done = run(*EAGER, *slow_build)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(
            r"building: \d+ %(, [\d.e+]+( [kMGT])? tokens/s, [\d.e+]+ ?[kMGT]?B of input/s, [\d:]+ left)?", line
        )
    assert lines[-1].startswith("building: 100 %")
    assert "\x1b" not in done.stdout + done.stderr


def test_json_output_is_not_disturbed_by_progress(slow_build: list[object]) -> None:
    """--json is quiet on standard error."""
    done = run(*EAGER, *slow_build, "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["num_documents"] == 8 * 100 * len(TEXTS)


def test_progress_is_a_bar_on_a_terminal(start: Start, slow_build: list[object]) -> None:
    """The share of the work, tokens/s and the time left are updated in place."""
    ours, theirs = pty.openpty()
    environ = {**environment(), "TERM": "xterm", "COLUMNS": "150"}
    process = start(*BUILD, *slow_build, stderr=theirs, env=environ)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        shown += block
    os.close(ours)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown)
    assert re.search(rb"building .*\d+ %.* tokens/s, .*\d:\d\d:\d\d", plain)


def test_a_resumed_build_reports_the_finished_parts(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """P8: in a note on standard error, after the note on skipped files."""
    jsonl("in/b.jsonl", ["a", b"bad"])
    jsonl("in/a.py", [])
    jsonl("in/a.jsonl", ["a" * 1_000_000] * 5)  # more than a unit
    command = ["build", tmp_path / "in", "--output", tmp_path / "store", "--tokenizer", "bytes", "--workers", 1]
    assert run_here(*command).returncode == 3
    done = run_here(*command, "--max-bad", 1)
    assert done.returncode == 0
    assert done.stderr == "note: skipped 1 file with other endings (1 .py)\nnote: resuming: 2 of 3 parts are done\n"


def test_the_end_of_text_is_shown_and_can_be_chosen(tmp_path: Path, tokenizer_file: Path) -> None:
    """A chat model's files name the end of a turn: the build prints it, --eos chooses another, and inspect shows it."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tokenizer_file, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|user|>"}')
    (tmp_path / "a.txt").write_text("one text")
    command = (
        "build",
        str(tmp_path / "a.txt"),
        "--tokenizer",
        str(folder / "tokenizer.json"),
        "-o",
        str(tmp_path / "s"),
    )
    done = run_here(*command)
    assert "end of text  '<|user|>' (1)\n" in done.stdout
    assert "note: documents end with '<|user|>' (1)" in done.stderr
    assert "choose with --eos, as in --eos '<|endoftext|>'" in done.stderr
    done = run_here(*command, "--overwrite", "--eos", "<|endoftext|>")
    assert "end of text  '<|endoftext|>' (0)\n" in done.stdout
    assert "documents end with" not in done.stderr
    assert re.search(
        r"end of text +'<\|endoftext\|>' \(0\), the last token", run_here("inspect", str(tmp_path / "s")).stdout
    )
    assert json.loads(run_here(*command, "--overwrite", "--no-eos", "--json").stdout)["eos_id"] is None
