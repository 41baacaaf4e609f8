"""The sequences of packed sources against plain-Python twins (ORD-15), their inverse, and how often neighbours
repeat.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches.scenes import web_lengths
from tests.support.calls import (
    ITS_SLOT,
    ROOM,
    SEQUENCE,
    PackedSource,
    bins,
    member,
    packed_sequences,
    permute,
    permute_each,
)
from tests.support.twins import order as order_twin
from tests.support.twins import packing as packing_twin
from tests.support.twins.packings import EPOCHS, KEYS, SEEDS, classes_of, documents, jitter, pools, sft_lengths
from tokenstore.order.inverse import BinIndex, circle_offset, place_before
from tokenstore.order.keys import base_key
from tokenstore.order.packing import num_best_fit, pack, pack_singles


def share_met_again(source: PackedSource, epoch: int) -> float:
    """The share of the pairs of pieces in one sequence of `epoch` that share a sequence again in the next epoch."""
    starts = np.cumsum(source.classes.counts) - source.classes.counts
    now, then = np.full((2, source.classes.num_pieces), -1)
    for sequences, e in ((now, epoch), (then, epoch + 1)):
        rows = source.rows(e)
        sequences[starts[rows[:, ROOM]] + rows[:, ITS_SLOT]] = rows[:, SEQUENCE]
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
    """ORD-14, ORD-15: documents have new neighbours in every epoch."""

    def test_few_pairs_of_ten_thousand_documents_repeat(self) -> None:
        """10,000 conversations: at most 0.2 % of the pairs of an epoch are pairs of the next one."""
        source = PackedSource([member(sft_lengths(1, 10**4))], 4096, 1, "chat", "best_fit", True)
        assert max(share_met_again(source, epoch) for epoch in range(4)) <= 0.002

    def test_few_pairs_of_a_million_documents_repeat(self) -> None:
        """A million web documents: at most 0.02 %."""
        source = PackedSource([member(web_lengths(1, 10**6))], 2048, 1, "web", "best_fit", True)
        assert share_met_again(source, 0) <= 0.0002


class TestSequences:
    """ORD-15: from the number of a sequence to the pieces in its row."""

    @given(pools(most=12), SEEDS, st.text("aé", max_size=2), EPOCHS, st.booleans(), st.data())
    def test_equal_the_twin(
        self, pool: tuple, seed: int, name: str, epoch: int, shuffle: bool, data: st.DataObject
    ) -> None:
        """P6: member, document and tokens of every piece, in the twin's order, in any epoch."""
        length, members = pool
        packing = data.draw(st.sampled_from(["best_fit", "best_fit", "none"]))
        count = packing_twin.classes_of(members, length, packing)[2]
        first = data.draw(st.integers(0, max(count - 20, 0)))
        ks = [e * count + i for e in {0, epoch} for i in range(first, min(first + 20, count))]
        expected = [packing_twin.packed_sequence(members, length, seed, name, k, packing, shuffle) for k in ks]
        assert packed_sequences(members, length, seed, name, ks, packing, shuffle) == expected

    @given(
        st.lists(st.tuples(st.integers(1, 300) | st.integers(65_530, 65_540) | st.integers(1, 2**61), KEYS)), st.data()
    )
    def test_permuting_together_equals_one_by_one(self, domains: list[tuple], data: st.DataObject) -> None:
        """ORD-2, for small and large domains in one call."""
        numbers = [data.draw(st.integers(0, n - 1)) for n, _ in domains]
        expected = [order_twin.permute(x, n, key) for x, (n, key) in zip(numbers, domains, strict=True)]
        assert permute_each([n for n, _ in domains], [key for _, key in domains], numbers) == expected


class TestInverse:
    """The inverse of the order."""

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
        """With 10**5 documents, and with 10**12."""
        classes = classes_of(web_lengths(6, 10**5), length, times)
        made, rng = pack(classes, num_best_fit(classes), jitter(4), 2, True), np.random.default_rng(0)
        index = BinIndex(made)
        numbers = rng.integers(0, made.starts[-1], 300)
        for number, content in zip(numbers, bins(made, classes, numbers), strict=True):
            assert {index.bin_of(v, y) for v, y in content} == {number}

    @given(st.integers(1, 2**61), KEYS, st.integers(0, 2**40), st.integers(-1, 1) | st.integers(2, 200_000), st.data())
    def test_places_before_are_the_inverse_of_permute(
        self, size: int, base: int, counter: int, inner: int, data: st.DataObject
    ) -> None:
        """With the counted key of ORD-1, and for classes with the counted key of that key."""
        numbers = data.draw(st.lists(st.integers(0, size - 1), max_size=8))
        key = order_twin.counted_key(base, counter)
        key = key if inner < 0 else order_twin.counted_key(key, inner)
        images = np.array(permute(numbers, size, key), np.int64)
        assert place_before(images, size, np.uint64(base), counter, inner).tolist() == numbers

    @given(st.integers(1, 2**61), SEEDS, EPOCHS)
    def test_circle_offset_equals_the_twin(self, num_tokens: int, seed: int, epoch: int) -> None:
        """ORD-7."""
        expected = order_twin.counted_key(order_twin.base_key(seed, "offset", "a"), epoch) % num_tokens
        assert circle_offset(num_tokens, base_key(seed, "offset", "a"), epoch) == expected
