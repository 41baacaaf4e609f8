"""Simulate training runs for a given time: ranks are killed at random and resumed with other world sizes.

    python -m tests.soak --minutes 60 --seed 3

A run is a random plan over random stores. Its ranks are processes. All are killed by SIGKILL at a random moment and started
again from the last step that all of them completed: with another world size, other microbatches, with or without prefetching
and DataLoader workers. Every step that a rank completes is compared with plan.batch.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

from tests.conftest import random_documents, write_store
from tests.support.stores.masked import random_masked, write_masked
from tokenstore import Plan, TokenDataset, TokenLoader

BATCH = 24
SHAPES = [(40, 30), (7, 200), (300, 9), (60, 64), (25, 80)]  # documents, longest


@dataclass(frozen=True)
class Split:
    """How a run continues: from which step, with how many ranks, which microbatch size and which loader."""

    step: int
    world_size: int
    microbatch_size: int
    workers: int | None  # of a DataLoader; None: use a TokenLoader
    options: dict


def make_stores(folder: Path) -> list[Path]:
    """Stores of several shapes with many shards; one has loss masks."""
    stores = [
        write_store(folder / f"{number}", random_documents(number, *shape), shard_bytes=500, length_index=True)
        for number, shape in enumerate(SHAPES)
    ]
    masked = random_masked(9, [1 + number % 50 for number in range(100)])
    return [*stores, write_masked(folder / "masked", masked, shard_bytes=900, length_index=True)]


def random_plan(stores: list[Path], rng: random.Random) -> Plan:
    """A plan of 200 to 1,000 steps with random sources, weights, stages, skipped steps and packing."""
    names = rng.sample("abcdef", rng.randint(1, 4))
    steps = rng.randint(200, 1000)
    turn = rng.randint(1, steps - 1)
    fields = {
        "packing": rng.choice(["best_fit", "concat", "none"]),
        "seed": rng.getrandbits(60),
        "shuffle": rng.random() < 0.8,
        "num_steps": steps,
        "weights": {name: f"{rng.uniform(0.05, 1):.3f}" for name in names},
        "stages": [{"from_step": turn, "weights": {rng.choice(names): 1}, "global_batch_size": rng.choice([12, 48])}],
        "skip_steps": [(turn // 2, turn // 2 + rng.randint(1, 5))],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs, on purpose
        return Plan.of({name: rng.choice(stores) for name in names}, rng.choice([1, 7, 16, 32]), BATCH, **fields)


def random_split(step: int, rng: random.Random) -> Split:
    """A split that divides every global batch of the plan: 12, 24 and 48."""
    world_size = rng.choice([1, 2, 3, 4])
    microbatch_size = rng.choice([size for size in (1, 2, 3, 4, 6, 12) if 12 // world_size % size == 0])
    workers = rng.choice([None, None, None, 0, 2])
    ahead = {
        "readahead": rng.choice([0, 1, 4]),
        "prefetch": rng.choice([0, 0, 1, 3]),
        "reuse": rng.choice([0, 0, 1, 2]),
    }
    return Split(step, world_size, microbatch_size, workers, {} if workers is not None else ahead)


def checksum(ids: np.ndarray, targets: np.ndarray, before: int = 0) -> int:
    return zlib.crc32(targets.tobytes(), zlib.crc32(ids.tobytes(), before))


def be_rank(plan: Plan, split: Split, rank: int, log: Path) -> None:
    """Write `step checksum` for every completed step into `log`, and errors into a file next to it."""
    with open(log.with_suffix(".err"), "wb") as errors:
        os.dup2(errors.fileno(), 2)
    os.setsid()  # a worker whose rank is killed before it has read its parent's pid would run forever
    place = {"rank": rank, "world_size": split.world_size, "microbatch_size": split.microbatch_size, "step": split.step}
    if split.workers is None:
        batches: Iterator = iter(TokenLoader(plan, **place, **split.options))
    else:
        dataset = TokenDataset(plan, **place)
        batches = iter(DataLoader(dataset, batch_size=None, num_workers=split.workers))
    with open(log, "w", buffering=1) as out:
        for step in given_steps(plan, split.step):
            found = 0
            for _ in range(plan.global_batch_size(step) // split.world_size // split.microbatch_size):
                batch = next(batches)
                found = checksum(batch["input_ids"].numpy(), batch["targets"].numpy(), found)
            out.write(f"{step} {found}\n")
        assert next(batches, None) is None
        out.write("end\n")


def given_steps(plan: Plan, first: int) -> list[int]:
    return [step for step in range(first, plan.num_steps) if not plan.schedule.is_skipped(step)]


def expected(plan: Plan, split: Split, rank: int, step: int) -> int:
    rows = plan.batch(step, rank, split.world_size, split.microbatch_size)
    found = 0
    for first in range(0, len(rows["input_ids"]), split.microbatch_size):
        part = slice(first, first + split.microbatch_size)
        found = checksum(rows["input_ids"][part], rows["targets"][part], found)
    return found


def run_split(plan: Plan, split: Split, folder: Path, rng: random.Random) -> tuple[int | None, int]:
    """Start the ranks and kill them at a random moment.

    Returns: the step that all have completed, None at the end of the plan; and the number of steps compared.
    """
    context = multiprocessing.get_context("fork")  # the children need not import torch again
    logs = [folder / f"rank-{rank}" for rank in range(split.world_size)]
    for log in logs:
        log.unlink(missing_ok=True)
    ranks = [context.Process(target=be_rank, args=(plan, split, rank, log)) for rank, log in enumerate(logs)]
    for process in ranks:
        process.start()
    end = time.monotonic() + rng.choice([rng.uniform(0, 0.2), rng.uniform(0, 1), 60])
    while time.monotonic() < end and any(process.is_alive() for process in ranks):
        time.sleep(0.002)
    killed = any(process.is_alive() for process in ranks)
    for process, log in zip(ranks, logs, strict=True):
        with contextlib.suppress(ProcessLookupError):  # it has not called setsid yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), f"{split}: {log.with_suffix('.err').read_text()}"
    return compare(plan, split, logs, killed)


def compare(plan: Plan, split: Split, logs: list[Path], killed: bool) -> tuple[int | None, int]:
    """Compare every line of every rank with plan.batch. A line without its end does not count."""
    steps, compared, reached, ended = given_steps(plan, split.step), 0, [], []
    for rank, log in enumerate(logs):
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        lines = [line for line in lines if line.endswith("\n")]
        ended.append(lines[-1:] == ["end\n"])
        lines = lines[:-1] if ended[-1] else lines
        for step, line in zip(steps, lines, strict=False):
            assert line == f"{step} {expected(plan, split, rank, step)}\n", f"{plan!r} {split} rank {rank} step {step}"
        compared += len(lines)
        reached.append(len(lines))
    assert killed or all(ended), f"a rank stopped before the end: {split}"
    least = min(reached)
    return (None if all(ended) else steps[least] if least < len(steps) else plan.num_steps), compared


def soak(seconds: float, seed: int) -> dict[str, int]:
    """Simulate runs until the time is over. Returns counts; an AssertionError holds what is needed to repeat the failure."""
    counts = {"runs": 0, "starts": 0, "kills": 0, "steps": 0}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="tokenstore-soak-") as name:
        stores = make_stores(Path(name))
        while time.monotonic() < end:
            rng = random.Random(f"{seed} {counts['runs']}")
            plan = random_plan(stores, rng)
            plan.batch(0)  # compile the kernels once, before forking
            step: int | None = 0
            while step is not None:
                step, compared = run_split(plan, random_split(step, rng), Path(name), rng)
                counts["starts"] += 1
                counts["kills"] += step is not None
                counts["steps"] += compared
            counts["runs"] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    done = soak(60 * arguments.minutes, arguments.seed)
    sys.stdout.write(", ".join(f"{count:,} {name}" for name, count in done.items()) + ": no difference\n")
