"""Claims: a fast first batch, and the same memory and time per step, for any size, number of sources and step.

Resources: CPU: loading compiled kernels. Disk: a manifest and some pages. Memory: a row per shard. Every figure is measured in a
new process. The time to the first batch is counted from after `import torch`, and includes our imports and the plan. The stores of
10^4 to 10^9 documents (10^13 tokens) are sparse files: maps, boundaries and order are real, but no tokens are on the disk. The
store of 10 GB has tokens.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage, rmtree
from statistics import median

from benches.limit import read_all
from benches.scenes import CannotRun, Row, ratio, rounds, show, sparse_store, token_store
from tokenstore.store import verify
from tokenstore.store.length_index import add_length_index

FAR = 10**7
_FIRST, _GROWN = "0.6 s, then 0.25", "32 MB, then 15"
_SIZES = {"10^4": (10**4, 1), "10^6": (10**6, 1), "10^8": (10**8, 1), "10^9, 10^13 tokens": (10**9, 10)}
_GB_NEEDED = 36  # boundaries, lookup and length index of the largest store

_SCRIPT = """
import json, os, random, sys, time
import torch

def anonymous():
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Anonymous:"))

def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start

paths, packing, step = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
all_before, start = anonymous(), time.perf_counter()
from tokenstore import Plan, TokenLoader
imports = time.perf_counter() - start
before, again = anonymous(), time.perf_counter()
plan = Plan.of(paths, sequence_length=2048, global_batch_size=8, packing=packing)
loader = iter(TokenLoader(plan, step=step))
next(loader)
first = imports + time.perf_counter() - again
for _ in range(200):
    next(loader)
grown, with_imports = (anonymous() - before) / 1024, (anonymous() - all_before) / 1024
steps = random.Random(0).sample(range(10**7), 40)
jumps = sorted(timed(lambda: plan.batch(step)) for step in steps)
in_turn = sorted(timed(lambda: next(loader)) for _ in range(1000))
maps, files = len(open("/proc/self/maps").readlines()), len(os.listdir("/proc/self/fd"))
figures = {"first": first, "jump": jumps[20], "batch": in_turn[500]}
print(json.dumps({**figures, "grown": grown, "with_imports": with_imports, "maps": maps, "files": files}))
"""

Figures = dict[str, float]


def measure(paths: dict[str, str], packing: str, step: int, count: int) -> Figures:
    """Medians over `count` new processes. One more runs first, to bring the files into memory.

    Seconds to the first batch, for a distant step and for the next step; growth in MB; numbers of maps and open files.
    """
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, json.dumps(paths), packing, str(step)]
    found = [
        json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(count + 1)
    ][1:]
    return {name: median(each[name] for each in found) for name in found[0]}


def run(folder: Path, smoke: bool) -> list[Row]:
    """Sparse stores of every size, a thousand sources, and a store of 10 GB."""
    if not smoke and disk_usage(folder).free < _GB_NEEDED << 30:
        free = disk_usage(folder).free >> 30
        raise CannotRun(f"expected {_GB_NEEDED} GB of free space in {folder.parent}, found {free} GB; set TMPDIR")
    sizes = {"10^3": (10**3, 1), "10^4": (10**4, 1)} if smoke else _SIZES
    stores = {name: sparse_store(folder / f"{number}", *size) for number, (name, size) in enumerate(sizes.items())}
    for path in stores.values():
        add_length_index(path)
    rows = []
    for packing in ("concat", "best_fit"):
        rows += _sizes(stores, packing, 1 if smoke else 3)
    for path in stores.values():
        rmtree(path)
    rows += _sources(folder / "sources", 20 if smoke else 1000, 1 if smoke else 3)
    return rows + _real(folder / "real", 10**6 if smoke else 5 * 10**9)


def _sizes(stores: dict[str, Path], packing: str, count: int) -> list[Row]:
    """Times and memory of a rank, by the size of its store."""
    measure({"a": str(next(iter(stores.values())))}, packing, 0, 1)  # compile
    near, far = (
        {name: measure({"a": str(path)}, packing, step, count) for name, path in stores.items()} for step in (0, FAR)
    )
    largest = list(stores)[-1]

    def row(claim: str, figures: dict[str, Figures], key: str, unit: str, scale: float, reach: str) -> Row:
        values = {name: figures[name][key] * scale for name in stores}
        beside = f"awkward, which extends numba, is {'' if find_spec('awkward') else 'not '}installed"
        return Row(f"{claim}, {packing}, {largest}", show(values[largest], unit), reach, beside, values, unit)

    return [
        row("first batch after import torch, step 0", near, "first", "s", 1, _FIRST),
        row("first batch after import torch, step 10^7", far, "first", "s", 1, _FIRST),
        row("memory grown after imports by opening and 200 batches", far, "grown", "MB", 1, _GROWN),
        row("the same, imports included", far, "with_imports", "MB", 1, ""),
        row("a step in turn", far, "batch", "us", 1e6, "flat"),
        row("a step far away, new to the process", far, "jump", "us", 1e6, "flat"),
    ]


def _sources(folder: Path, number: int, count: int) -> list[Row]:
    """A mixture of many sources, each with its own store, compared with one source."""
    paths = {f"s{i:04d}": str(sparse_store(folder / f"{i}", 1000)) for i in range(number)}
    for path in paths.values():
        add_length_index(Path(path))
    rows = []
    for packing in ("concat", "best_fit"):
        many, one = (measure(some, packing, FAR, count) for some in (paths, {"s0000": paths["s0000"]}))
        for key, what, unit, scale, reach in (
            ("first", "first batch after import torch", "s", 1.0, "1 s"),
            ("grown", "memory grown after imports", "MB", 1.0, "64 MB"),
            ("batch", "a step in turn", "us", 1e6, ""),
            ("maps", "maps of the process", "", 1.0, ""),
            ("files", "open files", "", 1.0, ""),
        ):
            beside = f"one source: {show(one[key] * scale, unit)}"
            rows.append(Row(f"{number:,} sources, {packing}: {what}", show(many[key] * scale, unit), reach, beside))
    return rows


def _real(path: Path, num_tokens: int) -> list[Row]:
    """A store with tokens on the disk: first batch, random steps, and `verify` relative to reading its files."""
    token_store(path, 1, num_tokens)
    size = sum(file.stat().st_size for file in path.iterdir()) / 1e9
    found = measure({"a": str(path)}, "concat", FAR, 1)
    times = rounds({"read": lambda: read_all(path), "verify": lambda: verify(path)}, 1 if num_tokens > 10**8 else 2)
    speed = size / median(times["verify"])
    return [
        Row(f"a store of {size:.1f} GB: first batch, step 10^7", f"{found['first']:.2f} s", _FIRST, ""),
        Row("the same: a step far away, new to the process", f"{found['jump'] * 1e6:.0f} us", "", ""),
        Row(
            "the same: verify, as a share of reading its files",
            ratio(times["read"], times["verify"]),
            "",
            f"{speed:.2f} GB/s",
        ),
    ]
