"""Locates rows (ORD-5, ORD-6): from a row of a step to a source and the number of a sequence in that source."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numba import carray

from tokenstore.intrinsics import int32_at, int64_at
from tokenstore.jit import inline_kernel, kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.packed import permute_each
from tokenstore.order.schedule import Segment

# Words of the block that the kernel takes as an argument. Step FIRST_STEP begins at cursor CURSOR; it and the steps
# after it have BATCH_SIZE sequences each. The run ends at cursor END. If SHUFFLED is 1, STEP_KEY is the base key for
# the shuffle of steps. The other words are addresses and sizes of the arrays of SegmentTables
FIRST_STEP, CURSOR, END, BATCH_SIZE, STEP_KEY, SHUFFLED = range(6)
SEGMENTS, NUM_SEGMENTS, COUNTS, NUM_SOURCES, NUMBERS, SOURCES, EARLIER, NUM_SLOTS = range(6, 14)
BLOCK_SIZE = 14
_NUMBERS, _SIZES, _KEYS = range(3)  # rows of the scratch uint64[3, n]; it has one column per row of a step


class SegmentTables:
    """The segments of some consecutive steps as arrays. Nearly always it is one segment.

    Attributes:
        segments: int64[m, 3], of each segment its first cursor, its period, and the index of its first slot in
            `sources`.
        counts: int64[2, m, num_sources], sequences of each source before the segment, and shares.
        numbers: int32[m, num_sources], the number in the plan of the segment's i-th source.
        sources, earlier: int32[sum of periods], `source` and `earlier` of all slots; see `Interleave`.
        block: int64[BLOCK_SIZE], see the words above.
        address: of `block`.
    """

    def __init__(self, segments: Sequence[Segment], numbers: Mapping[str, int]):
        """Copy the tables of `segments`; `numbers` has the number of every source of the plan."""
        tables = [segment.table for segment in segments]
        self.counts = np.zeros((2, len(segments), len(numbers)), np.int64)
        self.numbers = np.zeros((len(segments), len(numbers)), np.int32)
        for i, segment in enumerate(segments):
            for name, number in numbers.items():
                self.counts[:, i, number] = segment.base.get(name, 0), segment.shares.get(name, 0)
            self.numbers[i, : len(segment.names)] = [numbers[name] for name in segment.names]
        periods = [table.period for table in tables]
        first = np.cumsum([0, *periods[:-1]])
        self.segments = np.array([[segment.start for segment in segments], periods, first], np.int64).T.copy()
        if len(tables) == 1:  # the usual case: avoids a copy of up to 8 MB
            self.sources, self.earlier = tables[0].source, tables[0].earlier
        else:
            self.sources = np.concatenate([table.source for table in tables])
            self.earlier = np.concatenate([table.earlier for table in tables])
        self.block = np.zeros(BLOCK_SIZE, np.int64)
        self.block[SEGMENTS:] = (
            *(self.segments.ctypes.data, len(segments), self.counts.ctypes.data, len(numbers)),
            *(self.numbers.ctypes.data, self.sources.ctypes.data, self.earlier.ctypes.data, sum(periods)),
        )
        self.address = self.block.ctypes.data

    def begin(self, step: int, cursor: int, end: int, batch_size: int, step_key: int | None) -> None:
        """Set the step from which `locate` counts.

        Args:
            step: a step; the steps that `locate` gets are this one or later, with the same batch size.
            cursor: its first sequence.
            end: cursor at which the run ends.
            batch_size: sequences per step.
            step_key: base key for the shuffle of steps, as int64; None without shuffle.
        """
        self.block[: SHUFFLED + 1] = step, cursor, end, batch_size, step_key or 0, int(step_key is not None)

    def locate(self, places: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Locate rows.

        places: (step, first row, number of rows, ...) of each range of rows, all of the same length.

        Returns: int64[n, 2], source and sequence number of all rows, one range after the other. Source -1 is a row of
        padding, at or after the end of the run.
        """
        numbers = np.fromiter(chain.from_iterable(places), np.int64, len(places) * len(places[0]))
        num_rows = sum([place[2] for place in places])  # a list is faster than a generator
        rows, keys = np.empty((num_rows, 2), np.int64), np.empty((3, num_rows), np.uint64)
        locate_rows(self.block, numbers.reshape(len(places), -1), keys, rows)
        return rows


@inline_kernel
def _shuffle_rows(block: np.ndarray, places: np.ndarray, keys: np.ndarray) -> None:
    """Write the shuffled number of each row in its step to keys[_NUMBERS]."""
    count = 0
    for p in range(places.shape[0]):
        step_key = counted_key(np.uint64(block[STEP_KEY]), places[p, 0])
        for row in range(places[p, 1], places[p, 1] + places[p, 2]):
            keys[_NUMBERS, count], keys[_SIZES, count] = np.uint64(row), np.uint64(block[BATCH_SIZE])
            keys[_KEYS, count] = step_key
            count += 1
    if block[SHUFFLED]:
        permute_each(keys[_SIZES, :count], keys[_KEYS, :count], keys[_NUMBERS, :count])


@inline_kernel
def locate_each(block: np.ndarray, places: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
    """Locate all rows of some ranges.

    The shuffle of all rows is one call of `permute_each`, which is vectorized. The rest is a division per row: the
    quotient counts whole periods, the remainder is a slot of the interleave table. `counts` and `earlier` then give the
    sequence number without counting earlier rows, so a row costs the same at any step.

    Args:
        block: int64[BLOCK_SIZE].
        places: int64[n, 3 or more], step, first row and number of rows of each range.
        keys: uint64[3, rows or more], scratch.
        out: int64[rows, 2], output: source and sequence number.
    """
    num_segments, num_sources, num_slots = block[NUM_SEGMENTS], block[NUM_SOURCES], block[NUM_SLOTS]
    segments = carray(int64_at(block[SEGMENTS]), (num_segments, 3))
    counts = carray(int64_at(block[COUNTS]), (2, num_segments, num_sources))
    numbers = carray(int32_at(block[NUMBERS]), (num_segments, num_sources))
    sources = carray(int32_at(block[SOURCES]), (num_slots,))
    earlier = carray(int32_at(block[EARLIER]), (num_slots,))
    _shuffle_rows(block, places, keys)
    row = 0
    for p in range(places.shape[0]):
        cursor = block[CURSOR] + (places[p, 0] - block[FIRST_STEP]) * block[BATCH_SIZE]
        for _ in range(places[p, 2]):
            n = cursor + np.int64(keys[_NUMBERS, row])
            if n >= block[END]:
                out[row, 0], out[row, 1] = -1, 0
            else:
                m = num_segments - 1  # a linear search: nearly always there is one segment
                while m > 0 and n < segments[m, 0]:
                    m -= 1
                periods = (n - segments[m, 0]) // segments[m, 1]
                slot = segments[m, 2] + (n - segments[m, 0]) - periods * segments[m, 1]
                source = numbers[m, sources[slot]]
                out[row, 0] = source
                out[row, 1] = counts[0, m, source] + periods * counts[1, m, source] + earlier[slot]
            row += 1


@kernel
def locate_rows(block: np.ndarray, places: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
    """`locate_each`, for Python."""
    locate_each(block, places, keys, out)
