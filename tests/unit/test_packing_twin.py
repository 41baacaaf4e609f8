"""The plain-int twins of packed sources against the promises of ORD-12..ORD-15, and against themselves."""

import random
from collections import Counter

import pytest

from tests.support.twins import packing as packing_twin

FACTORS = [(1, 1), (1, 2), (1, 3), (2, 3), (3, 2), (5, 3), (7, 5), (3, 1), (1, 7), (11, 4)]
MEMBERS = [([5, 1, 9, 9, 30, 2, 5], 1, 1), ([16, 40, 3, 3, 7], 2, 3), ([8, 1, 21], 5, 2), ([12], 1, 3)]

HARDEST = {26: 2, 27: 2, 29: 4, 30: 1, 31: 3, 32: 2, 33: 5, 34: 4, 36: 4, 37: 3, 38: 3, 39: 3, 40: 5, 42: 3, 43: 2}
HARDEST |= {44: 6, 45: 2, 46: 2, 47: 1, 48: 2, 50: 1}
# attempt -> length, counts, epoch
HARD = [
    (64, {2: 1}, 0),
    (64, {13: 1, 16: 1, 19: 1, 27: 2, 38: 1, 40: 1, 50: 1, 56: 1, 62: 1}, 0),
    (31, {8: 1, 9: 1, 11: 1, 12: 1, 15: 1}, 1),
    (10, {4: 1, 5: 2, 6: 1}, 0),
    (64, {15: 1, 31: 1, 33: 1, 35: 1}, 0),
    (10, {3: 2, 4: 1, 5: 2}, 0),
    (100, HARDEST, 1),
]


def epoch_size(members: list, length: int, packing: str) -> int:
    """Sequences of one epoch."""
    counts = {v: len(places) for v, places in packing_twin.slots(members, length).items()}
    return packing_twin.num_sequences(counts, length, packing)


def scan(members: list, length: int, epoch: int, packing: str, shuffle: bool, seed: int = 5) -> list:
    """The sequences of one epoch."""
    n = epoch_size(members, length, packing)
    return [
        packing_twin.packed_sequence(members, length, seed, "s", k, packing, shuffle)
        for k in range(epoch * n, epoch * n + n)
    ]


def histograms() -> list:
    """[(name, length, counts)]: random ones, and the ends."""
    rng = random.Random(0)
    out = [("one token", length, {1: 1}) for length in (1, 2, 64)]
    out += [("one document", 16, {16: 3, 5: 1}), ("one short document", 16, {5: 1}), ("all L", 16, {16: 200})]
    for n in range(30):
        length, documents = rng.choice([1, 2, 3, 7, 16, 31, 48, 64]), rng.choice([1, 10, 100, 600])
        lengths = {
            "uniform": [rng.randint(1, 3 * length) for _ in range(documents)],
            "skewed": [int(rng.paretovariate(1.1)) for _ in range(documents)],
            "equal": [rng.randint(1, length)] * documents,
            "long": [rng.randint(length + 1, 4 * length) for _ in range(documents)],
            "short": [rng.randint(1, length // 4 + 1) for _ in range(documents)],
        }
        for name, tokens in lengths.items():
            counts = {v: len(places) for v, places in packing_twin.slots([(tokens, 1, 1)], length).items()}
            out.append((f"{name} {n}", length, counts))
    return out


class TestRepeats:
    """ORD-12."""

    @pytest.mark.parametrize(("p", "q"), FACTORS)
    def test_closed_formula_is_the_definition(self, p: int, q: int) -> None:
        """ceil((F(e) + k + 1) q / p) - 1 - e, empty from D on; in epoch 0 it is greatest."""
        for d in range(1, 15):
            for epoch in range(2 * q + 3):
                found = [packing_twin.position(k, epoch, d, p, q) for k in range(-(-d * p // q))]
                closed = [-(-(epoch * p // q + k + 1) * q // p) - 1 - epoch for k in range(-(-d * p // q))]
                assert found == [x if x < d else None for x in closed]
                assert len(packing_twin.copies(epoch, d, p, q)) <= len(found)
                assert all(x <= -(-(k + 1) * q // p) - 1 for k, x in enumerate(closed))

    @pytest.mark.parametrize(("p", "q"), FACTORS)
    def test_documents_are_given_equally_often(self, p: int, q: int) -> None:
        """After E epochs floor(E p / q) or ceil(E p / q) times."""
        given = Counter()
        for epoch in range(2 * q + 3):
            given.update(packing_twin.position(k, epoch, 12, p, q) for k in range(-(-12 * p // q)))
            times = (epoch + 1) * p // q, -(-(epoch + 1) * p // q)
            assert all(given[x] in times for x in range(12))

    def test_worked_example(self) -> None:
        """As the text has it."""
        assert [packing_twin.position(k, 0, 5, 1, 2) for k in range(3)] == [1, 3, None]
        assert [packing_twin.position(k, 1, 5, 1, 2) for k in range(3)] == [0, 2, 4]

    @pytest.mark.parametrize(("p", "q"), FACTORS)
    def test_rooms_are_those_of_epoch_zero(self, p: int, q: int) -> None:
        """A copy has the room of its document in epoch 0, the empty one of the longest; no epoch needs more."""
        rng = random.Random(p * 100 + q)
        for _ in range(20):
            lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 20))]
            rooms, ordered = packing_twin.copy_rooms(lengths, p, q), sorted(lengths)
            for epoch in range(q + 2):
                at = [packing_twin.position(k, epoch, len(lengths), p, q) for k in range(len(rooms))]
                assert all(x is None or ordered[x] <= room for x, room in zip(at, rooms, strict=True))
                if epoch == 0:
                    assert rooms == [ordered[-1] if x is None else ordered[x] for x in at]


class TestBestFit:
    """ORD-14."""

    def test_fills_exactly_its_bins(self) -> None:
        """Every slot once, no bin over L, N bins of which none is empty, with and without shuffle."""
        for name, length, counts in histograms():
            n = packing_twin.num_sequences(counts, length, "best_fit")
            every = sorted((v, y) for v, h in counts.items() for y in range(h))
            for epoch, shuffle in ((0, True), (1, True), (0, False)):
                bins, attempt = packing_twin.pack(counts, length, n, 3, "a", epoch, shuffle)
                assert attempt == 6 or shuffle, name
                assert len(bins) == n, name
                assert all(bins), name
                assert all(sum(v for v, _ in content) <= length for content in bins), name
                assert sorted(slot for content in bins for slot in content) == every, name

    def test_runs_give_best_fit_decreasing(self) -> None:
        """The last attempt, free to join, fills as many bins as best-fit decreasing piece by piece."""
        for name, length, counts in histograms():
            pieces = sum(counts.values())
            for shuffle in (True, False):
                bins = packing_twin.place(
                    packing_twin.entries_of(counts, length, 6, 0, shuffle), length, pieces, pieces
                )
                assert sum(map(bool, bins)) == packing_twin.num_bins_best_fit_decreasing(counts, length), name

    @pytest.mark.parametrize("attempt", range(7))
    def test_every_attempt_is_reached(self, attempt: int) -> None:
        """Each on a histogram (found by trying) on which the ones before it fail; the last never fails."""
        length, counts, epoch = HARD[attempt]
        n = packing_twin.num_sequences(counts, length, "best_fit")
        bins, taken = packing_twin.pack(counts, length, n, 1, "a", epoch, True)
        assert taken == attempt
        assert len(bins) == n
        assert all(bins)

    def test_the_last_attempt_fills_any_number_of_bins(self) -> None:
        """From as many as best-fit decreasing fills to one a piece."""
        rng = random.Random(2)
        for name, length, counts in histograms():
            pieces = sum(counts.values())
            n = rng.randint(packing_twin.num_bins_best_fit_decreasing(counts, length), pieces)
            bins = packing_twin.place(packing_twin.entries_of(counts, length, 6, 7, True), length, n, pieces - n)
            assert len(bins) == n, name
            assert all(bins), name

    def test_none(self) -> None:
        """One slot a bin, from the longest class down."""
        assert packing_twin.num_sequences({2: 2, 4: 1}, 4, "none") == 3
        assert packing_twin.singles({2: 2, 4: 1}, 4) == [[(4, 0)], [(2, 0)], [(2, 1)]]

    def test_by_hand(self) -> None:
        """Lengths 6, 4, 4, 3, 3 into bins of 10: 6 4 | 4 3 3; the last placement comes first."""
        counts = {6: 1, 4: 2, 3: 2}
        assert packing_twin.num_sequences(counts, 10, "best_fit") == 2
        bins, _ = packing_twin.pack(counts, 10, 2, 0, "a", 0, False)
        assert bins == [[(4, 0), (6, 0)], [(3, 0), (3, 1), (4, 1)]]


class TestSequences:
    """ORD-13 and ORD-15."""

    @pytest.mark.parametrize("packing", ["best_fit", "none"])
    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("length", [1, 4, 16, 64])
    def test_an_epoch_gives_every_token_its_number_of_times(self, packing: str, shuffle: bool, length: int) -> None:
        """A document of F(e + x + 1) - F(e + x) copies has all its tokens that often; no row is over L."""
        for epoch in range(3):
            rows = scan(MEMBERS, length, epoch, packing, shuffle)
            assert all(sum(stop - start for _, _, start, stop in row) <= length for row in rows)
            found = Counter((m, d, token) for row in rows for m, d, start, stop in row for token in range(start, stop))
            expected = Counter()
            for member, (lengths, p, q) in enumerate(MEMBERS):
                order = sorted(range(len(lengths)), key=lambda d, lengths=lengths: (lengths[d], d))
                for x, document in enumerate(order):
                    times = (epoch + x + 1) * p // q - (epoch + x) * p // q
                    if times:
                        expected.update({(member, document, token): times for token in range(lengths[document])})
            assert found == expected

    def test_epochs_seeds_and_packings_differ(self) -> None:
        """Shuffled, two epochs and two seeds pack and order differently; unshuffled, every epoch is the same."""
        rng = random.Random(1)
        members = [([rng.randint(1, 40) for _ in range(300)], 1, 1)]
        first, second = (scan(members, 64, epoch, "best_fit", True) for epoch in (0, 1))
        other = scan(members, 64, 0, "best_fit", True, seed=6)
        as_sets = [{frozenset(row) for row in rows} for rows in (first, second, other)]
        assert all(len(a & b) < len(a) // 2 for a, b in zip(as_sets, as_sets[1:] + as_sets[:1], strict=True))
        assert scan(members, 64, 0, "best_fit", False) == scan(members, 64, 1, "best_fit", False)
        assert len(scan(members, 64, 0, "none", True)) == 300
