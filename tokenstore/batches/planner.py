"""The first of the two hot kernels: plans the spans of many rows at once. The second one is in `gather`."""

from numba import carray

from tokenstore.batches.block import (
    NUM_PLACES,
    NUM_ROWS,
    PACKED,
    PLACE_COLUMNS,
    PLACES,
    ROWS,
    SPAN_ROOM,
    SPANS,
    STARTS,
    STEPS,
    block_at,
    keys_of,
    report,
)
from tokenstore.batches.concat_spans import concat_spans
from tokenstore.batches.packed_spans import packed_spans
from tokenstore.batches.spans import SPAN_COLUMNS
from tokenstore.batches.tables import OK
from tokenstore.intrinsics import int64_at
from tokenstore.jit import kernel
from tokenstore.order.rows import BLOCK_SIZE, locate_each


@kernel
def plan_spans(address: int) -> None:
    """Fill `starts` and `spans` for rows, and report the outcome.

    Reads PLACES of the block, and writes ROWS, int64[n, 2], source and sequence number; without places, reads ROWS. Source -1
    is a row of padding and has no spans. Writes STARTS, int64[n + 1], index of each row's first span and the number of spans, and SPANS, int64[SPAN_ROOM,
    SPAN_COLUMNS].

    In the worst case every token is a document, so n rows have at most n * (L + 1) spans. The caller provides room for
    one more, and as many columns of scratch (n columns for `concat`).

    address: of the argument block.
    """
    block = block_at(address)
    num_rows = block[NUM_ROWS]
    rows = carray(int64_at(block[ROWS]), (num_rows, 2))
    starts = carray(int64_at(block[STARTS]), (num_rows + 1,))
    spans = carray(int64_at(block[SPANS]), (block[SPAN_ROOM], SPAN_COLUMNS))
    if block[PLACES]:
        places = carray(int64_at(block[PLACES]), (block[NUM_PLACES], block[PLACE_COLUMNS]))
        locate_each(carray(int64_at(block[STEPS]), (BLOCK_SIZE,)), places, keys_of(block), rows)
    done = packed_spans(block, rows, starts, spans) if block[PACKED] else concat_spans(block, rows, starts, spans)
    if done:
        report(block, OK, 0, 0, 0, 0)
