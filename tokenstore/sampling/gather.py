"""Sequences -> batch: reads the maps and widens uint16/uint32 straight into the int64 output. One nogil kernel a batch.

Every span lies inside one document and so inside one shard. The largest id is checked on the way: an id outside the
vocabulary never reaches a model. Roofline: a token costs 2 bytes read twice and 16 bytes written; see
`benches/bench_throughput.py` for the share of that limit.
"""

import numpy as np
from numba import carray

from tokenstore.jit import inline_kernel, kernel
from tokenstore.sampling.pointers import uint16_at, uint32_at
from tokenstore.sampling.spans import DOCUMENT_START, GOES_ON, LENGTH, START, concat_spans
from tokenstore.sampling.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    BAD_ID,
    FILE_TOKENS,
    FIRST_FILE,
    FIRST_TOKEN,
    ITEM_BYTES,
    LAST_USED,
    NOT_MAPPED,
    NUM_SHARDS,
    OK,
    VOCAB_SIZE,
)

IGNORE = -100  # the target that losses leave out, in torch and in every framework built on it


@inline_kernel
def _file_of(token: int, first_file: int, num_shards: int, files: np.ndarray) -> int:
    """Row in `files` of the shard that holds `token`: the last one that begins at or before it."""
    low, high = first_file + 1, first_file + num_shards
    while low < high:
        middle = (low + high + 1) // 2
        if files[middle, FIRST_TOKEN] <= token:
            low = middle
        else:
            high = middle - 1
    return low


@inline_kernel
def _widen16(address: int, size: int, goes_on: int, ids: np.ndarray, targets: np.ndarray) -> int:
    """Copy `size` tokens to `ids` and the tokens behind each to `targets`; return the largest id met."""
    tokens = carray(uint16_at(address), (size + goes_on,))
    largest = np.uint16(0)
    for i in range(size):
        ids[i] = tokens[i]
        largest = max(largest, tokens[i])
    for i in range(size - 1):
        targets[i] = tokens[i + 1]
    targets[size - 1] = IGNORE
    if goes_on:
        targets[size - 1] = tokens[size]
        largest = max(largest, tokens[size])
    return np.int64(largest)


@inline_kernel
def _widen32(address: int, size: int, goes_on: int, ids: np.ndarray, targets: np.ndarray) -> int:
    """`_widen16` for uint32."""
    tokens = carray(uint32_at(address), (size + goes_on,))
    largest = np.uint32(0)
    for i in range(size):
        ids[i] = tokens[i]
        largest = max(largest, tokens[i])
    for i in range(size - 1):
        targets[i] = tokens[i + 1]
    targets[size - 1] = IGNORE
    if goes_on:
        targets[size - 1] = tokens[size]
        largest = max(largest, tokens[size])
    return np.int64(largest)


@inline_kernel
def _copy_span(
    span: np.ndarray,
    row: np.ndarray,
    clock: int,
    files: np.ndarray,
    report: np.ndarray,
    ids: np.ndarray,
    targets: np.ndarray,
) -> bool:
    """Copy one span; False with `report` filled if its shard is not mapped or it holds an id outside the vocabulary."""
    file = _file_of(span[START], row[FIRST_FILE], row[NUM_SHARDS], files)
    report[1] = file
    if files[file, ADDRESS] == 0:
        report[0] = NOT_MAPPED
        return False
    files[file, LAST_USED] = clock
    at = span[START] - files[file, FIRST_TOKEN]
    goes_on = span[GOES_ON]
    if at + span[LENGTH] + goes_on > files[file, FILE_TOKENS]:  # boundaries that straddle shards: damaged
        report[0], report[1], report[2] = BAD_BOUNDARY, row[FIRST_FILE], span[START]
        report[3], report[4] = span[START], span[START] + span[LENGTH] + goes_on
        return False
    address = files[file, ADDRESS] + at * row[ITEM_BYTES]
    if row[ITEM_BYTES] == 2:
        largest = _widen16(address, span[LENGTH], goes_on, ids, targets)
    else:
        largest = _widen32(address, span[LENGTH], goes_on, ids, targets)
    if largest >= row[VOCAB_SIZE]:
        report[0], report[2], report[3], report[4] = BAD_ID, span[START], row[VOCAB_SIZE], largest
        return False
    return True


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

    rows: int64[B, 2], source and sequence number. spans: int64[L + 2, 5], scratch. report: int64[5], report[0] OK or why not.
    ids, targets: int64[B, L], filled in place: tokens, and the token after each in its document or IGNORE.
    """
    length = ids.shape[1]
    for r in range(rows.shape[0]):
        row = sources[rows[r, 0]]
        count = concat_spans(rows[r, 0], rows[r, 1], length + cross, shuffle, clock, sources, files, report, spans)
        if count < 0:
            return
        at = 0
        for j in range(count):
            stop = min(at + spans[j, LENGTH], length)
            if at == length:  # the one token behind the row, for the last target under `cross`
                y, x = spans[count], targets[r, length - 1 :]
            else:
                x, y = ids[r, at:stop], targets[r, at:stop]
                spans[j, GOES_ON] |= at + spans[j, LENGTH] > length
                spans[j, LENGTH] = stop - at
            if not _copy_span(spans[j], row, clock, files, report, x, y):
                return
            if cross and 0 < at < length:
                targets[r, at - 1] = ids[r, at]
            at = stop
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
        count = concat_spans(rows[r, 0], rows[r, 1], length, shuffle, clock, sources, files, report, spans)
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
