"""Sequences -> batch: reads the maps and widens uint16/uint32 straight into the int64 output. One nogil kernel a batch.

First all sequences are planned into spans, then the spans are copied, while the processor is asked for the pages of a span
some places further on: sequences lie far apart, and each would begin with a wait for memory (measured: a fifth of a
batch of 8 x 2048). The largest id is found on the way: an id outside the vocabulary never reaches a model.
"""

import numpy as np
from numba import carray

from tokenstore.batches.concat_spans import concat_spans
from tokenstore.batches.packed_spans import packed_spans
from tokenstore.batches.shuffled import NUMBERS, shuffle_numbers
from tokenstore.batches.spans import CONTINUES, DOCUMENT_START, LENGTH, MEMORY, SPAN_STORE, START
from tokenstore.batches.tables import BAD_ID, ITEM_BYTES, OK, VOCAB_SIZE
from tokenstore.intrinsics import prefetch, uint16_at, uint32_at
from tokenstore.jit import inline_kernel, kernel

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


@inline_kernel
def _plan_spans(
    rows: np.ndarray,
    length: int,
    packed: bool,
    shuffle: bool,
    cross: bool,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    packings: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
    starts: np.ndarray,
    spans: np.ndarray,
) -> int:
    """Spans of all rows, under any packing; see `gather`. Returns how many, or -1 with `report` filled."""
    if packed:
        return packed_spans(
            rows, length, shuffle, clock, stores, sources, packings, files, report, work, keys, starts, spans
        )
    shuffle_numbers(rows, shuffle, sources, keys)
    count = 0
    for r in range(rows.shape[0]):
        starts[r] = count
        if rows[r, 0] >= 0:
            source, number, window = rows[r, 0], rows[r, 1], np.int64(keys[NUMBERS, r])
            more = concat_spans(
                source, number, window, length, cross, shuffle, clock, stores, sources, files, report, spans[count:]
            )
            if more < 0:
                return -1
            count += more
    starts[rows.shape[0]] = count
    return count


@kernel
def plan_spans(
    rows: np.ndarray,
    length: int,
    packed: bool,
    shuffle: bool,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    packings: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
    starts: np.ndarray,
    spans: np.ndarray,
) -> None:
    """The spans of `rows` and no more, for who asks which documents there are; arguments as in `gather`."""
    count = _plan_spans(
        rows, length, packed, shuffle, False, clock, stores, sources, packings, files, report, work, keys, starts, spans
    )
    if count >= 0:
        report[0] = OK


@kernel
def gather(
    rows: np.ndarray,
    packed: bool,
    shuffle: bool,
    cross: bool,
    pad_id: int,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    packings: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
    starts: np.ndarray,
    spans: np.ndarray,
    ids: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Fill a microbatch.

    rows: int64[B, 2], source and sequence number; source -1 for a row of padding. work: int64[7, n] and keys: uint64[3, n],
    scratch; n is B * (L + 1) + 1 where documents are packed, else B. firsts: int64[B + 1], filled: each row's first span.
    spans: int64[B * (L + 1) + 1, 7], filled. report: int64[5], report[0] is OK or why not. ids, targets: int64[B, L], filled:
    tokens, and the token after each in its document or IGNORE; with `cross` (concat only), the token after each in the
    stream.
    """
    length = ids.shape[1]
    count = _plan_spans(
        rows, length, packed, shuffle, cross, clock, stores, sources, packings, files, report, work, keys, starts, spans
    )
    if count < 0:
        return
    item_bytes = stores[0, ITEM_BYTES]  # all stores of a plan are of one tokenizer, and so of one type
    vocab_size = stores[0, VOCAB_SIZE]
    for j in range(min(count, AHEAD_SPANS)):
        _call_for(spans[j], item_bytes)
    for r in range(rows.shape[0]):
        at = 0
        for j in range(starts[r], starts[r + 1]):
            if j + AHEAD_SPANS < count:
                _call_for(spans[j + AHEAD_SPANS], item_bytes)
            size, goes_on = spans[j, LENGTH], spans[j, CONTINUES]
            stop = at + size
            x, y = ids[r, at : min(stop, length)], targets[r, at : min(stop, length)]
            if stop > length:  # only with `cross`: the one token behind the row is a target and nothing else
                size, goes_on = size - 1, 1
                if size == 0:
                    size, goes_on, x, y = 1, 0, targets[r, length - 1 :], spans[count, 3:4]
            if item_bytes == 2:
                largest = _copy(carray(uint16_at(spans[j, MEMORY]), (size + goes_on,)), goes_on, x, y)
            else:
                largest = _copy(carray(uint32_at(spans[j, MEMORY]), (size + goes_on,)), goes_on, x, y)
            if largest >= vocab_size:
                report[0], report[1], report[2] = BAD_ID, spans[j, SPAN_STORE], spans[j, START]
                report[3], report[4] = vocab_size, largest
                return
            if cross and 0 < at < length:
                targets[r, at - 1] = ids[r, at]
            at = stop
        for i in range(at, length):
            ids[r, i], targets[r, i] = pad_id, IGNORE
    report[0] = OK


@kernel
def annotate(
    starts: np.ndarray,
    spans: np.ndarray,
    positions: np.ndarray,
    documents: np.ndarray,
    is_start: np.ndarray,
) -> None:
    """What tells documents apart in the microbatch that `gather` filled last, all [B, L].

    positions: int64, from 0 at each document, at the row's start and where padding begins. documents: int64, 0, 1, ... in
    the row, -1 for padding. is_start: bool, whether the token does not follow the one before it: the first of its document,
    of a later part of it behind another document, or padding.
    """
    length = positions.shape[1]
    for r in range(positions.shape[0]):
        at = 0
        for j in range(starts[r], starts[r + 1]):
            for i in range(min(spans[j, LENGTH], length - at)):
                positions[r, at + i] = i
                documents[r, at + i] = j - starts[r]
                is_start[r, at + i] = False
            if at < length:
                is_start[r, at] = at > 0 or spans[j, START] == spans[j, DOCUMENT_START]
            at += spans[j, LENGTH]
        for i in range(at, length):
            positions[r, i], documents[r, i], is_start[r, i] = i - at, -1, True
