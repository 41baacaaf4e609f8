"""Sequences of `concat` (ORD-7) -> their spans, all rows of a call at once.

Every sequence needs an entry of the lookup table and some boundaries, anywhere in a file of any size. So each step is
done for all rows before the next step, and prefetches what the next step reads.
"""

import numpy as np

from tokenstore.batches.block import (
    CROSS,
    SEQUENCE_LENGTH,
    SHUFFLE,
    files_of,
    keys_of,
    report,
    sources_of,
    stores_of,
    work_of,
)
from tokenstore.batches.shuffled import NUMBERS, shuffle_numbers
from tokenstore.batches.spans import boundaries_of, is_mapped, put_span
from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    FIRST_FILE,
    NUM_DOCUMENTS,
    NUM_SEQUENCES,
    NUM_TOKENS,
    OFFSET_KEY,
    STORE,
)
from tokenstore.format.layout import LOOKUP_STRIDE
from tokenstore.intrinsics import prefetch
from tokenstore.jit import Integer, inline_kernel
from tokenstore.order.windows import window_start

_TOKEN, _ENTRY = range(2)  # rows of the scratch: a row's first token, and its entry of the lookup table


@inline_kernel
def _find_starts(block: np.ndarray, rows: np.ndarray) -> bool:
    """First tokens of all rows, with their entries of the lookup table prefetched; False with a report."""
    shuffle_numbers(block, rows)
    sources, stores, files, work, keys = (
        sources_of(block),
        stores_of(block),
        files_of(block),
        work_of(block),
        keys_of(block),
    )
    for r in range(rows.shape[0]):
        if rows[r, 0] < 0:
            continue
        source = sources[rows[r, 0]]
        row = stores[source[STORE]]
        if not is_mapped(block, row[FIRST_FILE]):
            return False
        epoch, window = rows[r, 1] // source[NUM_SEQUENCES], np.int64(keys[NUMBERS, r])
        offset_key = np.uint64(source[OFFSET_KEY])
        token = window_start(epoch, window, row[NUM_TOKENS], block[SEQUENCE_LENGTH], offset_key, block[SHUFFLE] != 0)
        work[_TOKEN, r], work[_ENTRY, r] = token, row[NUM_DOCUMENTS] + 1 + token // LOOKUP_STRIDE
        prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * work[_ENTRY, r])
    for r in range(rows.shape[0]):
        if rows[r, 0] >= 0:
            row = stores[sources[rows[r, 0], STORE]]
            document = boundaries_of(row, files)[work[_ENTRY, r]]  # unchecked: a prefetch of any address is harmless
            prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * document)
            prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * document + 64)
    return True


@inline_kernel
def _document_of(token: Integer, starts: np.ndarray, num_documents: int, num_tokens: int) -> int:
    """The document that contains `token`, by the lookup table and binary search; -1 if the table is damaged."""
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
def _spans_from(block: np.ndarray, store: int, token: Integer, left: Integer, out: np.ndarray) -> int:
    """Write the spans of `left` tokens of a store from `token` on, around its circle; return their number, or -1 with a
    report.
    """
    row, files = stores_of(block)[store], files_of(block)
    num_tokens, num_documents = row[NUM_TOKENS], row[NUM_DOCUMENTS]
    starts = boundaries_of(row, files)
    document = _document_of(token, starts, num_documents, num_tokens)
    count = 0
    while left > 0:
        if token == num_tokens:
            token, document = 0, 0
        known = 0 <= document < num_documents
        first = starts[document] if known else np.int64(-1)
        stop = starts[document + 1] if known else np.int64(-1)
        if first > token or stop <= token or first < 0 or stop > num_tokens:
            report(block, BAD_BOUNDARY, row[FIRST_FILE], token, first, stop)
            return -1
        size = min(left, stop - token)
        if not put_span(block, store, token, size, document, first, stop, out[count]):
            return -1
        count += 1
        left -= size
        token += size
        document += 1
    return count


@inline_kernel
def concat_spans(block: np.ndarray, rows: np.ndarray, starts: np.ndarray, spans: np.ndarray) -> bool:
    """Fill `starts` and `spans` for located rows, see `planner.plan_spans`; False with a report.

    If targets cross documents, a row has one more token: the target of its last one.
    """
    if not _find_starts(block, rows):
        return False
    sources, work = sources_of(block), work_of(block)
    count = 0
    for r in range(rows.shape[0]):
        starts[r] = count
        if rows[r, 0] >= 0:
            store, left = sources[rows[r, 0], STORE], block[SEQUENCE_LENGTH] + block[CROSS]
            more = _spans_from(block, store, work[_TOKEN, r], left, spans[count:])
            if more < 0:
                return False
            count += more
    starts[rows.shape[0]] = count
    return True
