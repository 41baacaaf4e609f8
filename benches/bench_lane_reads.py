"""Claims: lanes fetch at most 1.1 bytes per byte used on 1 to 128 nodes, and are fast where requests are what is scarce.

The first rows are counted from plans, without a server: an epoch of every source, with ten blocks per lane; whole blocks, and
rows that are fetched by themselves because a stretch leaves few of a block. Rows that are dealt to a node that does not own their
lane come on top; they are counted beside, and in `nodes`. The last rows read from the server of `remote`, with 50 ms of latency
and a limit of 200 requests per second, in batches of 8 x 2048 with a step of 5 ms, so at most 3.3 million tokens per second. A
global order makes a request per sequence. LitData and MosaicML Streaming fetch whole shards and shuffle inside them.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benches.bench_remote import ask, served
from benches.remote_peers import BATCH, LENGTH, PEERS, STEP_SECONDS
from benches.scenes import Row, show, token_store
from tokenstore.batches.lane_rows import SHARE
from tokenstore.order.interleave import interleave
from tokenstore.order.keys import base_key
from tokenstore.order.lane_blocks import LaneBlocks
from tokenstore.order.lanes import Lanes
from tokenstore.order.node_groups import NodeGroups
from tokenstore.store import open_store

RATE = 200  # requests per second of the server
NODES = (1, 8, 32, 128)
CASES = (  # shares of the sources, lanes of each, sequences per step
    ((1,), (1024,), 1024),
    ((6, 3, 1), (1024, 1024, 512), 1024),
    ((6, 3, 1), (4096, 2048, 512), 4096),
)


def fetched(lanes: Lanes, number: int) -> tuple[int, int]:
    """Sequences that the blocks of an epoch of source `number` have together, and rows fetched by themselves."""
    blocks, rows = 0, 0
    for visit in LaneBlocks(lanes, base_key(0, "block", f"{number}")).visits(range(lanes.count), 0, lanes.num_windows):
        count = (visit.last - visit.first) // lanes.count + 1
        if count * SHARE >= visit.size:
            blocks += visit.size
        else:
            rows += count
    return blocks, rows


def moved(shares: tuple[int, ...], lanes: list[Lanes], size: int, nodes: int, steps: int) -> float:
    """Share of the rows of some steps that go to a node that does not own them."""
    groups, table, count = NodeGroups(lanes, nodes), interleave(shares), 0
    for step in range(steps):
        turns, slots = np.divmod(np.arange(step * size, (step + 1) * size), table.period)
        sources = table.source[slots].astype(np.int64)
        rows = np.stack([sources, turns * np.array(shares)[sources] + table.earlier[slots]], axis=1)
        count += int((groups.owners(rows)[groups.deal(rows)] != np.arange(nodes)[:, None]).sum())
    return count / (steps * size)


def _simulated(smoke: bool) -> list[Row]:
    rows = []
    for shares, counts, size in CASES:
        steps = 20 if smoke else 200
        block = 12 if smoke else 128
        lanes = [
            Lanes.of(int(10.37 * count * block), block, count) for count in counts
        ]  # stretches end anywhere in blocks
        found = [fetched(each, number) for number, each in enumerate(lanes)]
        # Per sequence of an epoch of each source, weighted by the shares
        whole, single = (
            sum(share * each[part] / its.num_windows for share, each, its in zip(shares, found, lanes, strict=True))
            / sum(shares)
            for part in (0, 1)
        )
        for nodes in NODES:
            away = moved(shares, lanes, size, nodes, steps)
            names = ", ".join(f"{count:,}" for count in counts)
            rows.append(
                Row(
                    f"bytes fetched per byte used on {nodes} node{'s' * (nodes > 1)}, shares {':'.join(map(str, shares))}, lanes {names}, batch {size:,}",
                    f"{whole + single:.3f}",
                    "<= 1.1",
                    f"in blocks {whole:.3f}, rows by themselves {single:.3f}; besides, {away:.1%} of rows on nodes that do not own"
                    f" their lane; {min(each.num_blocks / each.count for each in lanes):.1f} blocks per lane",
                )
            )
    return rows


def _claim(name: str) -> str:
    return f"an epoch at {RATE} requests per second by {name}"


def _throttled(folder: Path, smoke: bool) -> list[Row]:
    """Tokens per second of each loader, and requests."""
    root = folder / "root"
    root.mkdir()
    with open_store(token_store(root / "store", 9, 1 << (20 if smoke else 24))) as store:
        steps = store.num_tokens // LENGTH // BATCH
    rows, usable = [], []
    for name in ("tokenstore, blocks", "tokenstore, spans", "litdata", "mosaic"):
        if not all(find_spec(module.split(".")[0]) for module in PEERS[name].modules):
            rows.append(Row(_claim(name), "not installed", "", "benches/requirements-peers.txt"))
            continue
        try:
            ask(name, root, folder / "unused", "prepare", dict(os.environ))
            usable.append(name)
        except RuntimeError as error:
            rows.append(Row(_claim(name), "fails here", "", str(error)[:200]))
    with served(root, RATE) as server:
        for name in usable:
            claim, cache = _claim(name), folder / f"cache of {name}"
            cache.mkdir()
            try:
                if name.startswith("tokenstore"):
                    ask("tokenstore, spans", root, cache, 0, server.environment)  # caches the indexes
                server.count()
                found: dict[str, Any] = ask(name, root, cache, steps, server.environment)
            except RuntimeError as error:
                rows.append(Row(claim, "fails here", "", str(error)[:200]))
                continue
            requests, num_bytes = server.count()
            waited = found["first"] + sum(found["waits"])
            seconds = waited + STEP_SECONDS * found["batches"]
            tokens = found["batches"] * BATCH * LENGTH
            rows.append(
                Row(
                    claim,
                    f"{show(tokens / seconds, '')} tokens/s",
                    "5 times spans" if name == "tokenstore, blocks" else "",
                    f"{requests:,} requests, {num_bytes / tokens / 2:.3f} bytes fetched per byte used, first batch"
                    f" {found['first']:.2f} s; {waited:.2f} s of waiting for {found['batches']:,} batches",
                )
            )
    return rows


def run(folder: Path, smoke: bool) -> list[Row]:
    """Rows from plans, then a row per loader."""
    return _simulated(smoke) + _throttled(folder, smoke)
