"""Claim: planning a sequence (which source, which window or documents) costs about a microsecond.

Four resources: CPU; memory: for best_fit the order file and the boundaries at random places. `concat`: interleave,
permutation inside the step, permutation of the source, offset. `best_fit`: all that down to the tokens' addresses: bin, slots,
documents, their boundaries. No tokens are read.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit

import tokenstore
from benches.scenes import Row, rounds, sparse_store, token_store
from tokenstore.order.windows import window_start
from tokenstore.sampling.sampler import Sampler
from tokenstore.sampling.tables import NUM_SEQUENCES, NUM_TOKENS, OFFSET_KEY, SEQUENCE_KEY, STORE
from tokenstore.store.order_file import add_order

BATCH = 64


@njit
def _starts(rows: np.ndarray, length: int, stores: np.ndarray, streams: np.ndarray, out: np.ndarray) -> None:
    for r in range(rows.shape[0]):
        stream = streams[rows[r, 0]]
        epoch = rows[r, 1] // stream[NUM_SEQUENCES]
        i = rows[r, 1] - epoch * stream[NUM_SEQUENCES]
        keys = np.uint64(stream[SEQUENCE_KEY]), np.uint64(stream[OFFSET_KEY])
        out[r] = window_start(epoch, i, stores[stream[STORE], NUM_TOKENS], length, keys[0], keys[1], True)


def _measure(sampler: Sampler, plan_rows: Callable[[np.ndarray], object], steps: int) -> str:
    """Time a sequence of locating the rows of a step and of planning them."""

    def work() -> None:
        for step in range(steps):
            plan_rows(sampler.locate(step, 0, BATCH))

    return f"{min(rounds({'ours': work}, 3)['ours']) / steps / BATCH * 1e9:.0f} ns"


def _concat(path: Path, length: int, steps: int) -> str:
    sampler = tokenstore.Plan.of(path, sequence_length=length, global_batch_size=BATCH, packing="concat").sampler()
    tables, out = sampler._tables, np.empty(BATCH, np.int64)
    return _measure(sampler, lambda rows: _starts(rows, length, tables.stores, tables.streams, out), steps)


def _best_fit(path: Path, length: int, steps: int) -> str:
    sampler = tokenstore.Plan.of(path, sequence_length=length, global_batch_size=BATCH).sampler()
    return _measure(sampler, sampler.lay, steps)


def run(folder: Path, smoke: bool) -> list[Row]:
    """Nanoseconds a sequence, for a large source and for one below 65,536 sequences, in batches of 64."""
    small = token_store(folder / "small", 9, 200_000 if smoke else 10_000_000)
    large = sparse_store(folder / "large", 20_000 if smoke else 10_000_000)
    add_order(large)
    steps = 20 if smoke else 1000
    cases = [
        ("concat, large source (many sequences)", _concat(small, 16, steps), "500 ns"),
        ("concat, small source (below 65,536)", _concat(small, 2048, steps), "500 ns"),
    ]
    for length, reach in ((2048, "1500 ns"), (4096, "2500 ns")):
        cases.append((f"best_fit, L = {length}, 12,000 documents", _best_fit(small, length, steps), reach))
        cases.append((f"best_fit, L = {length}, 10^7 documents", _best_fit(large, length, steps), reach))
    return [Row(f"planning a sequence, {name}", value, reach, "") for name, value, reach in cases]
