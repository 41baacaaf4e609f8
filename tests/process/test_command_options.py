"""Options of the commands: each is explained by --help and has the default of its function."""

import inspect
import json
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.processes.command_lines import ROOT, run_here
from tokenstore.builder import BuildOptions, append_store
from tokenstore.builder.documents.chat_templates import BUILT_IN
from tokenstore.commands import build as build_command
from tokenstore.commands.adopt import adopt
from tokenstore.commands.app import GUIDES, app, run
from tokenstore.commands.append import append
from tokenstore.commands.build import build
from tokenstore.commands.exit_codes import EXIT_CODES
from tokenstore.commands.export import export
from tokenstore.commands.index import index
from tokenstore.commands.inspect import inspect as inspect_store
from tokenstore.commands.plan import plan
from tokenstore.commands.report import report
from tokenstore.commands.trace import trace
from tokenstore.commands.verify import verify

COMMANDS = {
    each.__name__: each for each in (build, adopt, export, append, index, verify, inspect_store, plan, trace, report)
}


RENAMED = {
    "eos": "--add-eos",
    "eos_token": "--eos",
    "max_record_bytes": "--max-record-size",
    "shard_bytes": "--shard-size",
    "group_bytes": "--group-size",
    "from_format": "--from",
}


def options_of(command: Callable) -> dict[str, object]:
    """Options of a command's function and their defaults."""
    found = inspect.signature(command).parameters.values()
    return {each.name: each.default for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY}


def flag(option: str) -> str:
    return RENAMED.get(option, "--json" if option == "as_json" else "--" + option.replace("_", "-"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_and_explains_every_option(name: str) -> None:
    """--help exits 0, lists every option of the function with an explanation, and shows a command to copy."""
    done = run_here(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = set(re.findall(r"--[a-z][a-z-]*", done.stdout))
    wanted = {flag(option) for option in options_of(COMMANDS[name]) if (name, option) != ("build", "options")}
    assert wanted - shown == set()
    described = re.findall(r"^(\w+)\n    \S", inspect.getdoc(COMMANDS[name]), re.MULTILINE)
    assert described == [*inspect.signature(COMMANDS[name]).parameters]
    assert f"tokenstore {name} " in done.stdout
    assert "Exit codes: 0 success; 1 failure; 2 wrong usage" in done.stdout
    page, heading = GUIDES[name]
    assert f'Guide: "{heading}" in the documentation (docs/{page})' in " ".join(done.stdout.split())


def test_help_of_build_explains_every_field_of_its_options() -> None:
    """Each field of BuildOptions has an option, its text and its default."""
    shown = " ".join(re.sub("[│╭╮╰╯─`]", " ", run_here("build", "--help").stdout).split())
    described = inspect.getdoc(BuildOptions).partition("Raises:")[0].replace("`", "")
    texts = dict(re.findall(r"^ {4}(\w+): (\S+ \S+ \S+)", described, re.MULTILINE))
    assert texts.keys() == {field.name for field in fields(BuildOptions)}
    in_units = {"max_record_bytes": "in MiB", "shard_bytes": "in MiB", "group_bytes": "in GiB"}
    for field in fields(BuildOptions):
        if field.name != "inputs":
            assert re.search(rf"{flag(field.name)} .*{re.escape(in_units.get(field.name, texts[field.name]))}", shown)
            if isinstance(field.default, str):
                assert re.search(rf"{flag(field.name)} [^\]]*(\[choices[^\]]*\] )?\[default: {field.default}\]", shown)
    assert re.search(r"--max-record-size [^\[]*\[default: 32\].*--workers [^\[]*\[default: one per core\]", shown)
    assert {"--no-eos", "--no-origins", "-o"} <= set(shown.split())


def test_the_built_in_chat_templates_are_listed_by_help() -> None:
    """All of them, in their order."""
    assert ", ".join(BUILT_IN) in " ".join(inspect.getdoc(BuildOptions).split())


def test_options_omitted_on_the_command_line_have_the_defaults_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for the workers, one per core."""
    made: list[BuildOptions] = []
    monkeypatch.setattr(build_command, "preview_build", lambda options: made.append(options))
    monkeypatch.setattr(build_command, "print_preview", lambda preview, as_json: None)
    line = ["build", "a.txt", "b.txt", "-o", "x", "--tokenizer", "bytes", "--dry-run"]
    assert run(app, line) == 0
    plain = BuildOptions(("a.txt", "b.txt"), Path("x"), "bytes", workers=multiprocessing.cpu_count())
    assert made == [plain]
    more = "--no-eos --eos end --max-record-size 3 --shard-size 7 --text-endings .py .md --no-origins --workers 5"
    assert run(app, [*line, *more.split()]) == 0
    changed = {"eos": False, "eos_token": "end", "max_record_bytes": 3 << 20, "shard_bytes": 7 << 20, "origins": False}
    assert made[1] == replace(plain, **changed, text_endings=(".py", ".md"), workers=5)


@pytest.mark.parametrize("option", ["--max-record-size", "--shard-size"])
def test_a_size_that_is_no_number_is_a_usage_error(option: str, capsys: pytest.CaptureFixture) -> None:
    """Named with its value, exit code 2."""
    assert run(app, ["build", "a.txt", "-o", "x", "--tokenizer", "bytes", option, "big"]) == 2
    assert re.match(rf'error: Invalid value.*{option}.*"?big"?', capsys.readouterr().err)


def test_the_defaults_of_append_are_those_of_its_function() -> None:
    """Omitted on the command line, an option has the default of Python."""
    command, function = options_of(append), inspect.signature(append_store).parameters
    assert (command.pop("workers"), function["workers"].default) == (None, 1)
    assert command.pop("as_json") is False
    assert command == {name: function[name].default for name in ("max_bad", "filter", "map", "stdin_format")}


def test_exit_codes_are_documented() -> None:
    """All those that --help lists."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert all(f"| {code} |" in page for code in re.findall(r"\d+", EXIT_CODES))


@pytest.mark.parametrize(
    ("question", "kind", "code"),
    [
        (["inspect", "none"], "FormatError", 1),
        (["inspect", "none", "--hed", "3"], "UsageError", 2),
        (["plan", "none.yaml"], "ConfigError", 2),
        (["verify", "none", "--retokenize", "1%"], "ConfigError", 2),
        (["build", "README.md"], "UsageError", 2),
    ],
)
def test_a_failure_under_json_is_json(question: list[str], kind: str, code: int) -> None:
    """One object on standard output, with the message and exit code; the message is also on standard error."""
    done, plain = run_here(*question, "--json"), run_here(*question)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["exit_code"]) == (code, kind, code)
    assert done.stderr == plain.stderr == f"error: {error['message']}\n"
    assert plain.stdout == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["build", "data"], "--output is missing. Run `tokenstore build --help`."),
        (["build", "data", "-o"], "-o needs a value. Run `tokenstore build --help`."),
        (["build", "-o", "s", "--tokenizer", "bytes"], "INPUTS is missing. Run `tokenstore build --help`."),
    ],
)
def test_what_is_missing_is_named(line: list[str], message: str) -> None:
    """An option or argument that was not given, and a value of one that was."""
    done = run_here(*line)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_a_usage_error_is_one_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither cut at the width of the terminal nor framed, so that it can be searched and copied."""
    monkeypatch.setenv("COLUMNS", "40")
    done = run_here("bild", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        'error: Unknown command "bild". Did you mean "build"? Available commands: build, adopt, '
    )
    assert done.stderr.endswith(", ... Run `tokenstore --help`.\n")
    assert done.stderr.count("\n") == 1


def test_arguments_too_many_are_named() -> None:
    """Not as tokens: those are what `trace --tokens` lists."""
    done = run_here("trace", "plan.yaml", "--step", "0", "--tokens", "12")
    assert done.returncode == 2
    assert done.stderr == "error: Arguments that the command does not take: 12. Run `tokenstore trace --help`.\n"
