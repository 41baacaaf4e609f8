"""The order against its plain-Python twins, and the promises that rest on it (P3, P4, P6, P7)."""

import hashlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.calls import permute, permute_consecutive, unpermute, window_start
from tests.support.twins import order as order_twin
from tokenstore import Plan
from tokenstore.order.interleave import interleave
from tokenstore.order.keys import base_key
from tokenstore.order.rows import SegmentTables
from tokenstore.order.schedule import Stage, lay_out
from tokenstore.order.weights import MAX_PERIOD, integer_shares

KEYS = st.integers(0, 2**64 - 1)
NAMES = st.text("abcdefgh", min_size=1, max_size=3)
DECIMALS = st.decimals(0, 10, places=6, allow_nan=False).filter(lambda x: x > 0)


def key_text(seed: int, purpose: str, name: str) -> str:
    """The JSON text of ORD-1, written from the specification alone."""
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

    def escaped(text: str) -> str:
        units = text.encode("utf-16-be")
        characters = [chr(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2)]
        return "".join(short.get(c) or (c if " " <= c <= "~" else f"\\u{ord(c):04x}") for c in characters)

    return f'[{seed}, "{escaped(purpose)}", "{escaped(name)}"]'


@given(seed=st.integers(-(2**200), 2**200), name=st.text())
@example(seed=0, name='naïve "\\/\x7f\x80\u2028😀\x00\b\f\n\r\t')
def test_keys_hash_the_text_of_the_specification(seed: int, name: str) -> None:
    """ORD-1: how a name is escaped is part of the order."""
    digest = hashlib.blake2b(key_text(seed, "row", name).encode("ascii"), digest_size=8).digest()
    assert int(base_key(seed, "row", name)) == int.from_bytes(digest, "little")


class TestPermutation:
    """ORD-2: a keyed bijection of range(n), invertible and unbiased."""

    @given(st.integers(1, 3000) | st.integers(65500, 65600), KEYS)
    def test_is_a_bijection(self, n: int, key: int) -> None:
        """Every index has exactly one image."""
        images = permute(list(range(n)), n, key)
        assert sorted(images) == list(range(n))
        assert unpermute(images, n, key) == list(range(n))

    @given(st.integers(1, 2**61), KEYS, st.data())
    def test_equals_the_twin_at_any_size(self, n: int, key: int, data: st.DataObject) -> None:
        """P6: the kernel equals plain integers."""
        i = data.draw(st.integers(0, n - 1))
        image = permute([i], n, key)[0]
        assert image == order_twin.permute(i, n, key)
        assert unpermute([image], n, key) == [i]

    @given(st.integers(1, 70000), KEYS, st.data())
    def test_a_run_equals_one_by_one(self, n: int, key: int, data: st.DataObject) -> None:
        """The batch path equals the scalar path."""
        first = data.draw(st.integers(0, n - 1))
        count = data.draw(st.integers(0, min(n - first, 40)))
        assert permute_consecutive(first, count, n, key) == permute(list(range(first, first + count)), n, key)

    @pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
    def test_tiny_permutations_are_uniform(self, n: int) -> None:
        """Over many keys each order of a few elements is equally frequent (chi2/df near 1)."""
        keys, counts = 20_000, {}
        for key in range(keys):
            order = tuple(permute(list(range(n)), n, order_twin.mix(key)))
            counts[order] = counts.get(order, 0) + 1
        orders = int(np.prod(range(1, n + 1)))
        expected = keys / orders
        chi2 = sum((counts.get(order, 0) - expected) ** 2 / expected for order in counts)
        chi2 += expected * (orders - len(counts))
        assert chi2 / max(orders - 1, 1) < 1 + 5 * (2 / max(orders - 1, 1)) ** 0.5

    @pytest.mark.parametrize("n", [1000, 65535, 65536, 1 << 20, 10**9])
    def test_adjacent_indices_are_decorrelated(self, n: int) -> None:
        """1,024 adjacent indices, or keys, are spread over coarse buckets and residues as by chance."""
        for key in (1, 2, 3):
            images = np.array(permute_consecutive(0, min(1000, n), n, key))
            buckets = len(np.unique(images * 64 // n))
            residues = len(np.unique(images % 64))
            assert buckets == 64
            assert residues == 64
            steps = np.abs(np.diff(images))
            assert np.mean(steps == 1) < 0.01 + 2 / n
        first, second = permute_consecutive(0, min(1000, n), n, 1), permute_consecutive(0, min(1000, n), n, 2)
        assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


class TestShares:
    """ORD-3: weights are read exactly."""

    @given(st.dictionaries(NAMES, DECIMALS, min_size=1, max_size=50))
    def test_equal_the_twin_and_the_weights(self, weights: dict) -> None:
        """Shares equal the twin's; exact if the common denominator allows it, otherwise within one slot of 2**20."""
        shares = integer_shares(weights)
        assert shares == order_twin.integer_shares(weights)
        total, period = sum(map(Fraction, weights.values())), sum(shares.values())
        assert 0 < period <= MAX_PERIOD
        if period < MAX_PERIOD:
            assert all(Fraction(shares[name], period) == Fraction(weights[name]) / total for name in weights)

    @pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": "x"}, {"a": -1}, {"a": float("nan")}, {"a": float("inf")}])
    def test_impossible_weights_are_refused(self, weights: dict) -> None:
        """No weight above 0, a negative weight, or not a number: ValueError."""
        with pytest.raises(ValueError, match="expected"):
            integer_shares(weights)

    def test_a_float_means_its_decimal(self) -> None:
        """0.1 is 1/10, not the nearest binary fraction; a weight of 1e-6 is exact."""
        assert integer_shares({"a": 0.1, "b": 0.2}) == {"a": 1, "b": 2}
        assert integer_shares({"a": 1e-6, "b": 0.999999}) == {"a": 1, "b": 999_999}


class TestInterleave:
    """ORD-4: every prefix of the slots is within one of the shares (P4)."""

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    def test_equals_the_twin(self, shares: list[int]) -> None:
        """Slots and counts equal those of the plain rule."""
        named = {f"s{i:02d}": c for i, c in enumerate(shares)}
        table = interleave(tuple(shares))
        slots = order_twin.interleave(named)
        assert [f"s{i:02d}" for i in table.source] == slots
        assert table.earlier.tolist() == [slots[:n].count(slots[n]) for n in range(len(slots))]
        for i, name in enumerate(named):
            places = [n for n, slot in enumerate(slots) if slot == name]
            assert table.places[table.first[i] : table.first[i + 1]].tolist() == places
            assert [table.count(i, n) for n in range(len(slots) + 1)] == [
                sum(p < n for p in places) for n in range(len(slots) + 1)
            ]
            assert [table.place(i, j) for j in range(len(places))] == places

    @given(st.lists(st.integers(1, 3000), min_size=1, max_size=50))
    def test_is_within_one_of_the_target_at_every_prefix(self, shares: list[int]) -> None:
        """P4, Tijdeman's bound 1 - 1/(2k - 2), exactly."""
        table, period, k = interleave(tuple(shares)), sum(shares), len(shares)
        counts = np.zeros((k, period + 1), np.int64)
        for s in range(k):
            np.cumsum(table.source == s, out=counts[s, 1:])
        error = np.abs(counts * period - np.outer(shares, np.arange(period + 1)))
        assert int(error.max()) * max(2 * k - 2, 1) <= max(2 * k - 3, 0) * period

    @pytest.mark.parametrize("k", [2, 3, 10, 60, 200])
    def test_keeps_the_bound_at_the_largest_period(self, k: int) -> None:
        """P4 with a sum of 2**20 and weights down to 1e-6: int64 is sufficient."""
        weights = {f"s{i:03d}": str(Fraction(1, 10**6) if i % 2 else i + 1) for i in range(k)}
        weights = {name: float(Fraction(weight)) for name, weight in weights.items()}
        shares = list(integer_shares(weights).values())
        table, period = interleave(tuple(shares)), sum(shares)
        for s in range(0, k, max(k // 10, 1)):
            counts = np.cumsum(table.source == s)
            error = np.abs(counts * period - shares[s] * np.arange(1, period + 1))
            assert int(error.max()) * (2 * k - 2) <= (2 * k - 3) * period


@st.composite
def schedules(draw: st.DrawFn) -> tuple:
    """(stages, limits, on_exhausted, num_steps, skip_steps) of small runs."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    limits = {name: draw(st.integers(1, 60)) for name in names if draw(st.booleans())}
    stages, step = [], 0
    for _ in range(draw(st.integers(1, 4))):
        used = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        continues = bool(stages) and draw(st.booleans())
        shares = stages[-1].shares if continues else {name: draw(st.integers(1, 9)) for name in used}
        stages.append(Stage(step, draw(st.sampled_from([1, 4, 12])), shares, continues))
        step += draw(st.integers(1, 9))
    start = draw(st.integers(0, 9))
    skips = draw(st.sampled_from([(), ((start, start + 2),)]))
    return stages, limits, draw(st.sampled_from(["drop", "stop"])), draw(st.integers(1, 30)), skips


class TestSchedule:
    """ORD-5: arithmetic equals replay."""

    @given(schedules())
    def test_equals_counting_one_by_one(self, case: tuple) -> None:
        """Every cursor has the source and number that counting gives; the run ends at the same place (P3)."""
        stages, limits, on_exhausted, num_steps, skips = case
        laid = lay_out(stages, limits, on_exhausted, num_steps, skips)
        cursors = [
            (laid.cursor(stage.from_step), None if stage.continues else dict(stage.shares))
            for stage in stages
            if stage.from_step < num_steps
        ]
        expected = order_twin.stream(cursors, limits, on_exhausted, laid.cursor(num_steps))
        assert laid.end == len(expected)
        got = [laid.segments_in(n, n + 1)[0].at(n) for n in range(laid.end)]
        assert got == expected
        for n in range(laid.end + 1):
            counts = {name: number for name, number in laid.counts(n).items() if number}
            assert counts == {name: sum(s == name for s, _ in expected[:n]) for name in {s for s, _ in expected[:n]}}

    @given(schedules())
    def test_is_within_one_inside_every_segment(self, case: tuple) -> None:
        """P4 inside every segment, at every cursor, also if the batch size changes inside it."""
        laid = lay_out(*case)
        for segment in laid.segments:
            period = sum(segment.shares.values())
            for n in range(segment.start, segment.end):
                for name, share in segment.shares.items():
                    assert abs(segment.count(name, n) * period - share * (n - segment.start)) < period

    @given(schedules(), st.integers(0, 5))
    def test_rows_equal_the_twin(self, case: tuple, seed: int) -> None:
        """The kernel's rows of a step equal the twin's permuted cursors (ORD-6)."""
        laid = lay_out(*case)
        names = {name: i for i, name in enumerate(sorted({n for stage in laid.stages for n in stage.shares}))}
        key = order_twin.base_key(seed, "step")
        for step in range(laid.num_steps):
            cursor, size = laid.cursor(step), laid.stage(step).global_batch_size
            tables = SegmentTables(laid.segments_in(cursor, cursor + size), names)
            for shuffle in (True, False):
                tables.begin(step, cursor, laid.end, size, int(np.uint64(key).astype(np.int64)) if shuffle else None)
                out = tables.locate([(step, 0, size)])
                rows = order_twin.step_rows(seed, step, cursor, size, shuffle)
                expected = [laid.segments_in(n, n + 1)[0].at(n) for n in rows]
                assert out.tolist() == [[names[name], number] for name, number in expected]

    @given(schedules())
    def test_skipped_steps_move_no_other(self, case: tuple) -> None:
        """Steps keep their numbers: next_step passes over a skip, and step_at does not count it."""
        laid = lay_out(*case)
        given_steps = [step for step in range(40) if not laid.is_skipped(step)]
        for step in range(30):
            assert laid.next_step(step) == min(s for s in given_steps if s >= step)
            assert step - laid.num_skipped(step) == sum(s < step for s in given_steps)

    @given(schedules(), st.sampled_from([1, 4, 12]))
    def test_a_change_of_batch_size_moves_no_sequence(self, case: tuple, size: int) -> None:
        """The sequences are the same: other batch sizes without new shares only cut the run in other places."""
        stages, limits, on_exhausted, num_steps, skips = case
        laid = lay_out(stages, limits, on_exhausted, num_steps, skips)
        other = [*stages, Stage(stages[-1].from_step + 2, size, stages[-1].shares, continues=True)]
        again = lay_out(other, limits, on_exhausted, num_steps, skips)
        for n in range(min(laid.end, again.end)):
            assert laid.segments_in(n, n + 1)[0].at(n) == again.segments_in(n, n + 1)[0].at(n)

    def test_error_stops_at_the_first_sequence_too_many(self) -> None:
        """Under `error` the schedule says which source would give one sequence too many, and where."""
        laid = lay_out([Stage(0, 4, {"a": 1})], {"a": 10}, "error", 3)
        assert laid.exhausted == (10, "a")
        assert laid.num_steps == 2


class TestWindows:
    """ORD-7: an epoch of `concat` uses every token at most once, all except T mod L of them (P3)."""

    @given(st.integers(1, 500), st.integers(1, 40), st.integers(0, 3), st.integers(0, 99))
    def test_an_epoch_tiles_the_circle(self, num_tokens: int, length: int, epoch: int, seed: int) -> None:
        """The windows of an epoch do not overlap, and exactly T mod L tokens are unused."""
        count = num_tokens // length
        if count == 0:
            return
        starts = [window_start(seed, "s", num_tokens, length, epoch * count + i) for i in range(count)]
        given_tokens = [(start + j) % num_tokens for start in starts for j in range(length)]
        assert len(set(given_tokens)) == len(given_tokens) == num_tokens - num_tokens % length

    @given(st.integers(1, 2**45), st.integers(1, 2**17), st.integers(0, 2**50), st.integers(-9, 9))
    def test_equals_the_twin(self, num_tokens: int, length: int, k: int, seed: int) -> None:
        """P6, for any size."""
        length = min(length, num_tokens)
        for shuffle in (True, False):
            expected = order_twin.window_start(seed, "näme", num_tokens, length, k, shuffle)
            assert window_start(seed, "näme", num_tokens, length, k, shuffle) == expected


def test_without_shuffle_sequences_follow_the_stream(make_store: Callable[..., Path]) -> None:
    """ORD-9: every permutation is the identity and every offset 0, in every epoch."""
    documents = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11]]
    path = make_store("web", documents)
    plan = Plan.of(path, sequence_length=4, global_batch_size=1, packing="concat", shuffle=False, num_steps=4)
    tokens = [plan.batch(step)["input_ids"].reshape(-1).tolist() for step in range(4)]
    assert tokens == [[1, 2, 3, 4], [5, 6, 7, 8]] * 2  # 11 tokens are 2 sequences per epoch
