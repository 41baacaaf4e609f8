"""Spans: runs of tokens inside one document. A sequence is a list of spans, followed by padding.

Boundaries come from a file, so every value is checked before it is used as an index or an address. Damage is reported.
"""

import numpy as np
from numba import carray

from tokenstore.batches.block import CLOCK, files_of, report, stores_of
from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    FILE_TOKENS,
    FIRST_FILE,
    FIRST_MASK,
    FIRST_TOKEN,
    LAST_USED,
    NOT_MAPPED,
    NUM_DOCUMENTS,
    NUM_SHARDS,
    NUM_TOKENS,
    TOKEN_BYTES,
)
from tokenstore.format.layout import LOOKUP_STRIDE
from tokenstore.intrinsics import int64_at
from tokenstore.jit import Integer, inline_kernel

# Columns of a span. START: position of its first token in the store. LENGTH: tokens. DOCUMENT: number of the document.
# DOCUMENT_START: position of the document's first token. CONTINUES: 1 if the document continues after the span. MEMORY:
# address of the tokens. SPAN_STORE: number of the store. MASK: position of the first token's bit in the loss mask, as 8
# x address + bit; 0 if all tokens are in the loss
START, LENGTH, DOCUMENT, DOCUMENT_START, CONTINUES, MEMORY, SPAN_STORE, MASK = range(8)
SPAN_COLUMNS = 8


@inline_kernel
def is_mapped(block: np.ndarray, file: int) -> bool:
    """Whether `file` is mapped. If it is, mark it as used by this call; if not, report NOT_MAPPED."""
    files = files_of(block)
    if files[file, ADDRESS] == 0:
        report(block, NOT_MAPPED, file, 0, 0, 0)
        return False
    files[file, LAST_USED] = block[CLOCK]
    return True


@inline_kernel
def boundaries_of(row: np.ndarray, files: np.ndarray) -> np.ndarray:
    """Boundaries and lookup table, int64[D + 1 + lookup entries], of the store with this `row` of the table of
    stores.
    """
    num_entries = row[NUM_DOCUMENTS] + 2 + (row[NUM_TOKENS] - 1) // LOOKUP_STRIDE
    return carray(int64_at(files[row[FIRST_FILE], ADDRESS]), (num_entries,))


@inline_kernel
def shard_of(token: Integer, row: np.ndarray, files: np.ndarray) -> int:
    """The number of the shard file that contains `token`, in the table of files."""
    low, left = row[FIRST_FILE] + 1, row[NUM_SHARDS]
    while left > 1:  # the last shard that begins at or before the token; no branch that depends on the data
        half = left >> 1
        low += half if files[low + half, FIRST_TOKEN] <= token else 0
        left -= half
    return low


@inline_kernel
def put_span(
    block: np.ndarray,
    store: int,
    token: Integer,
    size: Integer,
    document: int,
    first: Integer,
    stop: Integer,
    out: np.ndarray,
) -> bool:
    """Write a span to `out`. Returns False, with a report, if a file is not mapped or the boundaries are damaged.

    Checks that the span is inside one shard, including the token after it if that belongs to the same document.

    Args:
        block: the argument block.
        store: number of the store.
        token, size: the span [token, token + size).
        document: number of the document.
        first, stop: the document's tokens [first, stop).
        out: int64[SPAN_COLUMNS], output.
    """
    row, files = stores_of(block)[store], files_of(block)
    continues = np.int64(token + size < stop)
    shard = shard_of(token, row, files)
    at = token - files[shard, FIRST_TOKEN]
    # A document is never in two shards, so otherwise its boundaries are damaged
    if at + size + continues > files[shard, FILE_TOKENS]:
        report(block, BAD_BOUNDARY, row[FIRST_FILE], token, token, token + size + continues)
        return False
    if not is_mapped(block, shard):
        return False
    out[START], out[LENGTH], out[DOCUMENT], out[DOCUMENT_START] = token, size, document, first
    out[CONTINUES], out[SPAN_STORE] = continues, store
    out[MEMORY], out[MASK] = files[shard, ADDRESS] + at * row[TOKEN_BYTES], 0
    if row[FIRST_MASK] >= 0:
        mask = row[FIRST_MASK] + shard - row[FIRST_FILE] - 1
        if not is_mapped(block, mask):
            return False
        out[MASK] = 8 * files[mask, ADDRESS] + at
    return True
