"""A sequence -> its spans: runs of tokens that each lie inside one document, in row order.

Boundaries come from a file, so every value is checked here before anything is read at it: a damaged file is reported,
never followed.
"""

import numpy as np
from numba import carray

from tokenstore.format.layout import LOOKUP_STRIDE
from tokenstore.jit import inline_kernel, kernel
from tokenstore.order.windows import window_start
from tokenstore.intrinsics import int64_at
from tokenstore.sampling.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    FILE_TOKENS,
    FIRST_FILE,
    FIRST_TOKEN,
    ITEM_BYTES,
    LAST_USED,
    NOT_MAPPED,
    NUM_DOCUMENTS,
    NUM_SEQUENCES,
    NUM_SHARDS,
    NUM_TOKENS,
    OFFSET_KEY,
    SEQUENCE_KEY,
)

# Columns of a span: first token in the stream, tokens, document, its first token in the stream, whether the document
# goes on behind the span, and where the span lies in memory
START, LENGTH, DOCUMENT, DOCUMENT_START, GOES_ON, MEMORY = range(6)
SPAN_COLUMNS = 6


@inline_kernel
def _document_of(token: int, starts: np.ndarray, num_documents: int, num_tokens: int) -> int:
    """The document that holds `token`, by the lookup table and binary search; -1 where the table is damaged."""
    entry = num_documents + 1 + token // LOOKUP_STRIDE
    low = starts[entry]
    last_entry = num_documents + 1 + (num_tokens - 1) // LOOKUP_STRIDE
    high = starts[entry + 1] if entry < last_entry else num_documents - 1
    if low < 0 or high >= num_documents or low > high:
        return -1
    while low < high:
        middle = (low + high + 1) // 2
        if starts[middle] <= token:
            low = middle
        else:
            high = middle - 1
    return low


@inline_kernel
def memory_of(token: int, size: int, row: np.ndarray, clock: int, files: np.ndarray, report: np.ndarray) -> int:
    """Address of stream tokens [token, token + size) of a source; 0 with `report` filled where that cannot be had."""
    low, high = row[FIRST_FILE] + 1, row[FIRST_FILE] + row[NUM_SHARDS]
    while low < high:  # the last shard that begins at or before the token
        middle = (low + high + 1) // 2
        if files[middle, FIRST_TOKEN] <= token:
            low = middle
        else:
            high = middle - 1
    at = token - files[low, FIRST_TOKEN]
    if at + size > files[low, FILE_TOKENS]:  # a document that straddles shards: its boundaries are damaged
        report[0], report[1], report[2] = BAD_BOUNDARY, row[FIRST_FILE], token
        report[3], report[4] = token, token + size
        return 0
    if files[low, ADDRESS] == 0:
        report[0], report[1] = NOT_MAPPED, low
        return 0
    files[low, LAST_USED] = clock
    return files[low, ADDRESS] + at * row[ITEM_BYTES]


@inline_kernel
def concat_spans(
    source: int,
    number: int,
    length: int,
    more: int,
    shuffle: bool,
    clock: int,
    sources: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    out: np.ndarray,
) -> int:
    """Spans of sequence `number` of `source` under `concat` (ORD-7); returns how many, or -1 with `report` filled.

    more: tokens wanted behind the sequence. out: int64[at least length + more, 6].
    """
    row = sources[source]
    file = row[FIRST_FILE]
    if files[file, ADDRESS] == 0:
        report[0], report[1] = NOT_MAPPED, file
        return -1
    files[file, LAST_USED] = clock
    num_tokens, num_documents = row[NUM_TOKENS], row[NUM_DOCUMENTS]
    num_entries = num_documents + 2 + (num_tokens - 1) // LOOKUP_STRIDE
    starts = carray(int64_at(files[file, ADDRESS]), (num_entries,))
    epoch = number // row[NUM_SEQUENCES]
    i = number - epoch * row[NUM_SEQUENCES]
    token = window_start(
        epoch, i, num_tokens, length, np.uint64(row[SEQUENCE_KEY]), np.uint64(row[OFFSET_KEY]), shuffle
    )
    document = _document_of(token, starts, num_documents, num_tokens)
    count = 0
    left = length + more
    while left > 0:
        if token == num_tokens:  # round the circle
            token = document = 0
        known = 0 <= document < num_documents
        first = starts[document] if known else np.int64(-1)
        stop = starts[document + 1] if known else np.int64(-1)
        if first > token or stop <= token or first < 0 or stop > num_tokens:
            report[0], report[1], report[2], report[3], report[4] = BAD_BOUNDARY, file, token, first, stop
            return -1
        size = min(left, stop - token)
        out[count, MEMORY] = memory_of(token, size + (token + size < stop), row, clock, files, report)
        if out[count, MEMORY] == 0:
            return -1
        out[count, START], out[count, LENGTH], out[count, DOCUMENT] = token, size, document
        out[count, DOCUMENT_START], out[count, GOES_ON] = first, token + size < stop
        count += 1
        left -= size
        token += size
        document += 1
    return count


@kernel
def spans_of(
    source: int,
    number: int,
    length: int,
    shuffle: bool,
    clock: int,
    sources: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    out: np.ndarray,
) -> int:
    """`concat_spans` for callers in Python."""
    return concat_spans(source, number, length, 0, shuffle, clock, sources, files, report, out)
