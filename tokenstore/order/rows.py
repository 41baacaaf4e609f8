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
        spans: int64[m, 3], start of each segment's cursor, its period, where its slots begin in `sources` and `ranks`.
        counts: int64[2, m, num_sources], sequences before the segment, and shares.
        numbers: int32[m, num_sources], the plan's number of the segment's i-th source.
        sources, ranks: int32[sum of periods], the segment's source and rank of each slot; for one segment its own tables.
    """

    spans: np.ndarray
    counts: np.ndarray
    numbers: np.ndarray
    sources: np.ndarray
    ranks: np.ndarray


def segment_tables(segments: Sequence[Segment], numbers: Mapping[str, int]) -> SegmentTables:
    """Tables of `segments` for the kernel; `numbers` gives every source of the plan its number."""
    tables = [segment.table for segment in segments]
    counts = np.zeros((2, len(segments), len(numbers)), np.int64)
    here = np.zeros((len(segments), len(numbers)), np.int32)
    for i, segment in enumerate(segments):
        for name, number in numbers.items():
            counts[:, i, number] = segment.base.get(name, 0), segment.shares.get(name, 0)
        here[i, : len(segment.names)] = [numbers[name] for name in segment.names]
    periods = [table.period for table in tables]
    first = np.cumsum([0, *periods[:-1]])
    spans = np.array([[segment.start for segment in segments], periods, first], np.int64).T.copy()
    if len(tables) == 1:  # nearly always: megabytes that need not be copied
        return SegmentTables(spans, counts, here, tables[0].source, tables[0].rank)
    sources, ranks = np.concatenate([t.source for t in tables]), np.concatenate([t.rank for t in tables])
    return SegmentTables(spans, counts, here, sources, ranks)


@kernel
def locate_rows(
    first_row: int,
    step: int,
    cursor: int,
    end: int,
    batch_size: int,
    key_bits: int,
    shuffle: bool,
    spans: np.ndarray,
    counts: np.ndarray,
    numbers: np.ndarray,
    sources: np.ndarray,
    ranks: np.ndarray,
    out: np.ndarray,
) -> None:
    """Rows first_row, first_row + 1, ... of `step` and the steps after it -> out int64[steps, rows, 2]: source, number.

    All these steps have `batch_size` sequences and lie in the segments given; `cursor` is that of the first. At `end` or
    behind it there is no sequence: the source is -1.
    """
    for k in range(out.shape[0]):
        # Side by side, so that the loop of the shuffle becomes vector instructions; spread from the last one on
        places = out[k].reshape(2 * out.shape[1])[: out.shape[1]]
        if shuffle:
            permute_run(first_row, batch_size, counted_key(np.uint64(key_bits), step + k), places)
        else:
            for row in range(places.size):
                places[row] = first_row + row
        for row in range(places.size - 1, -1, -1):
            n = cursor + k * batch_size + places[row]
            if n >= end:
                out[k, row, 0], out[k, row, 1] = -1, 0
                continue
            m = spans.shape[0] - 1
            while m > 0 and n < spans[m, 0]:
                m -= 1
            periods = (n - spans[m, 0]) // spans[m, 1]
            slot = spans[m, 2] + (n - spans[m, 0]) - periods * spans[m, 1]
            source = numbers[m, sources[slot]]
            out[k, row, 0] = source
            out[k, row, 1] = counts[0, m, source] + periods * counts[1, m, source] + ranks[slot]
