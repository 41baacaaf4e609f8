"""A sequence of `concat` (ORD-7) -> its spans."""

import numpy as np

from tokenstore.batches.spans import (
    CONTINUES,
    DOCUMENT,
    DOCUMENT_START,
    LENGTH,
    MEMORY,
    SPAN_STORE,
    START,
    boundaries_of,
    is_mapped,
    memory_of,
)
from tokenstore.batches.tables import (
    BAD_BOUNDARY,
    FIRST_FILE,
    NUM_DOCUMENTS,
    NUM_SEQUENCES,
    NUM_TOKENS,
    OFFSET_KEY,
    STORE,
)
from tokenstore.format.layout import LOOKUP_STRIDE
from tokenstore.jit import Integer, inline_kernel
from tokenstore.order.windows import window_start


@inline_kernel
def _document_of(token: Integer, starts: np.ndarray, num_documents: int, num_tokens: int) -> int:
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
def concat_spans(
    source: int,
    number: int,
    window: Integer,
    length: int,
    more: int,
    shuffle: bool,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    out: np.ndarray,
) -> int:
    """Spans of sequence `number` of `source` under `concat` (ORD-7); returns how many, or -1 with `report` filled.

    window: which one of its epoch it is. more: tokens wanted behind the sequence. out: int64[at least length + more, 7].
    """
    drawn = sources[source]
    store = drawn[STORE]
    row = stores[store]
    file = row[FIRST_FILE]
    if not is_mapped(file, clock, files, report):
        return -1
    num_tokens, num_documents = row[NUM_TOKENS], row[NUM_DOCUMENTS]
    starts = boundaries_of(row, files)
    epoch = number // drawn[NUM_SEQUENCES]
    token = window_start(epoch, window, num_tokens, length, np.uint64(drawn[OFFSET_KEY]), shuffle)
    document = _document_of(token, starts, num_documents, num_tokens)
    count = 0
    left: Integer = length + more
    while left > 0:
        if token == num_tokens:  # round the circle
            token, document = 0, 0
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
        out[count, DOCUMENT_START], out[count, CONTINUES], out[count, SPAN_STORE] = first, token + size < stop, store
        count += 1
        left -= size
        token += size
        document += 1
    return count
