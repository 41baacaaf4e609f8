"""Document lengths of many distributions, and assertions that hold for any packing of them."""

from collections.abc import Callable, Sequence
from math import gcd

import numpy as np
from hypothesis import strategies as st

from benches.scenes import web_lengths
from tests.support.calls import bins, bins_of, member
from tests.support.twins import packing as packing_twin
from tokenstore.order.classes import LengthClasses, length_classes
from tokenstore.order.keys import base_key
from tokenstore.order.packing import BINS, COPIES, FIRST_SLOT, LENGTH, OFFSET, PARENT, TAKEN, Packing, pack

KEYS = st.integers(0, 2**64 - 1)
SEEDS = st.integers(-(2**70), 2**70)
EPOCHS = st.integers(0, 30) | st.integers(0, 2**45)


def sft_lengths(seed: int, count: int) -> np.ndarray:
    """int64[count] lengths like those of conversations: lognormal, median about 700 tokens, at most 8,192."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(700), 0.8, count), 16, 8192).astype(np.int64)


def between(low: int, high: int) -> Callable[[int, int], np.ndarray]:
    return lambda seed, count: np.random.default_rng(seed).integers(low, high + 1, count)


def shapes(length: int) -> dict[str, Callable[[int, int], np.ndarray]]:
    """Distributions of document lengths relative to a sequence length: (seed, count) -> int64[count]."""
    return {
        "web": web_lengths,
        "sft": sft_lengths,
        "uniform": between(1, 3 * length),
        "halves": between(length // 2 + 1, length),
        "thirds": between(length // 3 + 1, max(length // 2, length // 3 + 1)),
        "constant": lambda seed, count: np.full(count, seed % length + 1),
        "multiples of 64": lambda seed, count: 64 * (1 + web_lengths(seed, count) // 64),
        "long": between(length + 1, 4 * length),
        "short": between(1, length // 8 + 1),
    }


def small(lengths: np.ndarray, length: int) -> list[int]:
    """Lengths made for sequences of 2,048 tokens, scaled to sequences of `length` tokens."""
    return np.maximum(lengths * length // 2048, 1).tolist()


@st.composite
def documents(draw: st.DrawFn, longest: int = 300, most: int = 400) -> tuple[int, list[int]]:
    """(sequence length, document lengths) of any of the shapes."""
    length = draw(st.integers(1, 12) | st.integers(1, longest))
    count = draw(st.integers(1, 25) | st.integers(1, most))
    shape, seed = draw(st.sampled_from(sorted(shapes(length)))), draw(st.integers(0, 9999))
    lengths = shapes(length)[shape](seed, count)
    return length, small(lengths, length) if shape in ("web", "sft", "multiples of 64") else lengths.tolist()


@st.composite
def factors(draw: st.DrawFn, most_p: int = 12, most_q: int = 12) -> tuple[int, int]:
    """A repeat factor p/q in lowest terms."""
    p, q = draw(st.integers(1, most_p)), draw(st.integers(1, most_q))
    return p // gcd(p, q), q // gcd(p, q)


@st.composite
def pools(draw: st.DrawFn, longest: int = 200, most: int = 25) -> tuple[int, tuple]:
    """(sequence length, members as the twin takes them)."""
    length = draw(st.integers(1, longest))
    lengths = st.lists(st.integers(1, 12) | st.integers(1, 3 * length), min_size=1, max_size=most)
    members = draw(st.lists(st.tuples(lengths, factors()), min_size=1, max_size=4))
    return length, tuple((tuple(documents), p, q) for documents, (p, q) in members)


def classes_of(lengths: Sequence[int] | np.ndarray, length: int, times: int = 1) -> LengthClasses:
    return length_classes([member(lengths, times=times)], length)


def counts_of(classes: LengthClasses) -> dict[int, int]:
    """The number of pieces of each length, as the twin takes them."""
    return {int(v): int(classes.counts[v]) for v in np.flatnonzero(classes.counts)}


def jitter(seed: int, name: str = "a") -> np.uint64:
    return base_key(seed, "jitter", name)


def assert_same_bins(
    classes: LengthClasses, num_bins: int, seed: int, epoch: int, shuffle: bool, name: str = "ä"
) -> int:
    """Assert that bins, slots, their order, and the attempt equal those of the twin. Returns the attempt."""
    made = pack(classes, num_bins, jitter(seed, name), epoch, shuffle)
    expected, attempt = packing_twin.pack(counts_of(classes), classes.length, num_bins, seed, name, epoch, shuffle)
    assert bins(made, classes) == expected
    assert made.attempt == attempt
    return attempt


def assert_whole(packing: Packing, classes: LengthClasses, num_bins: int) -> None:
    """Assert that there are exactly `num_bins` bins, none empty, none longer than L, and that every slot occurs once."""
    ends, lengths, slots = bins_of(packing, classes)
    assert len(ends) == num_bins
    assert np.diff(ends, prepend=0).min() > 0
    starts = np.cumsum(classes.counts) - classes.counts
    assert np.all(slots < classes.counts[lengths])
    assert len(slots) == classes.num_pieces
    assert np.all(np.bincount(starts[lengths] + slots, minlength=classes.num_pieces) == 1)
    assert np.add.reduceat(lengths, ends - np.diff(ends, prepend=0)).max() <= classes.length


def assert_whole_by_groups(packing: Packing, classes: LengthClasses, num_bins: int) -> None:
    """The same, checked on the tree of groups, for packings with too many slots to list."""
    groups = packing.groups[np.lexsort((packing.groups[:, FIRST_SLOT], packing.groups[:, LENGTH]))][1:]
    lengths, slots = groups[:, LENGTH], groups[:, COPIES] * groups[:, BINS]
    ends = np.cumsum(slots)
    starts = (np.cumsum(classes.counts) - classes.counts)[lengths] + groups[:, FIRST_SLOT]
    assert slots.min() > 0
    assert ends[-1] == classes.num_pieces
    assert np.array_equal(starts, ends - slots)  # the groups of a class cover its slots without gaps
    left = [classes.length]
    for group in packing.groups[1:].tolist():
        left.append(left[group[PARENT]] - group[COPIES] * group[LENGTH])
    assert min(left) >= 0
    order = np.lexsort((packing.groups[:, OFFSET], packing.groups[:, PARENT]))[
        1:
    ]  # children take their parent's bins one after the other
    parents, sizes = packing.groups[order, PARENT], packing.groups[order, BINS]
    taken = packing.groups[:, TAKEN]
    before = (np.cumsum(taken) - taken)[parents] + packing.groups[order, OFFSET]
    assert np.array_equal(before, np.cumsum(sizes) - sizes)
    assert taken.sum() == sizes.sum()
    assert np.all(taken <= packing.groups[:, BINS])
    assert packing.groups[0, BINS] == packing.groups[0, TAKEN] == packing.starts[-1] == num_bins
    leaves = packing.groups[packing.leaves]
    assert np.array_equal(np.diff(packing.starts), leaves[:, BINS] - leaves[:, TAKEN])
