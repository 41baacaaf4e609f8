"""Options of the commands: each explained by --help, each with the default that the function behind it has."""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields

import pytest

from tests.support.processes.command_lines import ROOT, run_here
from tokenstore.builder import BuildOptions, append_store
from tokenstore.commands.app import EXIT_CODES
from tokenstore.commands.append import append
from tokenstore.commands.build import build
from tokenstore.commands.index import index
from tokenstore.commands.inspect import inspect as inspect_store
from tokenstore.commands.plan import plan
from tokenstore.commands.report import report
from tokenstore.commands.trace import trace
from tokenstore.commands.verify import verify

COMMANDS = {each.__name__: each for each in (build, append, index, verify, inspect_store, plan, trace, report)}


def options_of(command: Callable) -> dict[str, object]:
    """Options of a command's function and their defaults."""
    found = inspect.signature(command).parameters.values()
    return {each.name: each.default for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_and_explains_every_option(name: str) -> None:
    """--help exits 0 and has every option of the function, with a sentence on it, and a command to copy."""
    done = run_here(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = set(re.findall(r"--[a-z][a-z-]*", done.stdout))
    wanted = {
        "--json" if option == "as_json" else "--" + option.replace("_", "-") for option in options_of(COMMANDS[name])
    }
    assert wanted - shown == set()
    assert {"--no-eos", "--no-origins"} <= shown or name != "build"
    described = re.findall(r"^(\w+)\n    \S", inspect.getdoc(COMMANDS[name]), re.MULTILINE)
    assert described == [*inspect.signature(COMMANDS[name]).parameters]
    assert f"tokenstore {name} " in done.stdout
    assert "Exit codes: 0 done; 1 failed; 2 wrong usage" in done.stdout


def test_the_defaults_of_build_are_those_of_its_options() -> None:
    """Left out on the command line is left out in Python; but for the workers, which are as many as there are cores."""
    command, options = options_of(build), {field.name: field.default for field in fields(BuildOptions)}
    command["max_record_bytes"] = command.pop("max_record_size") << 20
    command["shard_bytes"] = command.pop("shard_size") << 20
    assert (command.pop("workers"), options.pop("workers")) == (None, 1)
    command["eos_token"], command["eos"] = command.pop("eos"), not command.pop("no_eos")
    assert (command.pop("dry_run"), command.pop("as_json")) == (False, False)
    required = {name for name, default in options.items() if default is MISSING}
    assert required == {"inputs", "output", "tokenizer"}
    assert {name for name, default in command.items() if default is inspect.Parameter.empty} == required - {"inputs"}
    found = {name: () if default == [] else default for name, default in command.items() if name not in required}
    assert found == {name: default for name, default in options.items() if name not in required}


def test_the_defaults_of_append_are_those_of_its_function() -> None:
    """The same for append."""
    command, function = options_of(append), inspect.signature(append_store).parameters
    assert (command.pop("workers"), function["workers"].default) == (None, 1)
    assert command.pop("as_json") is False
    assert command == {name: function[name].default for name in ("max_bad", "filter", "map")}


def test_exit_codes_are_listed_in_the_readme() -> None:
    """All of those that --help lists."""
    readme = (ROOT / "README.md").read_text()
    assert all(f"| {code} |" in readme for code in re.findall(r"\d+", EXIT_CODES))


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
    """One object on standard output, with the message and the exit code; the message for people stays on the other."""
    done, plain = run_here(*question, "--json"), run_here(*question)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["exit_code"]) == (code, kind, code)
    assert done.stderr == plain.stderr == f"error: {error['message']}\n"
    assert plain.stdout == ""


def test_a_usage_error_is_one_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is cut at the width of a terminal, and it has no frame, so that it can be searched and copied."""
    monkeypatch.setenv("COLUMNS", "40")
    done = run_here("bild", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        'error: Unknown command "bild". Did you mean "build"? Available commands: build, append, index, verify, inspect, plan,'
        " trace, report. Run `tokenstore --help`.\n"
    )
