"""Rows of a step -> (source, number of the sequence within the source) (ORD-5, ORD-6): the order's hot kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.jit import kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.permutation import permute_run
from tokenstore.order.schedule import Segment


@dataclass(frozen=True)
class SegmentTables:
    """The segments that a step touches (nearly always one), as arrays.

    Attributes:
        spans: int64[m, 3], start of each segment's cursor, its period, where its slots begin in `slots`.
        counts: int64[2, m, num_sources], sequences before the segment, and shares.
        slots: int32[2, sum of periods], source number and rank of each slot.
    """

    spans: np.ndarray
    counts: np.ndarray
    slots: np.ndarray


def segment_tables(segments: Sequence[Segment], numbers: Mapping[str, int]) -> SegmentTables:
    """Tables of `segments` for the kernel; `numbers` gives every source of the plan its number."""
    tables = [segment.table for segment in segments]
    counts = np.zeros((2, len(segments), len(numbers)), np.int64)
    slots = []
    for i, (segment, table) in enumerate(zip(segments, tables, strict=True)):
        for name, number in numbers.items():
            counts[:, i, number] = segment.base.get(name, 0), segment.shares.get(name, 0)
        here = np.array([numbers[name] for name in segment.names], np.int32)
        slots.append(np.stack([here[table.source], table.rank]))
    periods = [table.period for table in tables]
    first = np.cumsum([0, *periods[:-1]])
    starts = [segment.start for segment in segments]
    return SegmentTables(
        np.array([starts, periods, first], np.int64).T.copy(),
        counts,
        np.ascontiguousarray(np.concatenate(slots, axis=1)),
    )


@kernel
def locate_rows(
    first_row: int,
    step: int,
    cursor: int,
    batch_size: int,
    key_bits: int,
    shuffle: bool,
    spans: np.ndarray,
    counts: np.ndarray,
    slots: np.ndarray,
    out: np.ndarray,
) -> None:
    """Rows first_row, first_row + 1, ... of `step` and the steps after it -> out int64[steps, rows, 2]: source, number.

    All these steps have `batch_size` sequences and lie in the segments given; `cursor` is that of the first.
    """
    for k in range(out.shape[0]):
        places = out[k, :, 1]
        if shuffle:
            permute_run(first_row, batch_size, counted_key(np.uint64(key_bits), step + k), places)
        else:
            for row in range(places.size):
                places[row] = first_row + row
        for row in range(places.size):
            n = cursor + k * batch_size + places[row]
            m = spans.shape[0] - 1
            while m > 0 and n < spans[m, 0]:
                m -= 1
            periods = (n - spans[m, 0]) // spans[m, 1]
            slot = spans[m, 2] + (n - spans[m, 0]) - periods * spans[m, 1]
            source = slots[0, slot]
            out[k, row, 0] = source
            out[k, row, 1] = counts[0, m, source] + periods * counts[1, m, source] + slots[1, slot]
