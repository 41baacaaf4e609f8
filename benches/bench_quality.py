"""Claim: the shuffle is statistically indistinguishable from a random one: places, neighbors, epochs, seeds, sources.

No time is measured. Each test counts pairs of values in a table that a random shuffle fills evenly, over orders with the keys that
plans use. Its p-value is the probability that a random shuffle is at least as uneven (Pearson's chi-square, with the approximation
of Wilson and Hilferty, 1931). The smallest of n p-values should be above 0.05 / n. Keys are fixed, and so are the results.
"""

from collections.abc import Callable, Iterator
from math import erfc, sqrt
from pathlib import Path

import numpy as np

from benches.scenes import Row
from tokenstore.order.keys import base_key, counted_key
from tokenstore.order.permutation import permute_run

SMALL, LARGE = 1000, 200_000  # below 65,536, another permutation is used
_BINS = 20


def order(seed: int, name: str, epoch: int, size: int) -> np.ndarray:
    """int64[size]: the sequences of a source in the order of an epoch."""
    out = np.empty(size, np.int64)
    permute_run(0, size, np.uint64(counted_key(base_key(seed, "sequence", name), epoch)), out)
    return out


def chance(counts: np.ndarray) -> float:
    """p-value: probability that a random table with the same margins is at least as uneven as `counts`."""
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    share = 2 / (9 * freedom)
    return erfc(((chi_square / freedom) ** (1 / 3) - (1 - share)) / sqrt(share) / sqrt(2)) / 2


def _together(first: np.ndarray, second: np.ndarray, size: int) -> np.ndarray:
    """int64[bins, bins]: joint histogram of two arrays of values below `size`."""
    pairs = first * _BINS // size * _BINS + second * _BINS // size
    return np.bincount(pairs, minlength=_BINS * _BINS).reshape(_BINS, _BINS)


def _places(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences, and their places in an epoch."""
    return np.arange(size), order(seed, "web", seed % 7, size)


def _neighbours(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of an epoch, and the one after each."""
    found = order(seed, "web", seed % 7, size)
    return found[:-1], found[1:]


def _epochs(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences at the same places of two successive epochs."""
    return order(seed, "web", seed % 7, size), order(seed, "web", seed % 7 + 1, size)


def _seeds(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences at the same places with two successive seeds."""
    return order(seed, "web", 0, size), order(seed + 1, "web", 0, size)


def _sources(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences at the same places of two sources of the same size."""
    return order(seed, "web-1", 0, size), order(seed, "web-2", 0, size)


_TESTS: dict[str, Callable[[int, int], tuple[np.ndarray, np.ndarray]]] = {
    "places in an epoch": _places,
    "neighbours in an epoch": _neighbours,
    "two epochs": _epochs,
    "two seeds": _seeds,
    "two sources": _sources,
}


def _rows(size: int, repeats: int, tables: int) -> Iterator[Row]:
    """One row per test, of `tables` tables with `repeats` orders each."""
    for name, pairs in _TESTS.items():
        chances = [
            chance(sum(_together(*pairs(size, table * repeats + i), size) for i in range(repeats)))
            for table in range(tables)
        ]
        equal = [int((np.equal(*pairs(size, seed))).sum()) for seed in range(tables * repeats)]
        beside = f"largest {max(chances):.3f}; " + (
            f"places that are the same: {np.mean(equal):.2f} an order, by chance 1" if name.startswith("two") else ""
        )
        claim = f"shuffle of {size:,} sequences, {name}: smallest of {tables} chances"
        reach = f"above {0.05 / tables:.4f}"
        found = tuple(round(each, 4) for each in sorted(chances))
        yield Row(claim, f"{min(chances):.4f}", reach, beside.removesuffix("; "), chances=found)


def run(folder: Path, smoke: bool) -> list[Row]:
    """Five tests each for a small and for a large source."""
    tables = 3 if smoke else 50
    return [*_rows(SMALL, 5 if smoke else 100, tables), *_rows(LARGE, 1, tables)]
