"""The blocks that lanes read (ORD-20): which blocks, in which order, from which sequence to which. Pure functions of the plan.

A lane reads a stretch of the line, so it visits one block after another. The first and the last block of a stretch may be
shared with its neighbours, which read their part of it at another time: that is another visit. So an epoch has at most one
visit per block and one more per lane.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tokenstore.jit import kernel
from tokenstore.order.keys import as_bits, counted_key
from tokenstore.order.lanes import Lanes
from tokenstore.order.permutation import permute, unpermute


class Visit(NamedTuple):
    """A lane reads a block. Numbers are those of sequences of the source in the run: epoch x N + number in the epoch.

    Attributes:
        first, last: numbers of its first and last sequence. `first` identifies the visit.
        epoch: the epoch.
        window: first window of the block.
        size: windows of the block.
    """

    first: int
    last: int
    epoch: int
    window: int
    size: int


@kernel
def _last_block_place(key_bits: int, epoch: int, num_blocks: int, out: np.ndarray) -> None:
    """Write the place of the last block on the line of an epoch to int64 out[0]. Only such kernels are compiled once for all."""
    out[0] = unpermute(num_blocks - 1, num_blocks, counted_key(np.uint64(key_bits), epoch))


@kernel
def _block_at(key_bits: int, epoch: int, num_blocks: int, out: np.ndarray) -> None:
    """Replace the place in int64 out[0] by the block that is there."""
    out[0] = permute(out[0], num_blocks, counted_key(np.uint64(key_bits), epoch))


class LaneBlocks:
    """The visits of the lanes of a source.

    Attributes:
        lanes: the lanes of the source.
    """

    def __init__(self, lanes: Lanes, block_base: np.uint64):
        """block_base: base key "block" of the source (ORD-1)."""
        self.lanes, self._key_bits, self._out = lanes, as_bits(block_base), np.zeros(1, np.int64)
        self._turns, self._longer = divmod(lanes.num_windows, lanes.count)
        self._gap = lanes.num_blocks * lanes.block - lanes.num_windows  # windows that the last block lacks
        self._known_epoch, self._short = -1, 0

    def visit_of(self, number: int) -> Visit:
        """The visit that reads a sequence of the source."""
        epoch, i = divmod(number, self.lanes.num_windows)
        turn, stretch = divmod(i, self.lanes.count)
        return self._visit(epoch, stretch, turn)

    def visits(self, stretches: Sequence[int], start: int, stop: int | None) -> Iterator[Visit]:
        """The visits of some stretches that read sequences in [start, stop), in order of the first of these.

        stop: None for a run without end.
        """
        number_of_windows = self.lanes.num_windows
        epoch = start // number_of_windows
        while stop is None or epoch * number_of_windows < stop:
            first = epoch * number_of_windows
            end = number_of_windows if stop is None else min(stop - first, number_of_windows)
            yield from self._visits_in(epoch, stretches, max(start - first, 0), end)
            epoch += 1

    def _visits_in(self, epoch: int, stretches: Sequence[int], start: int, stop: int) -> Iterator[Visit]:
        """The visits of an epoch that read its numbers [start, stop)."""
        count, base = self.lanes.count, epoch * self.lanes.num_windows
        coming = []  # (number in the epoch that a stretch reads next, stretch)
        for stretch in stretches:
            number = stretch + max(-((stretch - start) // count), 0) * count
            if number < stop:
                coming.append((number, stretch))
        heapq.heapify(coming)
        while coming:
            number, stretch = coming[0]
            visit = self._visit(epoch, stretch, number // count)
            yield visit
            after = visit.last - base + count
            if after < stop:
                heapq.heapreplace(coming, (after, stretch))
            else:
                heapq.heappop(coming)

    def _visit(self, epoch: int, stretch: int, turn: int) -> Visit:
        """The visit of a stretch that contains its window number `turn`."""
        self._look_up(epoch)
        lanes = self.lanes
        begin = stretch * self._turns + min(stretch, self._longer)
        end = begin + self._turns + (stretch < self._longer)
        x = begin + turn
        place = (x + self._gap if x >= self._end_of(self._short) else x) // lanes.block
        low, high = max(self._end_of(place - 1), begin), min(self._end_of(place), end)
        base = epoch * lanes.num_windows + stretch
        self._out[0] = place
        _block_at(self._key_bits, epoch, lanes.num_blocks, self._out)
        window = int(self._out[0]) * lanes.block
        size = lanes.block - (self._gap if place == self._short else 0)
        first, last = (base + (edge - begin) * lanes.count for edge in (low, high - 1))
        return Visit(first, last, epoch, window, size)

    def _end_of(self, place: int) -> int:
        """The place on the line after the last window of the block at `place`; 0 for -1."""
        return (place + 1) * self.lanes.block - (self._gap if place >= self._short else 0)

    def _look_up(self, epoch: int) -> None:
        """Compute what is the same in a whole epoch."""
        if epoch != self._known_epoch:
            _last_block_place(self._key_bits, epoch, self.lanes.num_blocks, self._out)
            self._short, self._known_epoch = int(self._out[0]), epoch


class Slots:
    """Which visits have their block in a cache of `room` blocks: the next ones, from the first that is not over.

    Attributes:
        open: the visits that have a place, by `first`.
        horizon: number of the first sequence whose visit may have no place yet.
    """

    def __init__(self, visits: Iterator[Visit], room: int):
        """visits: in order of their next sequence."""
        self._visits, self._room = visits, room
        self._next = next(visits, None)
        self._by_last: list[tuple[int, int]] = []
        self.open: dict[int, Visit] = {}

    def move_to(self, number: int) -> tuple[list[Visit], list[Visit]]:
        """Every sequence before `number` was consumed. Returns the visits that are over, and those that get a place now."""
        over, added = [], []
        while self._by_last and self._by_last[0][0] < number:
            over.append(self.open.pop(heapq.heappop(self._by_last)[1]))
        while self._next is not None and (self._next.last < number or len(self.open) < self._room):
            visit, self._next = self._next, next(self._visits, None)
            if visit.last >= number:
                self.open[visit.first] = visit
                heapq.heappush(self._by_last, (visit.last, visit.first))
                added.append(visit)
        return over, added

    @property
    def horizon(self) -> int | None:
        """Number of the first sequence of the next visit that has no place yet; None if there is none."""
        return None if self._next is None else self._next.first
