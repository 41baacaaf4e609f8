"""Claim: for the same work, tokenstore is faster than other loaders, with less wait, memory and time to the first batch.

Resources: CPU: one core, plus those of workers. Memory: as in bench_throughput. Disk: none (warm cache). The work is 8 x 2048
tokens and targets of one source of 66 million tokens, shuffled. Each loader is a separate process, and all are measured in turn,
so that a round sees the same machine. The row of a loader that is not installed, or that fails, says so.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benches.limit import Limit
from benches.peers import BATCH, LENGTH, PEERS, Work
from benches.scenes import VOCABULARY, Row, ratio, seconds, token_store

STEP_SECONDS = 0.005


class Asked:
    """A loader in a separate process that performs `actions`. `first_seconds`: time to its first batch, if it serves."""

    def __init__(self, name: str, work: Work, actions: str):
        paths = (str(work.store), str(work.folder))
        command = [sys.executable, "-m", "benches.peers", name, *paths, str(work.workers), str(work.step), actions]
        self._errors, pipe = work.folder / "errors", subprocess.PIPE
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self._answer()
        self.first_seconds = self._answer() if "serve" in actions else 0.0

    def _answer(self) -> Any:
        if not (line := self._process.stdout.readline()):
            self._process.wait()
            raise RuntimeError(
                (self._errors.read_text().strip().splitlines() or ["the process ended without an error message"])[-1]
            )
        return json.loads(line)

    def ask(self, *words: object) -> Any:
        """Send a request, see `peers`, and return the answer."""
        with suppress(BrokenPipeError):  # the process has ended, which `_answer` reports
            print(*words, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _is_installed(name: str) -> bool:
    return all(find_spec(module.split(".")[0]) for module in PEERS[name].modules)


# Each of the two gives (workers, a loader at step 0, seconds to the first batch far on), after its batches were looked at
def _open_smoke(name: str, small: Work, large: Work) -> Iterator[tuple[int, Asked, float]]:
    opened = Asked(name, small, "prepare,check,serve")
    yield 0, opened, opened.first_seconds


def _open(name: str, small: Work, large: Work) -> Iterator[tuple[int, Asked, float]]:
    Asked(name, small, "prepare,check").close()
    Asked(name, large, "prepare").close()
    for workers in PEERS[name].workers:
        opened = Asked(name, replace(large, workers=workers, step=0), "serve")
        resumed = Asked(name, replace(large, workers=workers), "serve")
        resumed.close()
        yield workers, opened, resumed.first_seconds


def _measure(loaders: dict[Any, Asked], smoke: bool) -> dict[Any, list[float]]:
    """Seconds a batch of every loader and of the limit, in turn."""
    limit, batches = Limit(), 20 if smoke else 300
    source = np.random.default_rng(0).integers(0, VOCABULARY, batches * BATCH * LENGTH + 1).astype(np.uint16)
    ids, targets = np.empty((2, BATCH * LENGTH), np.int64)
    counts = {
        key: 2 if smoke else int(min(max(0.1 / (one.ask("take", 10) / 10), 10), 300)) for key, one in loaders.items()
    }
    times: dict[Any, list[float]] = {key: [] for key in ("limit", *loaders)}
    for _ in range(2 if smoke else 8):
        times["limit"].append(seconds(lambda: limit.run(source, batches, ids, targets)) / batches)
        for key, one in loaders.items():
            times[key].append(one.ask("take", counts[key]) / counts[key])
    return times


def run(folder: Path, smoke: bool) -> list[Row]:
    """One row per loader."""
    far = 3 if smoke else 3000
    small = token_store(folder / "small", 6, 300_000)
    large = small if smoke else token_store(folder / "large", 7, 66_000_000)
    loaders: dict[tuple[str, int], Asked] = {}
    far_seconds, rows = {}, []
    for number, name in enumerate(PEERS):
        works = []
        for store, step in ((small, 3), (large, far)):
            works.append(Work(store, folder / f"{number}-{step}", step=step))
            works[-1].folder.mkdir(exist_ok=True)
        try:
            if not _is_installed(name):
                rows.append(Row(f"8 x 2048 by {name}", "not installed", "", "benches/requirements-peers.txt"))
                continue
            for workers, opened, resumed in (_open_smoke if smoke else _open)(name, *works):
                loaders[name, workers], far_seconds[name, workers] = opened, resumed
        except RuntimeError as error:
            rows.append(Row(f"8 x 2048 by {name}", "fails here", "", str(error)[:200]))
    times = _measure(loaders, smoke)
    for key, one in loaders.items():
        rows.append(_row(key, one, times, far_seconds[key], far, smoke))
        one.close()
    return rows


def _row(
    key: tuple[str, int], one: Asked, times: dict[Any, list[float]], far_seconds: float, far: int, smoke: bool
) -> Row:
    """Share of the limit, ratio to tokenstore, waits, first batches, memory."""
    waits = [1e6 * wait for wait in one.ask("wait", 5 if smoke else 100, STEP_SECONDS)]
    grown, workers = one.ask("memory")
    memory = f"{grown / 1024:.0f} MB a rank" + (f", {median(workers) / 1024:.0f} MB a worker" if workers else "")
    beside = (
        f"ours is {ratio(times[key], times['tokenstore, concat', 0])} times as fast; wait with a 5 ms step {median(waits):.0f} us"
        f" (p90 {np.percentile(waits, 90):.0f}); first batch {one.first_seconds:.3f} s, at step {far:,} {far_seconds:.3f} s;"
        f" grown by {memory}"
    )
    name = key[0] + (f", {key[1]} workers" if key[1] else "")
    return Row(f"8 x 2048 by {name}, share of the limit", ratio(times["limit"], times[key]), "", beside)
