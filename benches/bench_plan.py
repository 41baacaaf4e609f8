"""Claim: planning a sequence (which source, which window) costs a fraction of a microsecond.

Four resources: CPU only. Interleave, permutation inside the step, permutation of the source, offset; no tokens are read.
"""

from pathlib import Path

import numpy as np
from numba import njit

import tokenstore
from benches.scenes import Row, rounds, token_store
from tokenstore.order.windows import window_start
from tokenstore.sampling.tables import NUM_SEQUENCES, NUM_TOKENS, OFFSET_KEY, SEQUENCE_KEY

BATCH = 64


@njit
def _starts(rows: np.ndarray, length: int, sources: np.ndarray, out: np.ndarray) -> None:
    for r in range(rows.shape[0]):
        source = sources[rows[r, 0]]
        epoch = rows[r, 1] // source[NUM_SEQUENCES]
        i = rows[r, 1] - epoch * source[NUM_SEQUENCES]
        keys = np.uint64(source[SEQUENCE_KEY]), np.uint64(source[OFFSET_KEY])
        out[r] = window_start(epoch, i, source[NUM_TOKENS], length, keys[0], keys[1], True)


def run(folder: Path, smoke: bool) -> list[Row]:
    """Nanoseconds a sequence, for a large source and for one below 65,536 sequences, in batches of 64."""
    path = token_store(folder / "plan", 9, 200_000 if smoke else 10_000_000)
    rows = []
    for name, length in (("large source (many sequences)", 16), ("small source (below 65,536)", 2048)):
        plan = tokenstore.Plan.of(path, sequence_length=length, global_batch_size=BATCH)
        sampler, steps = plan.sampler(), 50 if smoke else 3000
        out = np.empty(BATCH, np.int64)

        def work(sampler=sampler, steps=steps, length=length, out=out) -> None:
            for step in range(steps):
                _starts(sampler.locate(step, 0, BATCH), length, sampler._tables.sources, out)

        times = rounds({"ours": work}, 3)["ours"]
        value = f"{min(times) / steps / BATCH * 1e9:.0f} ns"
        rows.append(Row(f"planning a sequence, concat, {name}", value, "500 ns", ""))
    return rows
