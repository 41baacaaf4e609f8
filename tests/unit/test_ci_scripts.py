"""The scripts of .ci that run other interpreters and trainers: usage, exit codes, and what a failure leaves of the rest."""

import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"


def run(script: str, *arguments: str) -> tuple[int, str]:
    """The exit status of a script, and what it printed."""
    done = subprocess.run([CI / script, *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["trainers", "versions"])
def test_help_is_printed_without_installing_anything(script: str) -> None:
    status, text = run(script, "--help")
    assert status == 0
    assert text.startswith(f"usage: .ci/{script} ")


@pytest.mark.parametrize("arguments", [["--unknown"], ["--only", "both"], ["/no/such/python"]])
def test_a_wrong_command_is_refused(arguments: list[str]) -> None:
    assert run("versions", *arguments)[0] == 2


def test_every_interpreter_is_run_and_listed_if_one_fails(tmp_path: Path) -> None:
    """These interpreters answer with a version and can make no environment."""
    names = [str(tmp_path / name) for name in ("first", "second")]
    for number, name in enumerate(names):
        Path(name).write_text(f'#!/bin/sh\n[ "$1" != -m ] && echo 3.1{number}.0\n')
        Path(name).chmod(0o755)
    status, text = run("versions", "--only", "newest", *names)
    assert status == 1
    table = text.partition("== seconds and results of each environment\n")[2].splitlines()[1:]
    assert [line.split()[:2] for line in table] == [["3.10.0", "newest"], ["3.11.0", "newest"]]
    assert all("failed" in line for line in table)
