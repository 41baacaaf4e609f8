"""The bins of packed sources against plain-Python twins (ORD-14), and what they promise at any size (P3, P6)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches.scenes import web_lengths
from tests.support.calls import ADD, NEXT, REMOVE, bins, replay
from tests.support.twins import packing as packing_twin
from tests.support.twins.packings import (
    EPOCHS,
    SEEDS,
    assert_same_bins,
    assert_whole,
    assert_whole_by_groups,
    between,
    classes_of,
    counts_of,
    documents,
    jitter,
    sft_lengths,
    shapes,
)
from tokenstore.order.bitset import empty_bitset
from tokenstore.order.packing import TAKEN, greatest_first, num_best_fit, pack, pack_singles, place


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 62), max_size=40))
def test_keys_are_sorted_greatest_first(keys: list[int]) -> None:
    """Equal keys keep their order, whether or not a key and its index fit in one number."""
    expected = sorted(range(len(keys)), key=lambda place: -keys[place])
    assert greatest_first(np.array(keys, np.int64)).tolist() == expected


class TestBitset:
    """The set of tokens left that best fit searches."""

    @given(st.integers(1, 200_000), st.data())
    def test_is_a_set(self, size: int, data: st.DataObject) -> None:
        """After any adding and removing, next_member is the smallest member from a number on, or -1."""
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
        """131,073 numbers: from every one on, with a full, a sparse and an empty set."""
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
    """ORD-14, step 1: the number of bins N."""

    @given(documents())
    def test_equals_the_twin(self, case: tuple) -> None:
        """Best-fit decreasing by groups fills as many bins as piece by piece."""
        length, lengths = case
        classes = classes_of(lengths, length)
        assert num_best_fit(classes) == packing_twin.num_sequences(counts_of(classes), length, "best_fit")

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
    def test_slack_is_that_of_the_specification(self, lengths: list[int], times: int, expected: int) -> None:
        """None below 32 bins, then 1/200, and 1/1000 from 100,000 pieces on; half as much over best-fit decreasing."""
        classes = classes_of(lengths, 64, times)
        assert num_best_fit(classes) == expected
        assert packing_twin.num_sequences(counts_of(classes), 64, "best_fit") == expected


class TestBestFit:
    """ORD-14: the bins."""

    @given(documents(), SEEDS, EPOCHS)
    def test_bins_equal_the_twin(self, case: tuple, seed: int, epoch: int) -> None:
        """P6: each bin and slot, in the twin's attempt, shuffled in several epochs and unshuffled."""
        length, lengths = case
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        for e, shuffle in ((0, True), (epoch, True), (epoch, False)):
            assert_same_bins(classes, num_bins, seed, e, shuffle)

    @given(documents(most=120), SEEDS, st.fractions(0, 1))
    def test_any_number_of_bins_equals_the_twin(self, case: tuple, seed: int, share: Fraction) -> None:
        """From what best-fit decreasing needs to one per piece: pieces that may not join go into empty bins."""
        length, lengths = case
        classes = classes_of(lengths, length)
        least = packing_twin.num_bins_best_fit_decreasing(counts_of(classes), length)
        num_bins = least + int(share * (classes.num_pieces - least))
        for shuffle in (True, False):
            assert_same_bins(classes, num_bins, seed, 3, shuffle)
            assert_whole(pack(classes, num_bins, jitter(seed), 3, shuffle), classes, num_bins)

    @given(st.integers(1000, 20_000), st.integers(10, 400), st.integers(0, 9999), EPOCHS)
    def test_entries_of_several_slots_equal_the_twin(self, length: int, count: int, seed: int, epoch: int) -> None:
        """Long sequences and few lengths: an entry has several slots, and groups are used in part."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 25, count) * (length // 16) + rng.integers(0, 2, count)
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        assert num_bins == packing_twin.num_sequences(counts_of(classes), length, "best_fit")
        assert_same_bins(classes, num_bins, seed, epoch, True)
        assert_same_bins(classes, (num_bins + classes.num_pieces) // 2, seed, epoch, True)

    @pytest.mark.parametrize("seed", [5, 6])
    def test_equal_sort_keys_equal_the_twin(self, seed: int) -> None:
        """By falling length, then in order; the seeds were chosen so that entries of two classes have equal sort
        keys.
        """
        classes = classes_of(range(1, 65), 64, 256)
        assert assert_same_bins(classes, num_best_fit(classes), seed, 0, True, "a") == 4

    def test_tight_packings_equal_the_twin(self) -> None:
        """Few pieces and no spare bin: thousands of histograms, six of the seven attempts."""
        rng, attempts = np.random.default_rng(1), set()
        for seed in range(3000):
            length = int(rng.choice([5, 10, 16, 31, 48, 64, 100]))
            lengths = rng.integers(max(length // rng.choice([2, 4, 10]), 1), length + 1, rng.integers(2, 13))
            classes = classes_of(lengths, length)
            attempts.add(assert_same_bins(classes, num_best_fit(classes), seed, 0, True))
        assert attempts >= {0, 1, 2, 3, 4, 5}

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
    def test_extreme_histograms_equal_the_twin(self, length: int, lengths: list[int]) -> None:
        """One token, one document, all equal, documents of two million tokens, one entry per class."""
        classes = classes_of(lengths, length)
        num_bins = num_best_fit(classes)
        assert num_bins == packing_twin.num_sequences(counts_of(classes), length, "best_fit")
        for epoch, shuffle in ((0, True), (1, True), (0, False)):
            assert_same_bins(classes, num_bins, 7, epoch, shuffle)
            assert_whole(pack(classes, num_bins, jitter(7), epoch, shuffle), classes, num_bins)

    def test_a_table_that_is_too_small_is_reported(self) -> None:
        """`place` reports that the groups need more room, and writes nothing after its end."""
        entries = np.array([[9, 0, 7], [5, 0, 6], [3, 0, 4], [2, 0, 30]])
        full = self.placed(entries, 40)
        assert 5 < len(full) < 40
        for room in range(1, len(full)):
            assert len(self.placed(entries, room)) == 0
        assert np.array_equal(self.placed(entries, len(full)), full)

    def placed(self, entries: np.ndarray, room: int) -> np.ndarray:
        """The groups; none if there is not room for them."""
        groups = np.full((room + 5, 8), -7)
        used = place(entries, 4, 25, 22, np.full(17, -1), empty_bitset(17), groups[:room])
        assert np.all(groups[room:] == -7)
        assert used > 0 or used == -2
        return groups[: max(used, 0), : TAKEN + 1]

    @given(documents())
    def test_singles_equal_the_twin(self, case: tuple) -> None:
        """`none`: one piece per bin, the longest first."""
        length, lengths = case
        classes = classes_of(lengths, length)
        made = pack_singles(classes)
        assert bins(made, classes) == packing_twin.singles(counts_of(classes), length)
        assert_whole(made, classes, classes.num_pieces)
        assert_whole_by_groups(made, classes, classes.num_pieces)

    @pytest.mark.parametrize("length", [8, 2047, 2048, pytest.param(4096, marks=pytest.mark.deep), 32768, 131072])
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
        """10**9 and 10**12 documents: as many groups, within a fifth, and each of 10**15 tokens has its bin."""
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
