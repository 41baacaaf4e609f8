"""The blocks that lanes read (ORD-20), from the plan alone: every sequence has its block, in order, and two blocks per lane suffice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenstore.order.keys import base_key
from tokenstore.order.lane_blocks import LaneBlocks, Slots, Visit
from tokenstore.order.lanes import Lanes, lane_windows

BLOCK_BASE, PLACE_BASE = base_key(1, "block", "x"), base_key(1, "place", "x")
shapes = st.builds(Lanes.of, st.integers(1, 200), st.integers(1, 30), st.integers(1, 30))


def numbers_of(visit: Visit, lanes: Lanes) -> range:
    """The sequences that a visit reads."""
    return range(visit.first, visit.last + 1, lanes.count)


@given(shapes)
def test_the_visit_of_a_sequence_reads_its_window(lanes: Lanes) -> None:
    """In two epochs, with a last block that is shorter; visits of an epoch: at most one per block and one more per lane."""
    blocks, size = LaneBlocks(lanes, BLOCK_BASE), lanes.num_windows
    for epoch in 0, 1:
        windows = lane_windows(lanes, np.arange(size), epoch, BLOCK_BASE, PLACE_BASE)
        visits = set()
        for i, window in enumerate(windows.tolist()):
            visit = blocks.visit_of(epoch * size + i)
            assert epoch * size + i in numbers_of(visit, lanes)
            assert (visit.epoch, visit.window) == (epoch, window // lanes.block * lanes.block)
            assert visit.size == min(lanes.block, size - visit.window)
            visits.add(visit)
        assert len(visits) <= lanes.num_blocks + lanes.count - 1


@given(shapes, st.integers(0, 300), st.integers(0, 400), st.integers(1, 4))
def test_visits_come_in_order_and_each_sequence_is_in_one(lanes: Lanes, start: int, length: int, groups: int) -> None:
    """From any sequence to any other, for stretches that are divided among groups."""
    blocks, seen = LaneBlocks(lanes, BLOCK_BASE), set()
    for group in range(groups):
        stretches = range(group, lanes.count, groups)
        visits = list(blocks.visits(stretches, start, start + length))
        read = [[k for k in numbers_of(visit, lanes) if start <= k < start + length] for visit in visits]
        assert all(read)
        assert [numbers[0] for numbers in read] == sorted(numbers[0] for numbers in read)
        assert all(k % lanes.num_windows % lanes.count in stretches for numbers in read for k in numbers)
        seen |= {k for numbers in read for k in numbers}
    assert seen == set(range(start, start + length))


@given(shapes, st.integers(0, 300), st.integers(1, 20), st.integers(0, 300))
def test_two_blocks_per_stretch_hold_every_sequence_of_a_step(lanes: Lanes, start: int, batch: int, more: int) -> None:
    """If a step has at most a sequence of each block per stretch: no block is missing, and no more than that are held."""
    batch = min(batch, lanes.count)
    blocks, stop = LaneBlocks(lanes, BLOCK_BASE), start + more
    slots = Slots(blocks.visits(range(lanes.count), start, stop), 2 * lanes.count)
    held: set[Visit] = set()
    for step in range(start, stop, batch):
        over, added = slots.move_to(step)
        held = held - set(over) | set(added)
        assert set(slots.open.values()) == held
        assert len(held) <= 2 * lanes.count
        assert all(visit.last >= step for visit in held)
        assert {blocks.visit_of(k) for k in range(step, min(step + batch, stop))} <= held
        assert slots.horizon is None or all(visit.first < slots.horizon for visit in held)
    assert slots.move_to(1 << 40)[1] == []
    assert not slots.open
