"""Claim: planning a sequence (which source, which window or documents) takes about a microsecond.

Resources: CPU. Memory: reads of boundaries, and for best_fit of the length index, at random places. Planning covers everything up
to the addresses of tokens: the interleave, the permutations of the step and of the source, and the documents with their
boundaries; for `concat` also the offset, with lanes also the block, for `best_fit` the bin and its slots. No tokens are read.
"""

from pathlib import Path

import tokenstore
from benches.scenes import Row, rounds, sparse_store, token_store
from tokenstore.planning.source_config import SourceFields
from tokenstore.store.length_index import add_length_index

BATCH = 64


def _measure(path: Path, length: int, steps: int, packing: str = "best_fit", block: int = 0) -> str:
    """Time per sequence to locate the rows of a step and to plan them. block: sequences per block of a locality; 0: none."""
    source: SourceFields = {"path": str(path)}
    if block:
        source["locality"] = {"block_sequences": block, "lanes": BATCH}
    config = tokenstore.PlanConfig(
        sequence_length=length, global_batch_size=BATCH, packing=packing, sources={"web": source}
    )
    sampler = tokenstore.Plan(config).sampler()

    def work() -> None:
        for step in range(steps):
            sampler.plan(sampler.locate(step, 0, BATCH))

    return f"{min(rounds({'ours': work}, 9)['ours']) / steps / BATCH * 1e9:.0f} ns"


def run(folder: Path, smoke: bool) -> list[Row]:
    """Nanoseconds per sequence, in batches of 64, for a large source and for one with fewer than 65,536 sequences."""
    small = token_store(folder / "small", 9, 200_000 if smoke else 10_000_000)
    large = sparse_store(folder / "large", 20_000 if smoke else 10_000_000)
    add_length_index(large)
    steps = 20 if smoke else 1000
    cases = [
        ("concat, large source (many sequences)", _measure(small, 16, steps, "concat"), "500 ns"),
        ("concat, small source (below 65,536)", _measure(small, 2048, steps, "concat"), "500 ns"),
        ("concat with lanes, large source", _measure(small, 16, steps, "concat", 256), "1000 ns"),
        ("concat with lanes, small source", _measure(small, 2048, steps, "concat", 16), "1000 ns"),
    ]
    for length, reach in ((2048, "1500 ns"), (4096, "2500 ns")):
        cases.append((f"best_fit, L = {length}, 12,000 documents", _measure(small, length, steps), reach))
        cases.append((f"best_fit, L = {length}, 10^7 documents", _measure(large, length, steps), reach))
    return [Row(f"planning a sequence, {name}", value, reach, "") for name, value, reach in cases]
