"""A run whose store is truncated or removed, or whose worker is killed: a clear error, and no hang."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tests.support.processes.command_lines import ROOT, WAIT_SECONDS
from tests.support.stores.masked import random_masked, write_masked
from tests.support.trainers.microbatches import microbatches, same
from tokenstore import Plan

DISTURBANCES = {
    "a shard cut": "os.truncate(sorted(path.glob('tokens-*'))[1], 10)",
    "a shard emptied": "os.truncate(sorted(path.glob('tokens-*'))[0], 0)",
    "the boundaries cut": "os.truncate(path / 'boundaries.bin', 0)",
    "the order cut": "os.truncate(path / 'length_index.bin', 0)",
    "a mask cut": "os.truncate(sorted(path.glob('mask-*'))[0], 0)",
    "a shard taken away": "sorted(path.glob('tokens-*'))[1].unlink()",
    "the store taken away": "shutil.rmtree(path)",
}
# By then all files are mapped. A step takes a moment, like real steps.
SCRIPT = """
import os, shutil, sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from tokenstore import Plan, TokenDataset, TokenLoader

if __name__ == "__main__":
    path, workers = Path(sys.argv[1]), int(sys.argv[2])
    plan = Plan.of(str(path), 16, 4)
    loader = TokenLoader(plan) if workers < 0 else DataLoader(TokenDataset(plan), batch_size=None, num_workers=workers)
    batches = iter(loader)
    for _ in range(60):
        next(batches)
    {disturbance}
    for _ in range(100):
        time.sleep(0.05)
        next(batches)
"""


def python(script: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)


@pytest.mark.parametrize(
    ("disturbance", "workers"),
    [
        ("a shard cut", -1),
        *[pytest.param(each, -1, marks=pytest.mark.deep) for each in DISTURBANCES if each != "a shard cut"],
        *[pytest.param(each, 2, marks=pytest.mark.deep) for each in DISTURBANCES],
    ],
)
def test_a_truncated_or_removed_file_is_named(tmp_path: Path, disturbance: str, workers: int) -> None:
    """P9: the process survives, and the exception names the file."""
    lengths = [1 + number % 20 for number in range(400)]
    path = write_masked(tmp_path / "s", random_masked(1, lengths), shard_bytes=1000, length_index=True, at_once=10)
    script = SCRIPT.replace("{disturbance}", DISTURBANCES[disturbance])
    done = python(script, path, workers)
    assert done.returncode == 1, done.stderr
    last = next(line for line in reversed(done.stderr.splitlines()) if "CorruptionError" in line)
    assert str(path) in last
    assert "expected" in last


KILLED = """
import os, signal, sys
from torch.utils.data import DataLoader
from tokenstore import Plan, TokenDataset

if __name__ == "__main__":
    plan = Plan.of(sys.argv[1], 16, 4)
    batches = iter(DataLoader(TokenDataset(plan), batch_size=None, num_workers=2))
    for number in range(10_000):
        print(next(batches)["input_ids"].tolist(), flush=True)
        if number == 5:
            os.kill(batches._workers[0].pid, signal.SIGKILL)
"""


def test_a_killed_worker_is_an_error(make_store: Callable[..., Path]) -> None:
    """P1: SIGKILL of a DataLoader worker, as by the OOM killer: an error, no hang, and no wrong batch before it."""
    path = make_store("a", random_documents(1, 400, 20), length_index=True)
    done = python(KILLED, path)
    assert done.returncode == 1
    # Either error may come first: from torch's signal handler, or from a pipe to the worker.
    killed = r"DataLoader worker .*(killed by signal|exited unexpectedly)|ConnectionResetError|EOFError"
    assert re.search(killed, done.stderr)
    given = [json.loads(line) for line in done.stdout.splitlines()]
    assert 6 <= len(given) < 10_000
    assert same(given, microbatches(Plan.of(path, 16, 4), range(len(given))))
