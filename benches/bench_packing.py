"""Claims: packing an epoch takes milliseconds for any number of documents, with little padding and new neighbors every epoch.

Resources: CPU. Memory: 64 bytes per group of equal bins. Disk: none. Document lengths are web-like, with seed 7. Every rank packs
every epoch itself and writes nothing. The builder writes the length index once.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from benches.scenes import Row, rounds, seconds, sparse_store, web_lengths
from tokenstore.order.classes import length_classes
from tokenstore.order.inverse import BinIndex
from tokenstore.order.keys import base_key
from tokenstore.order.packing import Packing, num_best_fit, pack
from tokenstore.order.repeats import Member
from tokenstore.store.length_index import add_length_index

JITTER = base_key(0, "jitter", "web")


def by_length(lengths: np.ndarray, times: int = 1) -> Member:
    """The documents by length, as a Member, with each document counted `times` times."""
    tokens, counts = np.unique(lengths, return_counts=True)
    ends = np.cumsum(counts * times)
    return Member(tokens, ends - counts * times, int(ends[-1]))


def _plans(documents: int, lengths: list[int], reach: dict[int, str], smoke: bool) -> list[Row]:
    """Time and padding of a packing, for `documents` documents and for a thousand times as many."""
    sample = web_lengths(7, documents)
    rows = []
    for length in lengths:
        made = {}
        for times in (1, 1000):
            member = by_length(sample, times)
            classes = length_classes([member], length)
            count = num_best_fit(classes)
            opened = min(rounds({"open": lambda m=member, n=length: num_best_fit(length_classes([m], n))}, 3)["open"])
            epochs = iter(range(100))
            work = {"pack": lambda c=classes, n=count, e=epochs: pack(c, n, JITTER, next(e), True)}
            took = np.median(rounds(work, 2 if smoke else 9)["pack"])
            made[times] = (took, opened, 100 * (1 - classes.num_tokens / (count * length)))
        value = f"{made[1][0] * 1e3:.0f} / {made[1000][0] * 1e3:.0f} ms"
        beside = f"padding {made[1][2]:.3f} %; classes and N at opening {made[1][1] * 1e3:.1f} ms"
        rows.append(
            Row(f"packing an epoch, L = {length}, {documents:,} documents / 1000 x", value, reach[length], beside)
        )
    return rows


def _pairs(packing: Packing, counts: np.ndarray, epoch: int) -> np.ndarray:
    """All pairs of pieces in the same bin, encoded as one number each. Documents are assigned to slots at random."""
    index, rng = BinIndex(packing), np.random.default_rng(epoch)
    lengths = np.repeat(np.arange(counts.size), counts)
    first = np.cumsum(counts) - counts
    bins = np.array([index.bin_of(v, s) for v in np.flatnonzero(counts).tolist() for s in range(counts[v])])
    pieces = np.concatenate([first[v] + rng.permutation(counts[v]) for v in np.flatnonzero(counts)])
    pieces = pieces[np.argsort(bins, kind="stable")]
    sizes = np.bincount(bins)
    pairs = []
    for size in np.unique(sizes[sizes > 1]):
        starts = (np.cumsum(sizes) - sizes)[sizes == size]
        rows = np.sort(pieces[starts[:, None] + np.arange(size)], axis=1)
        a, b = np.triu_indices(size, 1)
        pairs.append((rows[:, a] * lengths.size + rows[:, b]).ravel())
    return np.unique(np.concatenate(pairs))


def _again(documents: int, length: int) -> Row:
    """Share of the pairs of an epoch that share a bin in the next epoch too."""
    rng = np.random.default_rng(21)
    member = by_length(np.clip(rng.lognormal(6.55, 0.8, documents), 16, 8192).astype(np.int64))
    classes = length_classes([member], length)
    count = num_best_fit(classes)
    epochs = [_pairs(pack(classes, count, JITTER, epoch, True), classes.counts, epoch) for epoch in range(3)]
    again = [np.isin(a, b).mean() for a, b in pairwise(epochs)]
    chance = 2 * epochs[0].size / classes.num_pieces / (classes.num_pieces - 1)
    padding = 100 * (1 - classes.num_tokens / (count * length))
    claim = f"pairs that meet again next epoch, {documents:,} fine-tuning documents, L = {length}"
    return Row(
        claim, f"{100 * np.mean(again):.3f} %", "0.2 %", f"by chance {100 * chance:.3f} %; padding {padding:.2f} %"
    )


def run(folder: Path, smoke: bool) -> list[Row]:
    """Packing, padding, repeated pairs, and the length index."""
    reach = {2048: "20 ms", 4096: "20 ms", 8192: "20 ms", 32768: "40 ms"}
    lengths = [2048] if smoke else list(reach)
    rows = _plans(10_000 if smoke else 1_000_000, lengths, reach, smoke)
    rows.append(_again(1000 if smoke else 10_000, 4096))
    add_length_index(sparse_store(folder / "warm", 1000))  # compile
    documents = 100_000 if smoke else 20_000_000
    path = sparse_store(folder / "order", documents)
    took = seconds(lambda: add_length_index(path))
    claim = f"length index, {documents:,} documents, written and synced"
    rows.append(Row(claim, f"{took / documents * 1e9:.0f} ns a document", "60 ns", ""))
    return rows
