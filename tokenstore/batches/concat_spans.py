"""Plans the spans of sequences under `concat` (ORD-7), for all rows of a call.

Each sequence needs an entry of the lookup table and then some boundaries. Both can be anywhere in a file larger than
the processor caches. So each stage handles all rows before the next stage begins, and prefetches the memory that the
next stage reads. The waits of all rows then overlap.
"""

import numpy as np

from tokenstore.batches.block import (
    CROSS,
    LANES,
    SEQUENCE_LENGTH,
    SHUFFLE,
    files_of,
    keys_of,
    report,
    sources_of,
    stores_of,
    work_of,
)
from tokenstore.batches.lane_numbers import shuffle_lanes
from tokenstore.batches.shuffled import NUMBERS, shuffle_numbers
from tokenstore.batches.spans import boundaries_of, is_mapped, put_span
from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    FIRST_FILE,
    NO_ROOM,
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

# Rows of the int64 scratch, which has one column per row of the call: first token of the window, and its entry in the
# lookup table
TOKEN, _ENTRY = range(2)


@inline_kernel
def find_starts(block: np.ndarray, rows: np.ndarray) -> bool:
    """Compute the first token of each row's window, and prefetch what finds its document.

    Stage 1 computes windows and prefetches their entries in the lookup table. Stage 2 reads these entries and
    prefetches the first boundaries. Returns False, with a report, if a boundaries file is not mapped.
    """
    if block[LANES]:
        shuffle_lanes(block, rows)
    else:
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
        if rows[r, 1] < 0:  # the rest of the epoch
            epoch, window = -1 - rows[r, 1], source[NUM_SEQUENCES]
        offset_key = np.uint64(source[OFFSET_KEY])
        token = window_start(epoch, window, row[NUM_TOKENS], block[SEQUENCE_LENGTH], offset_key, block[SHUFFLE] != 0)
        work[TOKEN, r], work[_ENTRY, r] = token, row[NUM_DOCUMENTS] + 1 + token // LOOKUP_STRIDE
        prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * work[_ENTRY, r])
    for r in range(rows.shape[0]):
        if rows[r, 0] >= 0:
            row = stores[sources[rows[r, 0], STORE]]
            # The entry comes from a file and is not checked here, because prefetching any address is harmless
            document = boundaries_of(row, files)[work[_ENTRY, r]]
            prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * document)
            prefetch(files[row[FIRST_FILE], ADDRESS] + 8 * document + 64)
    return True


@inline_kernel
def document_of(token: Integer, starts: np.ndarray, num_documents: int, num_tokens: int) -> int:
    """The document that contains `token`; -1 if the lookup table is damaged.

    The lookup table has the document of every LOOKUP_STRIDE-th token, so the binary search covers the documents of one
    stride.
    """
    entry = num_documents + 1 + token // LOOKUP_STRIDE
    low = starts[entry]
    last_entry = num_documents + 1 + (num_tokens - 1) // LOOKUP_STRIDE
    high = starts[entry + 1] if entry < last_entry else num_documents - 1
    # Invariant: starts[low] <= token, and the document is in [low, high]. `low` and `high` come from a file
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
    """Write the spans of `left` tokens of the stream from `token` on. Returns their number, or -1 with a report.

    The stream continues with token 0 after its last token. `out` is int64[room, SPAN_COLUMNS], one row per document.
    """
    row, files = stores_of(block)[store], files_of(block)
    num_tokens, num_documents = row[NUM_TOKENS], row[NUM_DOCUMENTS]
    starts = boundaries_of(row, files)
    document = document_of(token, starts, num_documents, num_tokens)
    count = 0
    while left > 0:
        if token == num_tokens:  # the circle closes
            token, document = 0, 0
        known = 0 <= document < num_documents
        first = starts[document] if known else np.int64(-1)
        stop = starts[document + 1] if known else np.int64(-1)
        # first <= token < stop keeps the loop finite and all reads inside the files, whatever the boundaries contain
        if first > token or stop <= token or first < 0 or stop > num_tokens:
            report(block, BAD_BOUNDARY, row[FIRST_FILE], token, first, stop)
            return -1
        if count == out.shape[0]:
            report(block, NO_ROOM, 0, 0, 0, 0)
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
    """Fill `starts` and `spans` for located rows. Returns False, with a report, if a file is needed or damaged.

    If targets cross documents, the spans of a row contain one more token: the target of the last one.

    Args:
        block: the argument block.
        rows: int64[n, 2], source and sequence number; source -1 is a row of padding and has no spans. Sequence number -1 - e
            is the rest of epoch e: the tokens that no window of the epoch has. They are fewer than a window, and at least
            one, which the caller checks.
        starts: int64[n + 1], output: index of each row's first span, and the number of spans.
        spans: int64[room, SPAN_COLUMNS], output.
    """
    if not find_starts(block, rows):
        return False
    sources, work = sources_of(block), work_of(block)
    count = 0
    for r in range(rows.shape[0]):
        starts[r] = count
        if rows[r, 0] >= 0:
            store, left = sources[rows[r, 0], STORE], block[SEQUENCE_LENGTH] + block[CROSS]
            if rows[r, 1] < 0:
                left = stores_of(block)[store][NUM_TOKENS] % block[SEQUENCE_LENGTH]
            more = _spans_from(block, store, work[TOKEN, r], left, spans[count:])
            if more < 0:
                return False
            count += more
    starts[rows.shape[0]] = count
    return True
