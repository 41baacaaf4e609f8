"""Claim: lanes give steps like those of a random order, as soon as a source has as many lanes as sequences in a step.

No time is measured. A corpus is one number per sequence, in the order of the store. Three kinds of corpora have variance 1:
in a drifting one, half of the variance is a moving average over 2,000 sequences; in a clustered one, each 500 successive
sequences are equal; in a shuffled one, the numbers are independent, as after a build with shuffled documents. For one source,
the mean over the sequences of a step is compared with the means of random steps, over several epochs and corpora:

    variance     of the means of steps, relative to that of random steps
    neighbours   sequences that are next to each other in the store and in the same step, relative to random steps
    50 steps     standard deviation of the mean of 50 successive steps, relative to that of one random step; random: 0.14

The orders are those of plans: the kernels of ORD-2 and ORD-20 with the keys of a plan. A shuffle window and a block shuffle that
hold as many sequences are measured beside them. Keys and corpora are fixed, and so are the results.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benches.bench_quality import order
from benches.scenes import Row
from tokenstore.order.keys import base_key
from tokenstore.order.lanes import Lanes, lane_windows

BATCH, BLOCK = 128, 256  # sequences per step and per block: with 2,048 tokens of 2 bytes, a block is 1 MB
_DRIFT, _CLUSTER, _MANY = 2000, 500, 50

Order = Callable[[int, int], np.ndarray]  # sequences, epoch -> int64[sequences]


def lanes(block: int, count: int) -> Order:
    """The order of a source with a locality."""

    def windows(size: int, epoch: int) -> np.ndarray:
        keys = (base_key(0, purpose, "web") for purpose in ("block", "place"))
        return lane_windows(Lanes.of(size, block, count), np.arange(size), epoch, *keys)

    return windows


def shuffle_window(held: int) -> Order:
    """The store in its own order, shuffled inside windows of `held` sequences."""

    def windows(size: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([1, epoch]).permuted(np.arange(size).reshape(-1, held), axis=1).ravel()

    return windows


def block_shuffle(block: int, held: int) -> Order:
    """Blocks in random order, and the sequences of `held` successive blocks shuffled."""

    def windows(size: int, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([2, epoch])
        blocks = rng.permutation(np.arange(size).reshape(-1, block))
        return rng.permuted(blocks.reshape(-1, block * held), axis=1).ravel()

    return windows


def drifting(size: int, seed: int) -> np.ndarray:
    """float32[size]: neighbours are alike, and the likeness fades over 2,000 sequences."""
    rng = np.random.default_rng([3, seed])
    sums = np.cumsum(rng.standard_normal(size + _DRIFT))
    slow = (sums[_DRIFT:] - sums[:-_DRIFT]) / np.sqrt(_DRIFT)
    return ((slow + rng.standard_normal(size)) / np.sqrt(2)).astype(np.float32)


def clustered(size: int, seed: int) -> np.ndarray:
    """float32[size]: 500 successive sequences are equal."""
    topics = np.random.default_rng([4, seed]).standard_normal(size // _CLUSTER + 1)
    return np.repeat(topics, _CLUSTER)[:size].astype(np.float32)


def shuffled(size: int, seed: int) -> np.ndarray:
    """float32[size]: sequences are independent."""
    return np.random.default_rng([5, seed]).standard_normal(size).astype(np.float32)


def _means(numbers: np.ndarray, found: np.ndarray, steps: int = 1) -> float:
    """Variance of the means of `steps` successive steps, times the sequences in a step."""
    width = BATCH * steps
    means = numbers[found][: len(found) // width * width].reshape(-1, width).mean(axis=1)
    return float(means.var() * BATCH / numbers.var())


def _neighbours(found: np.ndarray) -> float:
    """Neighbours in one step, relative to BATCH - 1, their expected number per epoch of random steps."""
    step = np.empty(len(found), np.int64)
    step[found] = np.arange(len(found)) // BATCH
    return float((step[1:] == step[:-1]).sum() / (BATCH - 1))


def _measured(orders: list[np.ndarray], corpora: list[np.ndarray]) -> tuple[float, float]:
    """(variance, standard deviation over 50 steps), each the mean over orders and corpora."""
    steps = [_means(numbers, found) for found in orders for numbers in corpora]
    many = [_means(numbers, found, _MANY) for found in orders for numbers in corpora]
    return float(np.mean(steps)), float(np.mean(many)) ** 0.5


def _row(claim: str, made: Order, size: int, corpora: dict[str, list[np.ndarray]], reach: str = "") -> Row:
    """The row of an order over some kinds of corpora; its value is the greatest variance."""
    orders = [made(size, epoch) for epoch in range(2)]
    values = {name: _measured(orders, some) for name, some in corpora.items()}
    near = float(np.mean([_neighbours(found) for found in orders]))
    bars = {f"variance, {name}": round(variance, 2) for name, (variance, _) in values.items()}
    bars |= {"neighbours": round(near, 2)}
    bars |= {f"50 steps, {name}": round(many, 2) for name, (_, many) in values.items()}
    return Row(claim, f"{max(variance for variance, _ in values.values()):.2f}", reach, "", bars)


def run(folder: Path, smoke: bool) -> list[Row]:
    """Orders of one source of 2**22 sequences, with 128 sequences in a step."""
    size, seeds = (1 << 17, 1) if smoke else (1 << 22, 8)
    corpora = {make.__name__: [make(size, seed) for seed in range(seeds)] for make in (drifting, clustered)}
    mixed = {"shuffled": [shuffled(size, seed) for seed in range(seeds)]}
    held, many = BATCH * BLOCK, 4 * BATCH * BLOCK

    def row(claim: str, made: Order, reach: str = "") -> Row:
        return _row(claim, made, size, corpora, reach)

    return [
        row("global order", lambda size, epoch: order(0, "web", epoch, size)),
        row(f"lanes, W = sequences per step, s = {BLOCK} ({held:,} held)", lanes(BLOCK, BATCH), "1.2"),
        row(f"lanes, W = 4 x sequences per step, s = {BLOCK} ({many:,} held)", lanes(BLOCK, 4 * BATCH), "1.05"),
        row(f"lanes, W = sequences per step, s = {4 * BLOCK} ({many:,} held)", lanes(4 * BLOCK, BATCH), "1.2"),
        _row(f"lanes, W = sequences per step, s = {BLOCK}, build shuffled", lanes(BLOCK, BATCH), size, mixed, "1.05"),
        row(f"lanes, W = sequences per step / 4, s = {BLOCK} ({held // 4:,} held)", lanes(BLOCK, BATCH // 4)),
        row(f"shuffle window ({held:,} held)", shuffle_window(held)),
        row(f"shuffle window ({many:,} held)", shuffle_window(many)),
        row(f"block shuffle, s = {BLOCK} ({held:,} held)", block_shuffle(BLOCK, BATCH)),
        row(f"block shuffle, s = {BLOCK} ({many:,} held)", block_shuffle(BLOCK, 4 * BATCH)),
    ]
