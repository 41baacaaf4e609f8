"""Claim: a batch costs little more than the machine must spend to widen its tokens.

Four resources: CPU 1 core; memory reads 2 bytes a token at random places, writes 16; disk none (warm cache); network none.
Work: 8 x 2048 tokens from 3 sources at .6/.3/.1, shuffled, ids and targets as int64. Limit: `limit.py`, in order.
Peer: a hand-written memmap data set in a plain DataLoader, no workers, its fastest form (a block of rows at once).
"""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import tokenstore
from benches.limit import Limit
from benches.scenes import VOCABULARY, Row, ratio, rounds, token_store

BATCH, LENGTH, WEIGHTS = 8, 2048, {"a": "0.6", "b": "0.3", "c": "0.1"}


class MemmapRows(Dataset):
    """What people write by hand: a memmap a source, a weighted random choice of rows, one sequence an item."""

    def __init__(self, files: list[Path], count: int):
        self.maps = [np.memmap(file, np.uint16, "r") for file in files]
        rng = np.random.default_rng(0)
        self.source = rng.choice(3, count, p=[0.6, 0.3, 0.1])
        self.row = np.array([rng.integers(0, (m.size - 1) // LENGTH) for m in self.maps for _ in range(count)])
        self.row = self.row.reshape(3, count)[self.source, np.arange(count)]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.row[i] * LENGTH
        block = torch.from_numpy(self.maps[self.source[i]][start : start + LENGTH + 1].astype(np.int64))
        return block[:-1], block[1:]


def _plan(paths: dict[str, Path], packing: str) -> tokenstore.Plan:
    fields = {"sequence_length": LENGTH, "global_batch_size": BATCH, "weights": WEIGHTS, "packing": packing}
    return tokenstore.Plan.of(paths, **fields)


def _loader(plan: tokenstore.Plan) -> Iterator:
    expected = plan.batch(0)["input_ids"]
    loader = iter(tokenstore.TokenLoader(plan))
    assert (next(loader)["input_ids"].numpy() == expected).all(), "checked before it is timed"
    return loader


def run(folder: Path, smoke: bool) -> list[Row]:
    """Throughput as a share of the limit."""
    tokens, batches, count = (300_000, 20, 2) if smoke else (66_000_000, 1000, 7)
    paths = {name: token_store(folder / name, i, tokens) for i, name in enumerate(WEIGHTS)}
    plans = {packing: _plan(paths, packing) for packing in ("concat", "best_fit")}
    concat, best_fit = map(_loader, plans.values())
    peer = iter(_forever(DataLoader(MemmapRows([p / "tokens-00000.bin" for p in paths.values()], 1 << 16), BATCH)))
    limit = Limit()
    source = np.random.default_rng(0).integers(0, VOCABULARY, batches * BATCH * LENGTH + 1).astype(np.uint16)
    ids, targets = np.empty((2, BATCH * LENGTH), np.int64)
    mapped = np.memmap(paths["a"] / "tokens-00000.bin", np.uint16, "r")
    starts = np.random.default_rng(1).integers(0, mapped.size - LENGTH - 1, (batches, BATCH))

    def take(iterator: Iterator) -> None:
        for _ in range(batches):
            next(iterator)

    times = rounds(
        {
            "limit": lambda: limit.run(source, batches, ids, targets),
            "random": lambda: limit.run_random(mapped, starts, ids, targets),
            "concat": lambda: take(concat),
            "best_fit": lambda: take(best_fit),
            "peer": lambda: take(peer),
        },
        count,
    )
    speed = batches * BATCH * LENGTH / np.median(times["limit"]) / 1e6
    shares = {name: ratio(times["limit"], times[name]) for name in ("random", "concat", "best_fit", "peer")}
    beside = (
        f"the C loop itself at random places {shares['random']}; hand-written memmap in a DataLoader {shares['peer']};"
        f" limit {speed:.0f} Mtok/s"
    )
    return [
        Row("warm throughput, concat, share of the limit", shares["concat"], "0.45", beside),
        Row("the same, times a hand-written memmap DataLoader", ratio(times["peer"], times["concat"]), "3", ""),
        Row("warm throughput, best_fit, share of the limit", shares["best_fit"], "0.30", "2.9 documents a sequence"),
        Row("the same, times a hand-written memmap DataLoader", ratio(times["peer"], times["best_fit"]), "", ""),
        *(_profile(plan, batches, count) for plan in plans.values()),
    ]


def _profile(plan: tokenstore.Plan, batches: int, count: int) -> Row:
    """Where the time of a batch goes: the whole of it less what a part takes that does less."""
    sampler, steps = plan.sampler(), batches * (count + 1)
    loader = iter(tokenstore.TokenLoader(plan, step=steps))  # other pages than the kernel's, and as new
    rows = [sampler.locate(step, 0, BATCH) for step in range(steps)]
    fresh = iter(rows)
    ids, targets = np.empty((2, BATCH, LENGTH), np.int64)
    none = np.empty((0, 2), np.int64)

    def repeat(action: Callable[[np.ndarray], object], rows: list[np.ndarray]) -> Callable[[], object]:
        return lambda: deque(map(action, rows), maxlen=0)

    def fill(located: np.ndarray) -> None:
        sampler.fill(located, ids, targets)

    taken = rounds(
        {
            "all": repeat(lambda _: next(loader), rows[:batches]),
            "kernel": repeat(lambda _: fill(next(fresh)), rows[:batches]),
            "cached": repeat(fill, rows[:1] * batches),
            "planned": repeat(sampler.lay, rows[:1] * batches),
            "called": repeat(sampler.lay, [none] * batches),
        },
        count,
    )
    us = {name: float(np.median(each)) / batches * 1e6 for name, each in taken.items()}
    beside = (
        f"Python and tensors {us['all'] - us['kernel']:.1f}, calling the kernel {us['called']:.1f}, planning"
        f" {us['planned'] - us['called']:.1f}, copying {us['cached'] - us['planned']:.1f}, waiting for memory"
        f" {us['kernel'] - us['cached']:.1f}"
    )
    return Row(f"a batch of {plan.config.packing}, and where its time goes", f"{us['all']:.1f} us", "", beside)


def _forever(loader: DataLoader) -> Iterator:
    while True:
        yield from loader
