"""Rows -> spans, for many rows at once: the first of the two hot kernels. `gather` has the other."""

from numba import carray

from tokenstore.batches.block import NUM_ROWS, PACKED, ROWS, SPAN_ROOM, SPANS, STARTS, block_at, report
from tokenstore.batches.concat_spans import concat_spans
from tokenstore.batches.packed_spans import packed_spans
from tokenstore.batches.spans import SPAN_COLUMNS
from tokenstore.batches.tables import OK
from tokenstore.intrinsics import int64_at
from tokenstore.jit import kernel


@kernel
def plan_spans(address: int) -> None:
    """Fill `starts` and `spans` for the located rows in the block at `address`, and report how that ended.

    A row of padding has the source -1. starts: where the spans of each row begin, and how many there are. Each token
    may be a document, so n rows have at most n * (L + 1) spans. There is room for one more, and the scratch has as many
    columns (n for `concat`).
    """
    block = block_at(address)
    num_rows = block[NUM_ROWS]
    rows = carray(int64_at(block[ROWS]), (num_rows, 2))
    starts = carray(int64_at(block[STARTS]), (num_rows + 1,))
    spans = carray(int64_at(block[SPANS]), (block[SPAN_ROOM], SPAN_COLUMNS))
    done = packed_spans(block, rows, starts, spans) if block[PACKED] else concat_spans(block, rows, starts, spans)
    if done:
        report(block, OK, 0, 0, 0, 0)
