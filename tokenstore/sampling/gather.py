"""Sequences -> batch: reads the maps and widens uint16/uint32 straight into the int64 output. One nogil kernel a batch.

First all sequences are planned into spans, then the spans are copied, while the processor is asked for the pages of a span
some places further on: sequences lie far apart, and each would begin with a wait for memory (measured: a fifth of a
batch of 8 x 2048). The largest id is found on the way: an id outside the vocabulary never reaches a model.
"""

import numpy as np
from numba import carray

from tokenstore.jit import inline_kernel, kernel
from tokenstore.intrinsics import prefetch, uint16_at, uint32_at
from tokenstore.sampling.spans import DOCUMENT_START, GOES_ON, LENGTH, MEMORY, START, concat_spans
from tokenstore.sampling.tables import BAD_ID, ITEM_BYTES, OK, VOCAB_SIZE

IGNORE = -100  # the target that losses leave out, in torch and in every framework built on it
LINE_BYTES, PAGE_BYTES = 64, 4096
PAGE_LINES = 16
AHEAD_SPANS = 4


@inline_kernel
def _call_for(span: np.ndarray, item_bytes: int) -> None:
    """Prefetch the first lines of every page of a span; the processor's own prefetching goes on inside a page."""
    address = span[MEMORY]
    stop = address + span[LENGTH] * item_bytes
    while address < stop:
        page_stop = (address // PAGE_BYTES + 1) * PAGE_BYTES
        for line in range(address, min(page_stop, stop, address + PAGE_LINES * LINE_BYTES), LINE_BYTES):
            prefetch(line)
        address = page_stop


@inline_kernel
def _copy(tokens: np.ndarray, goes_on: int, ids: np.ndarray, targets: np.ndarray) -> int:
    """Copy ids.size tokens to `ids` and the tokens behind each to `targets`; return the largest id met.

    tokens: uint16 or uint32[ids.size + goes_on]; without goes_on the last target is IGNORE.
    """
    last = ids.size - 1
    largest = tokens[last]
    for i in range(last):
        ids[i] = tokens[i]
        targets[i] = tokens[i + 1]
        largest = max(largest, tokens[i])
    ids[last] = tokens[last]
    targets[last] = tokens[last + 1] if goes_on else IGNORE
    return max(np.int64(largest), targets[last])


@kernel
def gather(
    rows: np.ndarray,
    shuffle: bool,
    cross: bool,
    clock: int,
    sources: np.ndarray,
    files: np.ndarray,
    spans: np.ndarray,
    report: np.ndarray,
    ids: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Fill a microbatch.

    rows: int64[B, 2], source and sequence number. spans: int64[B * (L + 1) + 1, 6], scratch. report: int64[5], report[0] is
    OK or why not. ids, targets: int64[B, L], filled in place: tokens, and the token after each in its document or IGNORE;
    with `cross`, the token after each in the stream.
    """
    length = ids.shape[1]
    count = 0
    for r in range(rows.shape[0]):
        more = concat_spans(
            rows[r, 0], rows[r, 1], length, cross, shuffle, clock, sources, files, report, spans[count:]
        )
        if more < 0:
            return
        count += more
    for j in range(min(count, AHEAD_SPANS)):
        _call_for(spans[j], sources[rows[0, 0], ITEM_BYTES])
    j = 0
    for r in range(rows.shape[0]):
        row = sources[rows[r, 0]]
        at = 0
        while at < length + cross:
            if j + AHEAD_SPANS < count:
                _call_for(spans[j + AHEAD_SPANS], row[ITEM_BYTES])
            size, goes_on = spans[j, LENGTH], spans[j, GOES_ON]
            stop = at + size
            x, y = ids[r, at : min(stop, length)], targets[r, at : min(stop, length)]
            if stop > length:  # only with `cross`: the one token behind the row is a target and nothing else
                size, goes_on = size - 1, 1
                if size == 0:
                    size, goes_on, x, y = 1, 0, targets[r, length - 1 :], spans[count, 3:4]
            if row[ITEM_BYTES] == 2:
                largest = _copy(carray(uint16_at(spans[j, MEMORY]), (size + goes_on,)), goes_on, x, y)
            else:
                largest = _copy(carray(uint32_at(spans[j, MEMORY]), (size + goes_on,)), goes_on, x, y)
            if largest >= row[VOCAB_SIZE]:
                report[0], report[1], report[2] = BAD_ID, rows[r, 0], spans[j, START]
                report[3], report[4] = row[VOCAB_SIZE], largest
                return
            if cross and 0 < at < length:
                targets[r, at - 1] = ids[r, at]
            at, j = stop, j + 1
    report[0] = OK


@kernel
def annotate(
    rows: np.ndarray,
    shuffle: bool,
    clock: int,
    sources: np.ndarray,
    files: np.ndarray,
    spans: np.ndarray,
    report: np.ndarray,
    positions: np.ndarray,
    documents: np.ndarray,
    starts: np.ndarray,
) -> None:
    """Fill what tells documents apart in a microbatch, all [B, L].

    positions: int64, from 0 at each document and at the row's start. documents: int64, 0, 1, ... in the row.
    starts: bool, whether the token is the first of its document.
    """
    length = positions.shape[1]
    for r in range(rows.shape[0]):
        count = concat_spans(rows[r, 0], rows[r, 1], length, 0, shuffle, clock, sources, files, report, spans)
        if count < 0:
            return
        at = 0
        for j in range(count):
            for i in range(spans[j, LENGTH]):
                positions[r, at + i] = i
                documents[r, at + i] = j
                starts[r, at + i] = False
            starts[r, at] = spans[j, START] == spans[j, DOCUMENT_START]
            at += spans[j, LENGTH]
    report[0] = OK
