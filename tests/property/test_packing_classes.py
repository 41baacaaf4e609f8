"""The pieces of packed sources against plain-Python twins (ORD-12, ORD-13): sorting, repeats, length classes."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benches.scenes import web_lengths
from tests.support.calls import entries_of, member, positions_of
from tests.support.twins import packing as packing_twin
from tests.support.twins.packings import EPOCHS, classes_of, counts_of, factors, pools
from tokenstore.order.classes import length_classes, slot_of
from tokenstore.order.repeats import copies_of
from tokenstore.order.sorting import LONG, count_lengths, place_by_length


class TestRepeats:
    """ORD-12: which documents an epoch contains, and how often."""

    @given(st.integers(1, 40), factors(), EPOCHS)
    def test_copies_and_positions_equal_the_twin(self, num_documents: int, factor: tuple, epoch: int) -> None:
        """A copy is the twin's document, or empty; a document's copies are those that are it."""
        p, q = factor
        expected = [packing_twin.position(k, epoch, num_documents, p, q) for k in range(-(-num_documents * p // q))]
        found = positions_of(range(len(expected)), epoch, p, q)
        assert member([1] * num_documents, p, q).num_copies == len(expected)
        assert [x if x < num_documents else None for x in found] == expected
        for x in range(num_documents):
            assert list(copies_of(x, epoch, p, q)) == [k for k, at in enumerate(expected) if at == x]

    @given(
        st.integers(1, 10**12),
        factors(10**6, 10**4),
        st.integers(0, 30) | st.integers(2**50, 2**62),
        st.fractions(0, 1),
    )
    @example(10**12, (999_999, 10_000), 2**62, Fraction(1))
    @example(10**12, (1, 10_000), 2**62, Fraction(1))
    def test_are_inverse_at_any_size(self, num_documents: int, factor: tuple, epoch: int, share: Fraction) -> None:
        """P6: 10**12 documents, factors from 0.0001 to 10**6: int64 is sufficient, and the formula equals the
        specification.
        """
        p, q = factor
        x = int(share * (num_documents - 1))
        copies = copies_of(x, epoch, p, q)
        assert len(copies) == packing_twin.given_before(epoch + x + 1, p, q) - packing_twin.given_before(
            epoch + x, p, q
        )
        some = [*copies[:3], *copies[-3:]]
        assert positions_of(some, epoch, p, q) == [x] * len(some)
        copy = int(share * (-(-num_documents * p // q) - 1))
        at = -(-(epoch * p // q + copy + 1) * q // p) - 1 - epoch
        assert positions_of([copy], epoch, p, q) == [at]
        assert copy in copies_of(at, epoch, p, q)
        assert positions_of([copy], 0, p, q)[0] >= at

    @pytest.mark.parametrize(("p", "q"), [(2, 4), (0, 1), (1, 0), (-1, 2), (3, 3)])
    def test_factors_not_in_lowest_terms_are_refused(self, p: int, q: int) -> None:
        """ORD-12 requires lowest terms."""
        with pytest.raises(ValueError, match="lowest terms"):
            member([1], p, q)


class TestClasses:
    """ORD-13: the slots of the length classes."""

    @given(pools())
    def test_equal_the_twin(self, pool: tuple) -> None:
        """Counts equal the twin's, entry_of finds the (member, copy, j) of every slot, and slot_of inverts it."""
        length, members = pool
        expected = packing_twin.slots(members, length)
        classes = length_classes([member(*each) for each in members], length)
        assert counts_of(classes) == {v: len(places) for v, places in expected.items()}
        assert classes.num_pieces == sum(map(len, expected.values()))
        assert classes.num_tokens == sum(v * len(places) for v, places in expected.items())
        rooms = [packing_twin.copy_rooms(*each) for each in members]
        for v, places in expected.items():
            entries = entries_of(classes, v, range(len(places)))
            for y, (at, entry) in enumerate(zip(places, entries, strict=True)):
                slot, first_copy, piece, at_member = entry.tolist()
                copy = y - slot
                if v == length:
                    copy, piece = divmod(copy, piece)
                assert (at_member, first_copy + copy, piece) == at
                assert slot_of(classes, *at, rooms[at[0]][at[1]]) == (v, y)

    def test_are_as_large_as_the_number_of_lengths(self) -> None:
        """10**12 documents need as many entries as a million."""
        lengths = web_lengths(1, 10**5)
        one, many = classes_of(lengths, 2048), classes_of(lengths, 2048, 10**7)
        assert len(many.entries) >> many.wide == len(one.entries)
        assert np.array_equal(many.counts, one.counts * 10**7)
        assert many.num_tokens == one.num_tokens * 10**7


class TestSorting:
    """ORD-12: documents by (tokens, id)."""

    @given(
        st.lists(st.integers(1, 9) | st.integers(1, LONG + 3) | st.sampled_from([LONG - 1, LONG, 2**45])),
        st.sampled_from([1, 2, 7, 10, LONG]),
        st.data(),
    )
    def test_equals_sorting(self, lengths: list[int], longest: int, data: st.DataObject) -> None:
        """One block of the boundaries at a time; documents of `longest` tokens or more are last, by number."""
        starts = np.cumsum([0, *lengths])
        cuts = sorted({0, len(lengths), *data.draw(st.lists(st.integers(0, len(lengths)), max_size=3))})
        counts = np.zeros(longest + 1, np.int64)
        blocks = [(first, starts[first : stop + 1]) for first, stop in pairwise(cuts)]
        for _, block in blocks:
            assert count_lengths(block, counts)
        assert {n: counts[n] for n in np.flatnonzero(counts)} == {
            n: sum(min(x, longest) == n for x in lengths) for n in {min(x, longest) for x in lengths}
        }
        places = np.cumsum(counts) - counts
        for dtype in (np.uint32, np.int64):
            out, moving = np.full(len(lengths), 2**31, dtype), places.copy()
            for first, block in blocks:
                place_by_length(block, first, moving, out)
            assert out.tolist() == sorted(range(len(lengths)), key=lambda i: (min(lengths[i], longest), i))
            assert np.array_equal(moving, places + counts)

    @pytest.mark.parametrize("starts", [[0, 3, 3, 9], [0, 3, 2], [5, 0]])
    def test_a_document_without_tokens_is_reported(self, starts: list[int]) -> None:
        """Or with a negative number of tokens: the boundaries are damaged."""
        assert not count_lengths(np.array(starts, np.int64), np.zeros(LONG + 1, np.int64))
