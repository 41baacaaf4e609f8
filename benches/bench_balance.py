"""Claims: with `balance: attention` ranks wait little for each other, and dealing a step takes at most 3 ms.

Resources: CPU. Memory: the packing of an epoch. Disk: none for `best_fit`; for `concat`, boundaries at random places. The
documents are web-like, as in the simulation that the rule comes from: lognormal with a median of 520 tokens, and a
Pareto tail of 0.4 %. Its other parameters (sigma 0.9, tail from 9,000 tokens on with exponent 1.05) are fitted to the
results of that simulation without balance. A row of a model with 7 * 10^9 parameters, 32 layers and width 4,096 costs
L + alpha * (sum of the squares of its pieces), with alpha = 32 * 4,096 / (7 * 10^9).
"""

from pathlib import Path
from statistics import median

import numpy as np

import tokenstore
from benches.scenes import Row, batch_microseconds, seconds, sparse_store
from tokenstore.store.length_index import add_length_index

RANKS, ROWS = 64, 8  # 8 microbatches of one row
COSTS = {"attention": 1, "linear": 7_000_000_000 // (32 * 4096)}
# sequence length: (waste without balance in the simulation, with balance, the most that is allowed)
SIMULATED = {8192: (1.095, 1.009, 1.02), 32768: (1.449, 1.029, 1.04), 131072: (2.627, 1.088, 1.12)}


def web_documents(seed: int, count: int) -> np.ndarray:
    """int64[count]: lengths of documents."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(np.log(520), 0.9, count)
    tail = rng.random(count) < 0.004
    lengths[tail] = 9000 * (1 + rng.pareto(1.05, int(tail.sum())))
    return np.clip(lengths, 8, 1_000_000).astype(np.int64)


def _plan(path: Path, length: int, batch: int, packing: str = "best_fit") -> tokenstore.Plan:
    return tokenstore.Plan.of(path, length, batch, packing=packing, balance=COSTS)


def _wastes(plan: tokenstore.Plan, steps: int) -> tuple[float, float]:
    """The busiest rank of each microbatch relative to the mean, summed over microbatches: in order, and balanced."""
    sampler = plan.sampler()
    dealer = plan.dealer(sampler)
    sums = np.zeros(3)
    for step in range(steps):
        costs = sampler.costs(sampler.locate(step, 0, RANKS * ROWS))
        numbers = dealer.dealt(step, is_balanced=True).numbers[0]
        for place, row_costs in enumerate(
            (costs, costs[numbers])
        ):  # a microbatch of one row is any RANKS rows in a row
            sums[place] += row_costs.reshape(ROWS, RANKS).max(axis=1).sum()
        sums[2] += costs.sum() / RANKS
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def _waits(path: Path, smoke: bool) -> list[Row]:
    rows = []
    for length, (plain, balanced, most) in SIMULATED.items():
        found = _wastes(_plan(path, length, RANKS * ROWS), 4 if smoke else 200)
        claim = f"busiest rank over the mean, {RANKS} ranks x {ROWS} rows, L = {length:,}, balanced"
        beside = f"in order {found[0]:.3f}; simulated: in order {plain}, balanced {balanced}"
        rows.append(Row(claim, f"{found[1]:.3f}", f"{most}", beside))
    return rows


def _dealing(path: Path, smoke: bool) -> list[Row]:
    """Milliseconds to deal a step of 1,024 rows: locate them, compute and sort their costs."""
    rows = []
    for packing, length in (("best_fit", 2048), ("best_fit", 131_072), ("none", 2048), ("concat", 2048)):
        plan = _plan(path, length, 1024, packing)
        dealer = plan.dealer(plan.sampler())
        dealer.dealt(0, is_balanced=True)
        times = [
            1e3 * seconds(lambda k=step, d=dealer: d.dealt(k, is_balanced=True))
            for step in range(1, 10 if smoke else 100)
        ]
        claim = f"dealing a step of 1,024 rows, {packing}, L = {length:,}"
        beside = f"p90 of {len(times)} steps {np.quantile(times, 0.9):.2f} ms"
        if packing != "concat":
            beside += f"; an epoch, which is packed when it begins, has {plan.num_sequences['web'] / 1024:,.0f} steps"
        rows.append(Row(claim, f"{median(times):.2f} ms", "3 ms", beside))
    return rows


def _batches(path: Path, smoke: bool) -> Row:
    """CPU time of a batch, with its share of the dealing of its step."""
    plans = {
        name: tokenstore.Plan.of(path, 2048, 1024, balance=each)
        for name, each in (("plain", None), ("balanced", COSTS))
    }
    loaders = {
        name: tokenstore.TokenLoader(plan, rank=0, world_size=8, microbatch_size=8) for name, plan in plans.items()
    }
    times = batch_microseconds(loaders, smoke)
    claim = "CPU of a batch of 8 x 2,048 on 8 ranks, best_fit, balanced"
    return Row(
        claim, f"{times['balanced']:.0f} us", "", f"without balance {times['plain']:.0f} us; 16 batches per step"
    )


def run(folder: Path, smoke: bool) -> list[Row]:
    """How long ranks wait for each other, and what dealing costs."""
    path = sparse_store(folder / "web", 100_000 if smoke else 1_500_000, lengths_of=web_documents)
    add_length_index(path)
    return [*_waits(path, smoke), *_dealing(path, smoke), _batches(path, smoke)]
