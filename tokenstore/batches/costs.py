"""The kernel that measures rows for the balance of a step (ORD-19). It finds no documents and reads no tokens.

The pieces of a packed row are known from its packing. Those of a row of `concat` follow from the boundaries of its
documents.
"""

import numpy as np
from numba import carray

from tokenstore.batches.block import (
    COSTS,
    NUM_ROWS,
    PACKED,
    ROWS,
    SEQUENCE_LENGTH,
    block_at,
    files_of,
    packings_of,
    report,
    sources_of,
    stores_of,
    work_of,
)
from tokenstore.batches.concat_spans import TOKEN, document_of, find_starts
from tokenstore.batches.packed_spans import ROW_BIN, ROW_PACKING, find_bins, leaves_of, leaves_of_row
from tokenstore.batches.packings import WIDE
from tokenstore.batches.spans import boundaries_of
from tokenstore.batches.tables import BAD_BOUNDARY, FIRST_FILE, NUM_DOCUMENTS, NUM_TOKENS, OK, STORE
from tokenstore.intrinsics import int64_at
from tokenstore.jit import Integer, inline_kernel, kernel
from tokenstore.order.packed import leaf_of
from tokenstore.order.packing import SQUARES
from tokenstore.order.words import word


@inline_kernel
def _packed_squares(block: np.ndarray, rows: np.ndarray, out: np.ndarray) -> bool:
    """Write the sum of the squares of the rooms of each row. Returns False, with a report, if a packing is missing."""
    if not find_bins(block, rows):
        return False
    packings, work = packings_of(block), work_of(block)
    for r in range(rows.shape[0]):
        out[r] = 0
        if rows[r, 0] >= 0:
            packing = packings[work[ROW_PACKING, r]]
            leaves = leaves_of(packing)
            first, count = leaves_of_row(block, r)
            leaf = leaf_of(work[ROW_BIN, r], leaves, first, count, packing[WIDE])
            out[r] = word(leaves, leaf, SQUARES, packing[WIDE])
    return True


@inline_kernel
def _squares_from(block: np.ndarray, store: int, token: Integer, left: Integer) -> Integer:
    """The sum of the squares of the pieces in the window of `left` tokens from `token` on; -1, with a report, for damage.

    The window continues with token 0 after the last token of the store.
    """
    row, files = stores_of(block)[store], files_of(block)
    num_tokens, num_documents = row[NUM_TOKENS], row[NUM_DOCUMENTS]
    starts = boundaries_of(row, files)
    document = document_of(token, starts, num_documents, num_tokens)
    total = np.int64(0)
    while left > 0:
        if token == num_tokens:  # the circle closes
            token, document = 0, 0
        stop = starts[document + 1] if 0 <= document < num_documents else np.int64(-1)
        if stop <= token or stop > num_tokens:  # also keeps the loop finite, whatever the boundaries contain
            report(block, BAD_BOUNDARY, row[FIRST_FILE], token, -1, stop)
            return np.int64(-1)
        size = min(left, stop - token)
        total += size * size
        left, token, document = left - size, token + size, document + 1
    return total


@inline_kernel
def _window_squares(block: np.ndarray, rows: np.ndarray, out: np.ndarray) -> bool:
    """Write the sum of the squares of the pieces in each window. Returns False, with a report, if it cannot."""
    if not find_starts(block, rows):
        return False
    sources, work = sources_of(block), work_of(block)
    for r in range(rows.shape[0]):
        out[r] = 0
        if rows[r, 0] >= 0:
            store, left = sources[rows[r, 0], STORE], block[SEQUENCE_LENGTH]
            if rows[r, 1] < 0:  # the rest of the epoch
                left = stores_of(block)[store][NUM_TOKENS] % block[SEQUENCE_LENGTH]
            out[r] = _squares_from(block, store, work[TOKEN, r], left)
            if out[r] < 0:
                return False
    return True


@kernel
def row_squares(address: int) -> None:
    """Write the sum of the squares of the tokens of each row's pieces (ORD-19), and report the outcome.

    Reads ROWS of the block, int64[n, 2]; writes COSTS, int64[n]; 0 for a row of padding. Needs n columns of scratch.

    address: of the argument block.
    """
    block = block_at(address)
    num_rows = block[NUM_ROWS]
    rows = carray(int64_at(block[ROWS]), (num_rows, 2))
    out = carray(int64_at(block[COSTS]), (num_rows,))
    done = _packed_squares(block, rows, out) if block[PACKED] else _window_squares(block, rows, out)
    if done:
        report(block, OK, 0, 0, 0, 0)
