"""Prefetches the next microbatch while one is copied, in two ways:

- Pages: at the start, one line of every page. The processor looks up the addresses of several pages at once, but cannot
  run far ahead of one that it waits for. This takes a third off the time of a microbatch of short documents.
- Lines: one per chunk of tokens that is copied. Many at once would occupy the buffers that the stores of the outputs need.
"""

import numpy as np

from tokenstore.batches.block import (
    AHEAD_END,
    AHEAD_LINE,
    AHEAD_SPAN,
    AHEAD_STOP,
    NEXT_ROWS,
    NEXT_SPANS,
    NEXT_STARTS,
    TOKEN_BYTES,
)
from tokenstore.batches.spans import CONTINUES, LENGTH, MASK, MEMORY, SPAN_COLUMNS
from tokenstore.intrinsics import array_at, int64_at, prefetch
from tokenstore.jit import inline_kernel

LINE_BYTES, PAGE_BYTES = 64, 4096


@inline_kernel
def begin_ahead(block: np.ndarray) -> None:
    """Prefetch one line of every page of the next microbatch, and begin its lines at its first span."""
    block[AHEAD_LINE] = block[AHEAD_END] = block[AHEAD_SPAN] = block[AHEAD_STOP] = 0
    if block[NEXT_ROWS]:
        starts = array_at(int64_at(block[NEXT_STARTS]), (block[NEXT_ROWS] + 1,))
        block[AHEAD_SPAN], block[AHEAD_STOP] = starts[0], starts[block[NEXT_ROWS]]
        spans = array_at(int64_at(block[NEXT_SPANS]), (block[AHEAD_STOP], SPAN_COLUMNS))
        for j in range(block[AHEAD_SPAN], block[AHEAD_STOP]):
            first = spans[j, MEMORY]
            stop = first + (spans[j, LENGTH] + spans[j, CONTINUES]) * block[TOKEN_BYTES]
            for page in range(first & -PAGE_BYTES, stop, PAGE_BYTES):
                prefetch(max(page, first))


@inline_kernel
def _begin_lines(block: np.ndarray) -> None:
    """Begin the lines of span AHEAD_SPAN of the next microbatch."""
    span = array_at(int64_at(block[NEXT_SPANS]), (block[AHEAD_STOP], SPAN_COLUMNS))[block[AHEAD_SPAN]]
    size = span[LENGTH] + span[CONTINUES]
    block[AHEAD_LINE], block[AHEAD_END] = span[MEMORY] & -LINE_BYTES, span[MEMORY] + size * block[TOKEN_BYTES]
    block[AHEAD_SPAN] += 1
    if span[MASK]:
        for line in range((span[MASK] >> 3) & -LINE_BYTES, (span[MASK] + size + 7) >> 3, LINE_BYTES):
            prefetch(line)


@inline_kernel
def prefetch_line(block: np.ndarray) -> None:
    """Prefetch the next cache line of the next microbatch, if there is one."""
    if block[AHEAD_LINE] >= block[AHEAD_END]:
        if block[AHEAD_SPAN] >= block[AHEAD_STOP]:
            return
        _begin_lines(block)
    prefetch(block[AHEAD_LINE])
    block[AHEAD_LINE] += LINE_BYTES


@inline_kernel
def prefetch_rest(block: np.ndarray) -> None:
    """Prefetch the lines that are left: the next microbatch may have more lines than this one has chunks."""
    while block[AHEAD_SPAN] < block[AHEAD_STOP] or block[AHEAD_LINE] < block[AHEAD_END]:
        prefetch_line(block)
