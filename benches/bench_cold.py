"""Claim: a cold store causes short waits, because the pages of the next batches are prefetched.

Resources: disk: two or three pages per row at random places. CPU: next to none. Memory: the pages of 8 rows per batch ahead.
The work is 8 x 2048 tokens of one store, whose pages are dropped from memory before every process. The limit is the same number
of random reads of 8 KB, prefetched 64 ahead. Only clean pages that no process maps can be dropped, so all loaders run in child
processes.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benches.scenes import Row, ratio, token_store

_SCRIPT = """
import json, resource, sys, time
from tokenstore import Plan, TokenLoader

small, large, packing, readahead, prefetch, batches, sleep = sys.argv[1:]
for _ in zip(range(3), TokenLoader(Plan.of(small, 2048, 8, packing=packing), readahead=1), strict=False):
    pass  # import and compile everything
plan = Plan.of(large, 2048, 8, packing=packing)
reads = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
start = time.perf_counter()
loader = iter(TokenLoader(plan, readahead=int(readahead), prefetch=int(prefetch)))
next(loader)
first, waits = time.perf_counter() - start, []
for _ in range(int(batches)):
    time.sleep(float(sleep))
    start = time.perf_counter()
    next(loader)
    waits.append(time.perf_counter() - start)
read = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - reads) * 512
print(json.dumps([first, waits, read]))
"""
WAYS = {"as the system reads": (0, 0), "readahead=4": (4, 0), "prefetch=2": (0, 2), "readahead=4, prefetch=2": (4, 2)}


def drop(path: Path) -> None:
    """Drop the pages of a store's files from the page cache."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def disk_rates(path: Path, reads: int) -> tuple[float, float]:
    """(seconds per random read of 8 KB, bytes per second in order), of a file whose pages were dropped."""
    file = path / "tokens-00000.bin"
    descriptor, size = os.open(file, os.O_RDONLY), file.stat().st_size
    places = (np.random.default_rng(3).integers(0, size // 4096 - 2, reads) * 4096).tolist()
    drop(path)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    start = time.perf_counter()
    for i, place in enumerate(places):
        if i + 64 < reads:
            os.posix_fadvise(descriptor, places[i + 64], 8192, os.POSIX_FADV_WILLNEED)
        os.pread(descriptor, 8192, place)
    random = (time.perf_counter() - start) / reads
    drop(path)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    start, at = time.perf_counter(), 0
    while at < min(size, 1 << 29):
        at += len(os.pread(descriptor, 1 << 20, at))
    in_order = at / (time.perf_counter() - start)
    os.close(descriptor)
    return random, in_order


def _measure(stores: tuple[Path, Path], packing: str, way: str, batches: int, sleep: float) -> tuple[float, list, int]:
    drop(stores[1])
    words = (*stores, packing, *WAYS[way], batches, sleep)
    done = subprocess.run([sys.executable, "-c", _SCRIPT, *map(str, words)], capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


def run(folder: Path, smoke: bool) -> list[Row]:
    """A cold pass at full speed, and one with steps of 5 ms."""
    tokens, batches, count = (3_000_000, 20, 1) if smoke else (1_000_000_000, 600, 3)
    stores = token_store(folder / "small", 6, 300_000), token_store(folder / "large", 7, tokens)
    rows = []
    for packing in ("best_fit",) if smoke else ("concat", "best_fit"):
        figures: dict[tuple[str, float], list] = {(way, sleep): [] for way in WAYS for sleep in (0, 0.005)}
        disk = []
        for _ in range(count):
            disk.append(disk_rates(stores[1], 8 * batches))
            for way, sleep in figures:
                figures[way, sleep].append(
                    _measure(stores, packing, way, batches if not sleep else batches // 2, sleep)
                )
        for way in WAYS:
            rows.append(_row(packing, way, figures, disk))
    return rows


def _row(packing: str, way: str, figures: dict[tuple[str, float], list], disk: list[tuple[float, float]]) -> Row:
    noop, steps = figures[way, 0], figures[way, 0.005]
    means = [np.mean(waits) for _, waits, _ in noop]
    plain = [np.mean(waits) for _, waits, _ in figures["as the system reads", 0]]
    after_steps = [1e6 * wait for _, waits, _ in steps for wait in waits]
    beside = (
        f"share of the disk's random rate {ratio([8 * random for random, _ in disk], means)}"
        f" (it reads in order at {median(rate for _, rate in disk) / 1e6:.0f} MB/s);"
        f" {ratio(plain, means)} times as fast as the system reads; first batch {1e3 * median(n[0] for n in noop):.0f} ms;"
        f" {median(n[2] for n in noop) / 1e6:.0f} MB read; wait with a 5 ms step: median {median(after_steps):.0f} us,"
        f" mean {np.mean(after_steps):.0f}, p99 {np.percentile(after_steps, 99):.0f}"
    )
    batches = len(noop[0][1])
    return Row(f"cold, first {batches} batches, {packing}, {way}", f"{1e6 * median(means):.0f} us a batch", "", beside)
