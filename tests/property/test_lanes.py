"""Lanes (ORD-20): a bijection with an inverse, equal to the twin, that spreads a step over blocks and lanes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.calls import batch_windows
from tests.support.twins import lanes as lanes_twin
from tests.support.twins import order as order_twin
from tokenstore.batches import tables
from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.lanes import MOST_LANES, Lanes, lane_numbers, lane_windows, owner_lanes

SIZES = st.integers(1, 2**40) | st.integers(1, 70_000)
EPOCHS = st.integers(0, 2**40)
SMALL = st.integers(1, 400)
EDGES = [  # N, s, W
    (1, 1, 1),
    (1, 9, 9),
    (10, 3, 2),
    (10, 10, 3),
    (10, 11, 3),  # one block
    (97, 8, 200),  # a prime number of windows; more lanes than windows
    (97, 97, 1),
    (97, 1, 97),
    (96, 8, 5),  # the last block is as long as the others
    (96, 95, 2),  # the last block has one window
    (65_537, 1, 64),  # two kinds of permutation
    (65_600, 65_536, 2),
]


def keys(seed: int, name: str) -> tuple[np.uint64, np.uint64]:
    return base_key(seed, "block", name), base_key(seed, "place", name)


def check(n: int, s: int, w: int, seed: int, epoch: int) -> None:
    lanes, bases = Lanes.of(n, s, w), keys(seed, "web")
    found = lane_windows(lanes, np.arange(n), epoch, *bases)
    assert sorted(found.tolist()) == list(range(n))
    assert lane_numbers(lanes, found, epoch, *bases).tolist() == list(range(n))
    if n <= 2000:
        assert found.tolist() == lanes_twin.windows(seed, "web", n, s, w, epoch)


@pytest.mark.parametrize(("n", "s", "w"), EDGES)
def test_edges_are_bijections_and_have_inverses(n: int, s: int, w: int) -> None:
    """ORD-20: every window of an epoch is at one number, in the smallest and the oddest shapes too."""
    check(n, s, w, 3, 0)


@given(SMALL, SMALL, SMALL, st.integers(), EPOCHS)
def test_equal_the_twin_in_any_shape(n: int, s: int, w: int, seed: int, epoch: int) -> None:
    """ORD-20: the kernels equal a list that is cut into stretches."""
    check(n, s, w, seed, epoch)


@given(st.integers(1, 2**48), st.integers(1, 2**48) | st.integers(1, 5000), st.integers(1, MOST_LANES), st.data())
@example(2**40 + 9, 1024, 4096, None)
@example(2**48, 2**48, MOST_LANES, None)
@example(2**48, 1, MOST_LANES, None)
def test_large_epochs_equal_the_formulas(n: int, s: int, w: int, data: st.DataObject | None) -> None:
    """ORD-20: no number overflows or becomes a float at any size that a plan allows."""
    lanes, bases = Lanes.of(n, s, w), keys(5, "web")
    some = [0, n // 3, n - 1] + ([data.draw(st.integers(0, n - 1))] if data else [])
    found = lane_windows(lanes, np.array(some), 7, *bases)
    assert lane_numbers(lanes, found, 7, *bases).tolist() == some
    assert found.tolist() == [lanes_twin.window(5, "web", n, s, w, 7, i) for i in some]


@given(SMALL, SMALL, SMALL)
def test_lanes_are_a_permutation_of_a_turn(n: int, s: int, w: int) -> None:
    """ORD-20: W successive numbers have W different lanes, as in the twin, and are spread over ranges of lanes."""
    lanes = Lanes.of(n, s, w)
    found = owner_lanes(lanes, np.arange(n)).tolist()
    assert found == [lanes_twin.owner(i, n, s, w) for i in range(n)]
    assert sorted(found[: lanes.count]) == list(range(lanes.count))


@given(st.integers(8, 4096), st.integers(2, 8))
def test_few_numbers_fall_evenly_on_node_groups(w: int, groups: int) -> None:
    """ORD-20: of any few successive numbers, each group of lanes owns its share, within 4."""
    owners = owner_lanes(Lanes.of(1 << 20, 1, w), np.arange(3 * w)) * groups // w
    for size in (groups, 4 * groups):
        for first in (0, w // 3, w - 1):
            counts = np.bincount(owners[first : first + size], minlength=groups)
            assert abs(counts - size / groups).max() <= 4


@given(st.integers(1, 10**6), st.integers(1, 10**7), st.integers(1, 10**6))
def test_settings_with_one_order_are_equal(n: int, s: int, w: int) -> None:
    """ORD-20: a block has at most all windows, and there are at most as many lanes as blocks."""
    lanes = Lanes.of(n, s, w)
    assert lanes == Lanes.of(n, lanes.block, lanes.count)
    assert lanes.block <= n
    assert lanes.count <= lanes.num_blocks


def table_of(count: int, lanes: Lanes | None, name: str) -> list[int]:
    """The row of a source in the table of sources."""
    row = np.zeros(tables.SOURCE_COLUMNS, np.int64)
    for purpose in ("sequence", "block", "place"):
        row[getattr(tables, f"{purpose.upper()}_KEY")] = as_bits(base_key(0, purpose, name))
    row[[tables.NUM_SEQUENCES, tables.HAS_LANES, tables.SHORT_EPOCH]] = count, lanes is not None, -1
    if lanes is not None:
        row[tables.SHAPE :] = lanes.shape
    return row.tolist()


@given(
    st.lists(st.tuples(SIZES, SIZES, st.none() | st.integers(1, MOST_LANES)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**40)), min_size=1, max_size=20),
)
def test_a_batch_gets_the_windows_of_its_numbers(shapes: list, places: list) -> None:
    """ORD-20: many rows at once, of sources with and without lanes and of several epochs, as one at a time."""
    lanes = [None if w is None else Lanes.of(n, s, w) for n, s, w in shapes]
    table = np.array([table_of(shapes[i][0], each, f"s{i}") for i, each in enumerate(lanes)], np.int64)
    places = [(source % len(shapes), epoch, i) for source, epoch, i in places]
    rows = [(source, epoch * shapes[source][0] + i % shapes[source][0]) for source, epoch, i in places]
    expected = []
    for source, k in rows:
        epoch, number = divmod(k, shapes[source][0])
        if lanes[source] is None:
            key = order_twin.counted_key(order_twin.base_key(0, "sequence", f"s{source}"), epoch)
            expected.append(order_twin.permute(number, shapes[source][0], key))
        else:
            expected.append(lanes_twin.window(0, f"s{source}", *shapes[source], epoch, number))
    assert batch_windows(table, [*rows, (-1, 0), (0, -1)]) == [*expected, 0, 0]
