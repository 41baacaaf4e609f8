"""Fixtures of the tests of commands: processes that end with their test, inputs that keep them busy."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.texts import TEXTS
from tests.support.processes.command_lines import ROOT, Start, environment

FILES, REPEATS = 8, 100


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a command; what still runs when the test ends is killed."""
    started: list[subprocess.Popen] = []

    def begin(*command: object, **options: object) -> subprocess.Popen:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment(), **options}
        started.append(subprocess.Popen(list(map(str, command)), cwd=ROOT, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def many_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts that take a while to tokenize."""
    folder = tmp_path_factory.mktemp("many_texts")
    for number in range(FILES):
        lines = (json.dumps({"text": text}) for text in TEXTS * REPEATS)
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder
