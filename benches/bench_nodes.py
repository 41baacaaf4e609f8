"""Claims: few rows of a step leave the node that owns their lane, and dealing a step of 1,024 rows takes far less than 1 ms.

With `nodes=R` each node gets the rows of its own lanes, so that nodes read different blocks. All get equally many rows, so some
rows are read on a node that does not have their block; they are fetched by themselves. How many depends on the shares, the lanes
and the rows per node. The steps are a fixed sample of a run from step 0 on, over an epoch or more of each source. Nothing is
read for them, and they are the same in every run. The last rows measure one process: CPU time, with the plan of 2**20 sequences.
"""

from pathlib import Path
from statistics import median

import numpy as np

import tokenstore
from benches.scenes import Row, batch_microseconds, seconds, sparse_store
from tokenstore.order.interleave import interleave
from tokenstore.order.lanes import Lanes
from tokenstore.order.node_groups import NodeGroups

SEQUENCES, BLOCK = 300_077, 128  # of a source in an epoch, and per block
NODES = (8, 32, 128)
CASES = (  # shares of the sources, lanes of each, sequences per step, and percent in the simulation, on 8, 32 and 128 nodes
    ((1,), (1024,), 1024, (0, 0, 0)),
    ((1,), (4096,), 1024, None),
    ((6, 3, 1), (1024, 1024, 512), 1024, (0.8, 4.3, 18)),
    ((6, 3, 1), (4096, 2048, 512), 4096, (None, None, 2.1)),
    ((1,) * 20, (256,) * 20, 1024, (0.3, 0.6, 5.7)),
    ((1,) * 3, (1024,) * 3, 1024, None),
)


def moved(shares: tuple[int, ...], lanes: tuple[int, ...], size: int, nodes: int, steps: list[int]) -> float:
    """Percent of rows that go to a node that does not own them."""
    groups = NodeGroups([Lanes.of(SEQUENCES, BLOCK, count) for count in lanes], nodes)
    table, count = interleave(shares), 0
    for step in steps:
        turns, slots = np.divmod(np.arange(step * size, (step + 1) * size), table.period)
        sources = table.source[slots].astype(np.int64)
        rows = np.stack([sources, turns * np.array(shares)[sources] + table.earlier[slots]], axis=1)
        count += int((groups.owners(rows)[groups.deal(rows)] != np.arange(nodes)[:, np.newaxis]).sum())
    return 100 * count / (size * len(steps))


def _moved(shares: tuple[int, ...], lanes: tuple[int, ...], size: int, simulated: tuple | None, smoke: bool) -> Row:
    epoch = SEQUENCES * sum(shares) // size
    steps = (
        np.random.default_rng(0).integers(0, epoch, 20 if smoke else 500).tolist()
    )  # a stride could be in step with lanes
    found = {f"{nodes} nodes": round(moved(shares, lanes, size, nodes, steps), 1) for nodes in NODES}
    names = f"{len(shares)} sources" if len(shares) > 1 else "1 source"
    equal = f"shares {':'.join(map(str, shares))}, " if len(set(shares)) > 1 else ""
    width = "/".join(f"{count:,}" for count in dict.fromkeys(lanes))
    claim = f"{names}, {equal}W = {width}, {size:,} rows per step: rows that leave their node, 8 / 32 / 128 nodes"
    reach = "" if simulated is None else " / ".join("-" if each is None else f"{each:g} %" for each in simulated)
    return Row(claim, " / ".join(f"{each:g} %" for each in found.values()), reach, f"{len(steps)} steps", found, "%")


def _dealing(plan: tokenstore.Plan, smoke: bool) -> Row:
    """Milliseconds to deal a step, and to locate its rows."""
    sampler = plan.sampler()
    dealer, steps = plan.dealer(sampler), range(1, 20 if smoke else 400)
    dealer.dealt(0, 8)
    times = [1e3 * seconds(lambda k=step: dealer.dealt(k, 8)) for step in steps]
    located = [1e3 * seconds(lambda k=step: sampler.locate(k, 0, 1024)) for step in steps]
    beside = f"p90 {np.quantile(times, 0.9):.2f} ms; of this, locating all rows takes {median(located):.2f} ms"
    return Row("dealing a step of 1,024 rows to 8 nodes", f"{median(times):.2f} ms", "1 ms", beside)


def _batches(plan: tokenstore.Plan, smoke: bool) -> Row:
    """CPU time of a batch, with its share of the dealing of its step."""
    options: dict[str, int] = {"rank": 0, "world_size": 8, "microbatch_size": 8}
    loaders = {str(nodes): tokenstore.TokenLoader(plan, nodes=nodes, **options) for nodes in (1, 8)}
    times = batch_microseconds(loaders, smoke)
    claim = "CPU of a batch of 8 x 2,048 on 8 ranks, 8 nodes"
    return Row(claim, f"{times['8']:.0f} us", "", f"1 node {times['1']:.0f} us; 16 batches per step")


def run(folder: Path, smoke: bool) -> list[Row]:
    """How many rows leave their node, and what dealing costs."""
    rows = [_moved(*case, smoke=smoke) for case in CASES]
    store = str(sparse_store(folder / "web", 10_000 if smoke else 2_000_000))
    local = {"block_sequences": BLOCK, "lanes": 1024}
    source: tokenstore.planning.source_config.SourceFields = {"path": store, "weight": 1, "locality": local}
    config = tokenstore.PlanConfig(
        sequence_length=2048, global_batch_size=1024, packing="concat", sources={"web": source}
    )
    plan = tokenstore.Plan(config)
    return [*rows, _dealing(plan, smoke), _batches(plan, smoke)]
