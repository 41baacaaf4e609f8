"""Claims: the first batch comes at once and memory stays flat, whatever the size of the store and the step resumed at.

Four resources: CPU: loading compiled kernels; disk: a manifest, some pages; memory: a row a shard; network none.
Each figure is taken in a fresh process, after its imports, over a store of sparse files (real maps, no data on the disk).
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benches.scenes import Row, sparse_store
from tokenstore.store.order_file import add_order

_SCRIPT = """
import json, sys, time
import torch, tokenstore
from tokenstore import Plan, TokenLoader

def anonymous():
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Anonymous:"))

path, packing, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
before, start = anonymous(), time.perf_counter()
plan = Plan.of(path, sequence_length=2048, global_batch_size=8, packing=packing)
loader = iter(TokenLoader(plan, step=step))
next(loader)
first = time.perf_counter() - start
for _ in range(200):
    next(loader)
print(json.dumps([first, (anonymous() - before) / 1024]))
"""


def _measure(path: Path, packing: str, step: int, count: int) -> tuple[float, float]:
    """(seconds to the first batch, MB grown): medians over fresh processes."""
    results = []
    for _ in range(count):
        command = [sys.executable, "-c", _SCRIPT, str(path), packing, str(step)]
        results.append(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
    return median(r[0] for r in results), median(r[1] for r in results)


def run(folder: Path, smoke: bool, documents: int = 10**8) -> list[Row]:
    """First batch and memory, at step 0 and at step 10^7, over a small and a huge store, for both packings."""
    small = sparse_store(folder / "small", 10**4)
    huge = sparse_store(folder / "huge", 10**5 if smoke else documents)
    size = f"{10**5 if smoke else documents:,} documents"
    rows = []
    for path in (small, huge):
        add_order(path)
    for packing in ("concat", "best_fit"):
        _measure(small, packing, 0, 1)  # compile
        figures = {
            (path, step): _measure(path, packing, step, 1 if smoke else 3)
            for path in (small, huge)
            for step in (0, 10**7)
        }
        for step, name in ((0, "0"), (10**7, "10^7")):
            beside = f"{size}; 10,000 documents: {figures[small, step][0]:.2f} s"
            claim = f"first batch after imports, {packing}, step {name}"
            rows.append(Row(claim, f"{figures[huge, step][0]:.2f} s", "0.5 s", beside))
        beside = f"{size}; 10,000 documents: {figures[small, 0][1]:.0f} MB"
        claim = f"memory grown by opening and 200 batches, {packing}"
        rows.append(Row(claim, f"{figures[huge, 10**7][1]:.0f} MB", "32 MB", beside))
    return rows
