"""Packed sources against their plain-int twins (ORD-12 to ORD-15), and what they promise at any size (P3, P6)."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import gcd

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benches.scenes import web_lengths
from tests import naive
from tests import naive_packing as twin
from tests.calls import (
    ADD,
    ITS_SLOT,
    NEXT,
    REMOVE,
    ROOM,
    SEQUENCE,
    PackedSource,
    bins,
    bins_of,
    entries_of,
    member,
    packed_sequences,
    permute,
    permute_each,
    positions_of,
    replay,
)
from tokenstore.order.bitset import empty_bitset
from tokenstore.order.classes import MEMBER, PIECE, RANK, SLOT, LengthClasses, length_classes, slot_of
from tokenstore.order.inverse import BinIndex, circle_offset, place_before
from tokenstore.order.keys import base_key
from tokenstore.order.packing import (
    BINS,
    COPIES,
    FIRST_SLOT,
    LENGTH,
    OFFSET,
    PARENT,
    TAKEN,
    Packing,
    num_best_fit,
    pack,
    pack_singles,
    place,
)
from tokenstore.order.repeats import ranks_of
from tokenstore.order.sorting import LONG, count_lengths, place_by_length

KEYS = st.integers(0, 2**64 - 1)
SEEDS = st.integers(-(2**70), 2**70)
EPOCHS = st.integers(0, 30) | st.integers(0, 2**45)


def sft_lengths(seed: int, count: int) -> np.ndarray:
    """int64[count], as of conversations: lognormal, median about 700 tokens, none above 8,192."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(700), 0.8, count), 16, 8192).astype(np.int64)


def between(low: int, high: int) -> Callable[[int, int], np.ndarray]:
    return lambda seed, count: np.random.default_rng(seed).integers(low, high + 1, count)


def shapes(length: int) -> dict[str, Callable[[int, int], np.ndarray]]:
    """Ways that documents' lengths may lie beside a sequence length: (seed, count) -> int64[count]."""
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
    """Lengths like these beside sequences of 2,048 tokens, for sequences of `length`."""
    return np.maximum(lengths * length // 2048, 1).tolist()


@st.composite
def documents(draw: st.DrawFn, longest: int = 300, most: int = 400) -> tuple[int, list[int]]:
    """(L, lengths of documents) of every shape."""
    length = draw(st.integers(1, 12) | st.integers(1, longest))
    count = draw(st.integers(1, 25) | st.integers(1, most))
    shape, seed = draw(st.sampled_from(sorted(shapes(length)))), draw(st.integers(0, 9999))
    lengths = shapes(length)[shape](seed, count)
    return length, small(lengths, length) if shape in ("web", "sft", "multiples of 64") else lengths.tolist()


@st.composite
def factors(draw: st.DrawFn, most_p: int = 12, most_q: int = 12) -> tuple[int, int]:
    """p/q in lowest terms."""
    p, q = draw(st.integers(1, most_p)), draw(st.integers(1, most_q))
    return p // gcd(p, q), q // gcd(p, q)


@st.composite
def pools(draw: st.DrawFn, longest: int = 200, most: int = 25) -> tuple[int, tuple]:
    """(L, members as the twin takes them)."""
    length = draw(st.integers(1, longest))
    lengths = st.lists(st.integers(1, 12) | st.integers(1, 3 * length), min_size=1, max_size=most)
    members = draw(st.lists(st.tuples(lengths, factors()), min_size=1, max_size=4))
    return length, tuple((tuple(documents), p, q) for documents, (p, q) in members)


def classes_of(lengths: Sequence[int] | np.ndarray, length: int, times: int = 1) -> LengthClasses:
    return length_classes([member(lengths, times=times)], length)


def counts_of(classes: LengthClasses) -> dict[int, int]:
    """As the twin takes them."""
    return {int(v): int(classes.counts[v]) for v in np.flatnonzero(classes.counts)}


def jitter(seed: int, name: str = "a") -> np.uint64:
    return base_key(seed, "jitter", name)


def assert_same_bins(
    classes: LengthClasses, num_bins: int, seed: int, epoch: int, shuffle: bool, name: str = "ä"
) -> int:
    """Bins, their slots, the order of both, and the rung, which is returned, are those of the twin."""
    made = pack(classes, num_bins, jitter(seed, name), epoch, shuffle)
    expected, rung = twin.pack(counts_of(classes), classes.length, num_bins, seed, name, epoch, shuffle)
    assert bins(made, classes) == expected
    assert made.rung == rung
    return rung


def assert_whole(packing: Packing, classes: LengthClasses, num_bins: int) -> None:
    """Exactly `num_bins` bins, none empty, none above L, and every slot once."""
    ends, lengths, slots = bins_of(packing, classes)
    assert len(ends) == num_bins
    assert np.diff(ends, prepend=0).min() > 0
    firsts = np.cumsum(classes.counts) - classes.counts
    assert np.all(slots < classes.counts[lengths])
    assert len(slots) == classes.num_pieces
    assert np.all(np.bincount(firsts[lengths] + slots, minlength=classes.num_pieces) == 1)
    assert np.add.reduceat(lengths, ends - np.diff(ends, prepend=0)).max() <= classes.length


def assert_whole_by_groups(packing: Packing, classes: LengthClasses, num_bins: int) -> None:
    """The same, from the tree of groups: for more slots than one can list."""
    groups = packing.groups[np.lexsort((packing.groups[:, FIRST_SLOT], packing.groups[:, LENGTH]))][1:]
    lengths, slots = groups[:, LENGTH], groups[:, COPIES] * groups[:, BINS]
    ends = np.cumsum(slots)
    firsts = (np.cumsum(classes.counts) - classes.counts)[lengths] + groups[:, FIRST_SLOT]
    assert slots.min() > 0
    assert ends[-1] == classes.num_pieces
    assert np.array_equal(firsts, ends - slots)  # the groups of a class lie slot by slot, without a gap
    left = [classes.length]
    for group in packing.groups[1:].tolist():
        left.append(left[group[PARENT]] - group[COPIES] * group[LENGTH])
    assert min(left) >= 0
    order = np.lexsort((packing.groups[:, OFFSET], packing.groups[:, PARENT]))[1:]  # children take their bins in turn
    parents, sizes = packing.groups[order, PARENT], packing.groups[order, BINS]
    taken = packing.groups[:, TAKEN]
    before = (np.cumsum(taken) - taken)[parents] + packing.groups[order, OFFSET]
    assert np.array_equal(before, np.cumsum(sizes) - sizes)
    assert taken.sum() == sizes.sum()
    assert np.all(taken <= packing.groups[:, BINS])
    assert packing.groups[0, BINS] == packing.groups[0, TAKEN] == packing.firsts[-1] == num_bins
    leaves = packing.groups[packing.leaves]
    assert np.array_equal(np.diff(packing.firsts), leaves[:, BINS] - leaves[:, TAKEN])


class TestRepeats:
    """ORD-12: which documents an epoch gives, and where."""

    @given(st.integers(1, 40), factors(), EPOCHS)
    def test_ranks_and_positions_equal_the_twin(self, num_documents: int, factor: tuple, epoch: int) -> None:
        """A rank has the twin's document, or none; a document's ranks are those that have it."""
        p, q = factor
        expected = [twin.position(k, epoch, num_documents, p, q) for k in range(-(-num_documents * p // q))]
        found = positions_of(range(len(expected)), epoch, p, q)
        assert member([1] * num_documents, p, q).num_ranks == len(expected)
        assert [x if x < num_documents else None for x in found] == expected
        for x in range(num_documents):
            assert list(ranks_of(x, epoch, p, q)) == [k for k, at in enumerate(expected) if at == x]

    @given(
        st.integers(1, 10**12),
        factors(10**6, 10**4),
        st.integers(0, 30) | st.integers(2**50, 2**62),
        st.fractions(0, 1),
    )
    @example(10**12, (999_999, 10_000), 2**62, Fraction(1))
    @example(10**12, (1, 10_000), 2**62, Fraction(1))
    def test_are_inverse_at_any_size(self, num_documents: int, factor: tuple, epoch: int, share: Fraction) -> None:
        """P6: 10**12 documents, factors from 0.0001 to 10**6: int64 is wide enough, and the formula is the text's."""
        p, q = factor
        x = int(share * (num_documents - 1))
        ranks = ranks_of(x, epoch, p, q)
        assert len(ranks) == twin.given_before(epoch + x + 1, p, q) - twin.given_before(epoch + x, p, q)
        some = [*ranks[:3], *ranks[-3:]]
        assert positions_of(some, epoch, p, q) == [x] * len(some)
        rank = int(share * (-(-num_documents * p // q) - 1))
        at = -(-(epoch * p // q + rank + 1) * q // p) - 1 - epoch
        assert positions_of([rank], epoch, p, q) == [at]
        assert rank in ranks_of(at, epoch, p, q)
        assert positions_of([rank], 0, p, q)[0] >= at

    @pytest.mark.parametrize(("p", "q"), [(2, 4), (0, 1), (1, 0), (-1, 2), (3, 3)])
    def test_factors_not_in_lowest_terms_are_refused(self, p: int, q: int) -> None:
        """ORD-12 is written for lowest terms."""
        with pytest.raises(ValueError, match="lowest terms"):
            member([1], p, q)


class TestClasses:
    """ORD-13: the slots of the length classes."""

    @given(pools())
    def test_equal_the_twin(self, pool: tuple) -> None:
        """Counts are the twin's, entry_of finds the (member, rank, j) of every slot, slot_of leads back."""
        length, members = pool
        expected = twin.slots(members, length)
        classes = length_classes([member(*each) for each in members], length)
        assert counts_of(classes) == {v: len(places) for v, places in expected.items()}
        assert classes.num_pieces == sum(map(len, expected.values()))
        assert classes.num_tokens == sum(v * len(places) for v, places in expected.items())
        rooms = [twin.ranks(*each) for each in members]
        for v, places in expected.items():
            entries = entries_of(classes, v, range(len(places)))
            for y, (at, entry) in enumerate(zip(places, entries, strict=True)):
                rank, piece = y - int(entry[SLOT]), int(entry[PIECE])
                if v == length:
                    rank, piece = divmod(rank, piece)
                assert (entry[MEMBER], entry[RANK] + rank, piece) == at
                assert slot_of(classes, *at, rooms[at[0]][at[1]]) == (v, y)

    def test_are_as_large_as_the_number_of_lengths(self) -> None:
        """10**12 documents have the entries of a million."""
        lengths = web_lengths(1, 10**5)
        one, many = classes_of(lengths, 2048), classes_of(lengths, 2048, 10**7)
        assert len(many.entries) == len(one.entries)
        assert np.array_equal(many.counts, one.counts * 10**7)
        assert many.num_tokens == one.num_tokens * 10**7


class TestBitset:
    """The set behind best fit."""

    @given(st.integers(1, 200_000), st.data())
    def test_is_a_set(self, size: int, data: st.DataObject) -> None:
        """After any adding and removing, next_member is the least member from a number on, or -1."""
        edges = [x + d for x in (0, 63, 64, 4095, 4096, 8192, 65536, 131072, size - 1) for d in (-1, 0, 1)]
        numbers = st.integers(0, size - 1) | st.sampled_from([x for x in edges if 0 <= x < size])
        steps = data.draw(st.lists(st.tuples(st.sampled_from([ADD, REMOVE, NEXT, ADD, NEXT]), numbers), max_size=60))
        members, expected = set(), []
        for what, number in steps:
            if what == ADD:
                members.add(number)
            elif what == REMOVE:
                members.discard(number)
            expected.append(min((x for x in members if x >= number), default=-1) if what == NEXT else 0)
        assert replay(steps, size) == expected

    def test_finds_each_of_many(self) -> None:
        """131,073 numbers: from every one on, full, thinned out and empty again."""
        size, rng = 131_073, np.random.default_rng(0)
        kept = np.flatnonzero(rng.random(size) < 0.001)
        gone = np.setdiff1d(np.arange(size), kept)
        steps = [(what, number) for what in (ADD, NEXT) for number in range(size)]
        steps += [(REMOVE, number) for number in gone] + [(NEXT, number) for number in range(size)]
        steps += [(REMOVE, number) for number in kept] + [(NEXT, 0), (NEXT, size - 1)]
        found = replay(steps, size)
        assert found[size : 2 * size] == list(range(size))
        after = np.append(kept, -1)[np.searchsorted(kept, np.arange(size))]
        assert found[2 * size + len(gone) :][:size] == after.tolist()
        assert found[-2:] == [-1, -1]


class TestNumSequences:
    """ORD-14: N."""

    @given(documents())
    def test_equals_the_twin(self, case: tuple) -> None:
        """Best-fit decreasing by runs fills as many bins as piece by piece."""
        length, lengths = case
        classes = classes_of(lengths, length)
        assert num_best_fit(classes) == twin.num_sequences(counts_of(classes), length, "best_fit")

    @pytest.mark.parametrize(
        ("lengths", "times", "expected"),
        [
            ([40], 50, 50),  # a bin a piece
            ([32], 62, 31),  # 31 bins at least: no slack
            ([32], 64, 32 + 1),
            ([32], 400, 200 + 1),
            ([32], 402, 201 + 2),
            ([32], 99_998, 49_999 + 250),
            ([32], 100_000, 50_000 + 50),
            ([32], 100_002, 50_001 + 51),
            ([33, 22], 400, 400 + 1),  # best-fit decreasing is far from LB
            ([33, 22], 401, 401 + 2),
            ([33, 22], 49_999, 49_999 + 125),
            ([33, 22], 50_000, 50_000 + 25),
            ([33, 22], 50_001, 50_001 + 26),
        ],
        ids=lambda value: str(value),
    )
    def test_slack_is_that_of_the_text(self, lengths: list[int], times: int, expected: int) -> None:
        """None below 32 bins, then a 200th, and a 1000th from 100,000 pieces on; half as much over best-fit decreasing."""
        classes = classes_of(lengths, 64, times)
        assert num_best_fit(classes) == expected
        assert twin.num_sequences(counts_of(classes), 64, "best_fit") == expected


class TestBestFit:
    """ORD-14: the bins."""

    @settings(max_examples=120)
    @given(documents(), SEEDS, EPOCHS)
    def test_bins_equal_the_twin(self, case: tuple, seed: int, epoch: int) -> None:
        """P6: bin for bin, slot for slot, on the twin's rung, shuffled in several epochs and unshuffled."""
        length, lengths = case
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        for e, shuffle in ((0, True), (epoch, True), (epoch, False)):
            assert_same_bins(classes, num_bins, seed, e, shuffle)

    @settings(max_examples=120)
    @given(documents(most=120), SEEDS, st.fractions(0, 1))
    def test_any_number_of_bins_equals_the_twin(self, case: tuple, seed: int, share: Fraction) -> None:
        """From as many as best-fit decreasing needs to one a piece: pieces that may not join go into empty bins."""
        length, lengths = case
        classes = classes_of(lengths, length)
        least = twin.num_bins_best_fit_decreasing(counts_of(classes), length)
        num_bins = least + int(share * (classes.num_pieces - least))
        for shuffle in (True, False):
            assert_same_bins(classes, num_bins, seed, 3, shuffle)
            assert_whole(pack(classes, num_bins, jitter(seed), 3, shuffle), classes, num_bins)

    @settings(max_examples=25)
    @given(st.integers(1000, 20_000), st.integers(10, 400), st.integers(0, 9999), EPOCHS)
    def test_long_sub_entries_equal_the_twin(self, length: int, count: int, seed: int, epoch: int) -> None:
        """Long sequences and few lengths: a sub-entry has several slots, and leaves groups in part."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 25, count) * (length // 16) + rng.integers(0, 2, count)
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        assert num_bins == twin.num_sequences(counts_of(classes), length, "best_fit")
        assert_same_bins(classes, num_bins, seed, epoch, True)
        assert_same_bins(classes, (num_bins + classes.num_pieces) // 2, seed, epoch, True)

    @pytest.mark.parametrize("seed", [5, 6])
    def test_equal_sort_keys_equal_the_twin(self, seed: int) -> None:
        """By falling length, then in order: found by trying, so that entries of two classes have one sort key."""
        classes = classes_of(range(1, 65), 64, 256)
        assert assert_same_bins(classes, num_best_fit(classes), seed, 0, True, "a") == 4

    def test_tight_packings_equal_the_twin(self) -> None:
        """Few pieces and not a bin to spare: thousands of histograms, six of the seven rungs."""
        rng, rungs = np.random.default_rng(1), set()
        for seed in range(3000):
            length = int(rng.choice([5, 10, 16, 31, 48, 64, 100]))
            lengths = rng.integers(max(length // rng.choice([2, 4, 10]), 1), length + 1, rng.integers(2, 13))
            classes = classes_of(lengths, length)
            rungs.add(assert_same_bins(classes, num_best_fit(classes), seed, 0, True))
        assert rungs >= {0, 1, 2, 3, 4, 5}

    @pytest.mark.parametrize(
        ("length", "lengths"),
        [
            (64, [1]),
            (1, [1]),
            (1, [2000, 1]),
            (64, [37]),
            (64, [64] * 500),
            (64, [65] * 500),
            (63, [21] * 1000),
            (200, [2_000_000, 3, 199, 2_000_001]),
            (333, between(1, 1000)(4, 3000).tolist()),
            (512, web_lengths(4, 3000).tolist()),
            (2048, sft_lengths(4, 2000).tolist()),
            (16_384, sft_lengths(5, 300).tolist()),
            (20_000, web_lengths(5, 300).tolist()),
        ],
        ids=lambda value: value if isinstance(value, int) else f"{len(value)} of {value[0]}",
    )
    def test_ends_equal_the_twin(self, length: int, lengths: list[int]) -> None:
        """One token, one document, all equal, documents of two million tokens, sub-entries one a class."""
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        assert num_bins == twin.num_sequences(counts_of(classes), length, "best_fit")
        for epoch, shuffle in ((0, True), (1, True), (0, False)):
            assert_same_bins(classes, num_bins, 7, epoch, shuffle)
            assert_whole(pack(classes, num_bins, jitter(7), epoch, shuffle), classes, num_bins)

    def test_too_small_a_table_is_told(self) -> None:
        """`place` says that the groups need more room, and writes nothing behind what it has."""
        entries = np.array([[9, 0, 7], [5, 0, 6], [3, 0, 4], [2, 0, 30]])
        full = self.placed(entries, 40)
        assert 5 < len(full) < 40
        for room in range(1, len(full)):
            assert len(self.placed(entries, room)) == 0
        assert np.array_equal(self.placed(entries, len(full)), full)

    def placed(self, entries: np.ndarray, room: int) -> np.ndarray:
        """The groups, none where `room` of them are not enough."""
        groups = np.full((room + 5, 8), -7)
        used = place(entries, 4, 25, 22, np.full(17, -1), empty_bitset(17), groups[:room])
        assert np.all(groups[room:] == -7)
        assert used > 0 or used == -2
        return groups[: max(used, 0), : TAKEN + 1]

    @given(documents())
    def test_singles_equal_the_twin(self, case: tuple) -> None:
        """`none`: a piece a bin, the longest first."""
        length, lengths = case
        classes = classes_of(lengths, length)
        made = pack_singles(classes)
        assert bins(made, classes) == twin.singles(counts_of(classes), length)
        assert_whole(made, classes, classes.num_pieces)
        assert_whole_by_groups(made, classes, classes.num_pieces)

    @pytest.mark.parametrize("length", [8, 2047, 2048, 4096, 32768, 131072])
    @pytest.mark.parametrize("shape", ["web", "sft", "uniform", "halves", "thirds", "constant", "multiples of 64"])
    def test_fills_its_bins_at_any_size(self, shape: str, length: int) -> None:
        """P3: exactly N bins, none empty or above L, every slot once, with 10**4 to 10**6 documents."""
        count = {8: 10**4, 2047: 10**5, 4096: 10**6, 32768: 10**5}.get(length, 3 * 10**4)
        classes = classes_of(shapes(length)[shape](length + 5, count), length)
        num_bins = num_best_fit(classes)
        for shuffle in (True, False):
            made = pack(classes, num_bins, jitter(2), 5, shuffle)
            assert_whole(made, classes, num_bins)
            assert_whole_by_groups(made, classes, num_bins)

    @pytest.mark.parametrize("length", [2048, 4096, 8192, 32768])
    def test_wastes_little(self, length: int) -> None:
        """A million web-like documents: at most 0.12 % padding, and all bins can be filled."""
        classes = classes_of(web_lengths(9, 10**6), length)
        num_bins = num_best_fit(classes)
        made = pack(classes, num_bins, jitter(3), 0, True)
        assert_whole(made, classes, num_bins)
        assert num_bins * length - classes.num_tokens <= Fraction(12, 10_000) * num_bins * length

    @pytest.mark.parametrize("length", [1, 2, 8, 2048, 32768])
    def test_costs_the_same_for_any_number_of_documents(self, length: int) -> None:
        """10**9 and 10**12 documents: as many groups, within a fifth, and every one of 10**15 tokens has its bin."""
        lengths = web_lengths(11, 10**5)
        for shuffle in (True, False):
            groups = []
            for times in (10**4, 10**7):
                classes = classes_of(lengths, length, times)
                num_bins = num_best_fit(classes)
                made = pack(classes, num_bins, jitter(1), 0, shuffle)
                assert_whole_by_groups(made, classes, num_bins)
                groups.append(len(made.groups))
            assert 5 * max(groups) <= 6 * min(groups)


def share_met_again(source: PackedSource, epoch: int) -> float:
    """Of the pairs of pieces in one sequence of `epoch`, the share in one sequence of the next again."""
    firsts = np.cumsum(source.classes.counts) - source.classes.counts
    now, then = np.full((2, source.classes.num_pieces), -1)
    for sequences, e in ((now, epoch), (then, epoch + 1)):
        rows = source.rows(e)
        sequences[firsts[rows[:, ROOM]] + rows[:, ITS_SLOT]] = rows[:, SEQUENCE]
    assert now.min() >= 0
    assert then.min() >= 0
    order = np.argsort(now, kind="stable")
    now, then = now[order], then[order]
    pairs = again = 0
    for distance in range(1, len(now)):
        together = now[distance:] == now[:-distance]
        if not together.any():
            break
        pairs += int(together.sum())
        again += int((together & (then[distance:] == then[:-distance])).sum())
    return again / pairs


class TestNeighbours:
    """ORD-14, ORD-15: a document has new neighbours every epoch."""

    def test_few_of_few_documents_meet_again(self) -> None:
        """10,000 conversations: at most 0.2 % of the pairs of an epoch are pairs of the next one again."""
        source = PackedSource([member(sft_lengths(1, 10**4))], 4096, 1, "chat", "best_fit", True)
        assert max(share_met_again(source, epoch) for epoch in range(4)) <= 0.002

    def test_few_of_many_documents_meet_again(self) -> None:
        """A million web documents: at most 0.02 %."""
        source = PackedSource([member(web_lengths(1, 10**6))], 2048, 1, "web", "best_fit", True)
        assert share_met_again(source, 0) <= 0.0002


class TestSequences:
    """ORD-15: the whole way from a number to the pieces in a row."""

    @given(pools(most=12), SEEDS, st.text("aé", max_size=2), EPOCHS, st.booleans(), st.data())
    def test_equal_the_twin(
        self, pool: tuple, seed: int, name: str, epoch: int, shuffle: bool, data: st.DataObject
    ) -> None:
        """P6: member, document and tokens of every piece, in the twin's order, in any epoch."""
        length, members = pool
        packing = data.draw(st.sampled_from(["best_fit", "best_fit", "none"]))
        count = twin.classes_of(members, length, packing)[2]
        first = data.draw(st.integers(0, max(count - 20, 0)))
        ks = [e * count + i for e in {0, epoch} for i in range(first, min(first + 20, count))]
        expected = [twin.packed_sequence(members, length, seed, name, k, packing, shuffle) for k in ks]
        assert packed_sequences(members, length, seed, name, ks, packing, shuffle) == expected

    @given(
        st.lists(st.tuples(st.integers(1, 300) | st.integers(65_530, 65_540) | st.integers(1, 2**61), KEYS)), st.data()
    )
    def test_permuting_together_equals_one_by_one(self, domains: list[tuple], data: st.DataObject) -> None:
        """ORD-2, for small and large domains side by side."""
        numbers = [data.draw(st.integers(0, n - 1)) for n, _ in domains]
        expected = [naive.permute(x, n, key) for x, (n, key) in zip(numbers, domains, strict=True)]
        assert permute_each([n for n, _ in domains], [key for _, key in domains], numbers) == expected


class TestInverse:
    """The order backwards."""

    @given(documents(most=20), st.sampled_from([1, 6, 30]), st.booleans(), st.fractions(0, 1))
    def test_every_slot_is_found_in_its_bin(self, case: tuple, times: int, shuffle: bool, share: Fraction) -> None:
        """BinIndex is the inverse of slots_of_bin, for any packing."""
        length, lengths = case
        classes = classes_of(lengths, length, times)
        least = num_best_fit(classes)
        num_bins = least + int(share * (classes.num_pieces - least))
        for made in (pack(classes, num_bins, jitter(4), 1, shuffle), pack_singles(classes)):
            index = BinIndex(made)
            for number, content in enumerate(bins(made, classes)):
                assert [index.bin_of(v, y) for v, y in content] == [number] * len(content)

    @pytest.mark.parametrize(("length", "times"), [(2048, 1), (32768, 1), (2048, 10**7)])
    def test_slots_of_large_packings_are_found(self, length: int, times: int) -> None:
        """In 10**5 documents, and in 10**12."""
        classes = classes_of(web_lengths(6, 10**5), length, times)
        made, rng = pack(classes, num_best_fit(classes), jitter(4), 2, True), np.random.default_rng(0)
        index = BinIndex(made)
        numbers = rng.integers(0, made.firsts[-1], 300)
        for number, content in zip(numbers, bins(made, classes, numbers), strict=True):
            assert {index.bin_of(v, y) for v, y in content} == {number}

    @given(st.integers(1, 2**61), KEYS, st.integers(0, 2**40), st.integers(-1, 1) | st.integers(2, 200_000), st.data())
    def test_places_before_are_the_inverse_of_permute(
        self, size: int, base: int, counter: int, inner: int, data: st.DataObject
    ) -> None:
        """Under the counted key of ORD-1, and the counted key of that one where a class asks for it."""
        numbers = data.draw(st.lists(st.integers(0, size - 1), max_size=8))
        key = naive.counted_key(base, counter)
        key = key if inner < 0 else naive.counted_key(key, inner)
        images = np.array(permute(numbers, size, key), np.int64)
        assert place_before(images, size, np.uint64(base), counter, inner).tolist() == numbers

    @given(st.integers(1, 2**61), SEEDS, EPOCHS)
    def test_circle_offset_equals_the_twin(self, num_tokens: int, seed: int, epoch: int) -> None:
        """ORD-7."""
        expected = naive.counted_key(naive.base_key(seed, "offset", "a"), epoch) % num_tokens
        assert circle_offset(num_tokens, base_key(seed, "offset", "a"), epoch) == expected


class TestSorting:
    """ORD-12: documents by (tokens, id)."""

    @given(st.lists(st.integers(1, 9) | st.integers(1, LONG + 3) | st.sampled_from([LONG - 1, LONG, 2**45])), st.data())
    def test_equals_sorting(self, lengths: list[int], data: st.DataObject) -> None:
        """A block of the boundaries at a time; those of LONG tokens or more come last, by id."""
        starts = np.cumsum([0, *lengths])
        cuts = sorted({0, len(lengths), *data.draw(st.lists(st.integers(0, len(lengths)), max_size=3))})
        counts = np.zeros(LONG + 1, np.int64)
        blocks = [(first, starts[first : stop + 1]) for first, stop in pairwise(cuts)]
        for _, block in blocks:
            assert count_lengths(block, counts)
        assert {n: counts[n] for n in np.flatnonzero(counts)} == {
            n: sum(min(x, LONG) == n for x in lengths) for n in {min(x, LONG) for x in lengths}
        }
        places = np.cumsum(counts) - counts
        for dtype in (np.uint32, np.int64):
            out, moving = np.full(len(lengths), 2**31, dtype), places.copy()
            for first, block in blocks:
                place_by_length(block, first, moving, out)
            assert out.tolist() == sorted(range(len(lengths)), key=lambda i: (min(lengths[i], LONG), i))
            assert np.array_equal(moving, places + counts)

    @pytest.mark.parametrize("starts", [[0, 3, 3, 9], [0, 3, 2], [5, 0]])
    def test_a_document_of_no_token_is_told(self, starts: list[int]) -> None:
        """Or of fewer: the boundaries are damaged."""
        assert not count_lengths(np.array(starts, np.int64), np.zeros(LONG + 1, np.int64))
