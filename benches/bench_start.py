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

_SCRIPT = """
import json, sys, time
import torch, tokenstore
from tokenstore import Plan, TokenLoader

def anonymous():
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Anonymous:"))

path, step = sys.argv[1], int(sys.argv[2])
before, start = anonymous(), time.perf_counter()
plan = Plan.of(path, sequence_length=2048, global_batch_size=8)
loader = iter(TokenLoader(plan, step=step))
next(loader)
first = time.perf_counter() - start
for _ in range(200):
    next(loader)
print(json.dumps([first, (anonymous() - before) / 1024]))
"""


def _measure(path: Path, step: int, count: int) -> tuple[float, float]:
    """(seconds to the first batch, MB grown): medians over fresh processes."""
    results = []
    for _ in range(count):
        command = [sys.executable, "-c", _SCRIPT, str(path), str(step)]
        results.append(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
    return median(r[0] for r in results), median(r[1] for r in results)


def run(folder: Path, smoke: bool, documents: int = 10**8) -> list[Row]:
    """First batch and memory, at step 0 and at step 10^7, over a small and a huge store."""
    small = sparse_store(folder / "small", 10**4)
    huge = sparse_store(folder / "huge", 10**5 if smoke else documents)
    count = 1 if smoke else 3
    _measure(small, 0, 1)  # compile
    figures = {
        (name, step): _measure(path, step, count)
        for name, path in (("small", small), ("huge", huge))
        for step in (0, 10**7)
    }
    shown = {key: f"{first:.2f} s" for key, (first, _) in figures.items()}
    size = f"{10**5 if smoke else documents:,} documents"
    memory = {key: f"{grown:.0f} MB" for key, (_, grown) in figures.items()}
    return [
        Row(
            "first batch after imports, step 0",
            shown["huge", 0],
            "0.5 s",
            f"{size}; 10,000 documents: {shown['small', 0]}",
        ),
        Row(
            "first batch after imports, step 10^7",
            shown["huge", 10**7],
            "0.5 s",
            f"10,000 documents: {shown['small', 10**7]}",
        ),
        Row(
            "memory grown by opening and 200 batches",
            memory["huge", 10**7],
            "32 MB",
            f"{size}; 10,000 documents: {memory['small', 0]}",
        ),
    ]
