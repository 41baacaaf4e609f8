"""Spans: runs of tokens that each lie inside one document. A sequence is its spans in row order, then padding.

Boundaries come from a file, so every value is checked before it is used as a position: damage is reported, and never
leads to a read outside of a file.
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

# Columns of a span: its first token in the store, how many, the document, the document's first token in the store, whether the
# document continues after the span, the address of the tokens, the store, and the place of the first token's bit in the loss
# mask (8 x address + bit; 0: all tokens are in the loss)
START, LENGTH, DOCUMENT, DOCUMENT_START, CONTINUES, MEMORY, SPAN_STORE, MASK = range(8)
SPAN_COLUMNS = 8


@inline_kernel
def is_mapped(block: np.ndarray, file: int) -> bool:
    """Whether `file` is mapped; marks it as just used. If it is not, the report requests it."""
    files = files_of(block)
    if files[file, ADDRESS] == 0:
        report(block, NOT_MAPPED, file, 0, 0, 0)
        return False
    files[file, LAST_USED] = block[CLOCK]
    return True


@inline_kernel
def boundaries_of(row: np.ndarray, files: np.ndarray) -> np.ndarray:
    """int64[D + 1 + lookup entries], the mapped boundaries of the store with this row."""
    num_entries = row[NUM_DOCUMENTS] + 2 + (row[NUM_TOKENS] - 1) // LOOKUP_STRIDE
    return carray(int64_at(files[row[FIRST_FILE], ADDRESS]), (num_entries,))


@inline_kernel
def shard_of(token: Integer, row: np.ndarray, files: np.ndarray) -> int:
    """The file of the shard that holds a token of a store."""
    low, left = row[FIRST_FILE] + 1, row[NUM_SHARDS]
    while left > 1:  # the last shard that begins at or before the token
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
    """Write the span [token, token + size) of `document`, which is [first, stop), to `out`; False with a report.

    With the token after the span, if that is in the document, all of it is in one shard.
    """
    row, files = stores_of(block)[store], files_of(block)
    continues = np.int64(token + size < stop)
    shard = shard_of(token, row, files)
    at = token - files[shard, FIRST_TOKEN]
    if at + size + continues > files[shard, FILE_TOKENS]:  # a document in two shards: its boundaries are damaged
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
