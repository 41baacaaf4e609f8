"""Claim: making a batch takes little longer than widening its tokens.

Resources: CPU: one core. Memory: reads 2 bytes per token at random places, writes 8 per token and field. Disk: none (warm cache).
The work is 8 x 2048 tokens as int64, shuffled, from 3 sources with weights .6, .3 and .1. The limit is `limit.py`, which makes
tokens and targets in order. The peers are hand-written memmap loaders that make a whole batch at once, with the same fields.

Each loader is a separate process, and all are measured in turn, so that a round sees the same machine. Figures are medians over
rounds. A turn is 600 batches, and begins with cold caches. Throughput is measured in processor time of all threads, which depends
less on other work on the machine; waits are measured in elapsed time. With `--against COMMIT`, the loaders of that commit are
measured in the same rounds.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benches.contenders import BATCH, LENGTH, OURS
from benches.limit import Limit
from benches.scenes import VOCABULARY, CannotRun, Row, ratio

ROOT = Path(__file__).parents[1]
TARGETS = {"concat": "0.45", "best_fit": "0.32", "hf": "0.28", "all fields": "0.20"}
HANDS = {
    "concat": "by hand: plain",
    "best_fit": "by hand: plain",
    "hf": "by hand: hf",
    "all fields": "by hand: all fields",
}
STEP_SECONDS = 0.005


class Contender:
    """A loader in a separate process; see `contenders`."""

    def __init__(self, tree: Path, kind: str, folder: Path, num_tokens: int):
        words = [sys.executable, str(ROOT / "benches/contenders.py"), str(tree), kind, str(folder), str(num_tokens)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=tree)
        if self._process.stdout.readline().strip() != "ready":
            raise CannotRun(f"{kind} of {tree}: the loader's process ended at its start; see its error above")

    def ask(self, *words: object) -> object:
        """Send a request, and return the answer."""
        print(*words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate("quit\n")


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """A temporary worktree of another commit."""
    tree = folder / "against"
    subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, check=True, capture_output=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True, capture_output=True)


def run(folder: Path, smoke: bool, against: str | None = None) -> list[Row]:
    """Throughput as a share of the limit, waits, and the cost of a page fault."""
    tokens, batches, count = (300_000, 6, 2) if smoke else (66_000_000, 600, 9)
    trees = {"": ROOT}
    with ExitStack() as stack:
        if against:
            trees[against] = stack.enter_context(checkout(against, folder))
        kinds = [("", kind) for kind in ("fixed", *dict.fromkeys(HANDS.values()))]
        kinds += [(name, f"ours: {kind}") for name in trees for kind in OURS]
        asked: dict[tuple[str, str], Contender] = {}
        for name, kind in kinds:
            place = folder / f"stores-{name}"
            place.mkdir(exist_ok=True)
            asked[name, kind] = Contender(trees[name], kind, place, tokens)
            stack.callback(asked[name, kind].close)
        times, in_a_row = _throughput(asked, batches, count)
        waits = {
            key: [1e6 * wait for wait in each.ask("wait", batches // 2, STEP_SECONDS)] for key, each in asked.items()
        }
        rows = [row for name in trees for row in _rows(name, times, in_a_row, waits)]
        return rows + [_fault_row(name, asked[name, "ours: concat"], 300 if not smoke else 20, count) for name in trees]


Times = dict[tuple[str, str], list[float]]  # of each loader, seconds per batch or of each wait


def _throughput(asked: dict[tuple[str, str], Contender], batches: int, count: int) -> tuple[Times, Times]:
    """Seconds per batch of the limit and of every loader, measured in turn: at the beginning of each turn, and after it.

    A turn begins with cold caches, as the other loaders ran in between.
    """
    limit = Limit()
    source = np.random.default_rng(0).integers(0, VOCABULARY, batches * BATCH * LENGTH + 1).astype(np.uint16)
    ids, targets = np.empty((2, BATCH * LENGTH), np.int64)
    times: Times = {key: [] for key in (("", "limit"), *asked)}
    in_a_row: Times = {key: [] for key in asked}
    for turn in range(count + 3):  # the first three rounds touch the pages of the stores
        for key, taken in times.items():
            if key == ("", "limit"):
                start = time.process_time()
                limit.run(source, batches, ids, targets)
                spent = time.process_time() - start
            else:
                spent = float(asked[key].ask("take", batches))
                if turn >= 3:
                    in_a_row[key].append(float(asked[key].ask("take", batches)) / batches)
            if turn >= 3:
                taken.append(spent / batches)
    return times, in_a_row


def _rows(name: str, times: Times, in_a_row: Times, waits: Times) -> list[Row]:
    """The rows of one tree."""
    suffix = f", {name}" if name else ""
    limit, rows = times["", "limit"], []
    for kind, reach in TARGETS.items():
        ours, hand = times[name, f"ours: {kind}"], times["", HANDS[kind]]
        later = in_a_row[name, f"ours: {kind}"]
        beside = (
            f"{1e6 * median(ours):.1f} us a batch; {ratio(hand, ours)} times a hand-written loader of these fields; after"
            f" the first batches of a turn {1e6 * median(later):.1f} us, share {ratio(limit, later)}"
        )
        rows.append(Row(f"warm throughput, {kind}, share of the limit{suffix}", ratio(limit, ours), reach, beside))
    masked = ratio(times[name, "ours: best_fit"], times[name, "ours: masked"])
    rows.append(Row(f"with loss masks, relative to without{suffix}", masked, "0.8", ""))
    nothing, by_hand = waits["", "fixed"], waits["", HANDS["concat"]]
    for kind in ("concat", "best_fit", "concat, prefetch=2", "best_fit, prefetch=2"):
        mine = waits[name, f"ours: {kind}"]
        above = np.percentile(mine, 99) - np.percentile(nothing, 99)
        beside = (
            f"p99 {above:.0f} us above that of one fixed batch (at most 150); a hand-written loader: p50"
            f" {median(by_hand):.0f} us, p99 {np.percentile(by_hand, 99):.0f} us"
        )
        rows.append(Row(f"wait with a 5 ms step, {kind}{suffix}", f"{median(mine):.0f} us", "60 us", beside))
    return rows


def _fault_row(name: str, one: Contender, batches: int, count: int) -> Row:
    """The time of batches with a reclaimed page among them, relative to the same number without."""
    ratios, faults = [], 0
    for _ in range(count):
        plain = float(one.ask("take", batches))
        spent, seen = one.ask("faults", batches)
        ratios.append(spent / plain)
        faults += seen
    claim = f"{batches} batches with a major fault, relative to none{f', {name}' if name else ''}"
    return Row(claim, f"{median(ratios):.2f}", "1.10", f"{faults} faults in {count} rounds")
