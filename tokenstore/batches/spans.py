"""Spans: runs of tokens that each lie inside one document. A sequence is its spans in row order, and padding behind them.

Boundaries come from a file, so every value is checked before anything is read at it: a damaged file is reported, never
followed.
"""

import numpy as np
from numba import carray

from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    FILE_TOKENS,
    FIRST_FILE,
    FIRST_TOKEN,
    ITEM_BYTES,
    LAST_USED,
    NOT_MAPPED,
    NUM_DOCUMENTS,
    NUM_SHARDS,
    NUM_TOKENS,
)
from tokenstore.format.layout import LOOKUP_STRIDE
from tokenstore.intrinsics import int64_at
from tokenstore.jit import Integer, inline_kernel

# Columns of a span: first token in the stream, tokens, document, its first token in the stream, whether the document
# goes on behind the span, where the span lies in memory, and its store
START, LENGTH, DOCUMENT, DOCUMENT_START, CONTINUES, MEMORY, SPAN_STORE = range(7)
SPAN_COLUMNS = 7


@inline_kernel
def is_mapped(file: int, clock: int, files: np.ndarray, report: np.ndarray) -> bool:
    """Whether `file` can be read, and used as of now; else `report` asks for it."""
    if files[file, ADDRESS] == 0:
        report[0], report[1] = NOT_MAPPED, file
        return False
    files[file, LAST_USED] = clock
    return True


@inline_kernel
def boundaries_of(row: np.ndarray, files: np.ndarray) -> np.ndarray:
    """int64[D + 1 + lookup entries], the mapped boundaries of the store with this row."""
    num_entries = row[NUM_DOCUMENTS] + 2 + (row[NUM_TOKENS] - 1) // LOOKUP_STRIDE
    return carray(int64_at(files[row[FIRST_FILE], ADDRESS]), (num_entries,))


@inline_kernel
def shard_of(token: Integer, row: np.ndarray, files: np.ndarray) -> int:
    """The file of the shard that holds a stream token of a store."""
    low, left = row[FIRST_FILE] + 1, row[NUM_SHARDS]
    while left > 1:  # the last shard that begins at or before the token
        half = left >> 1
        low += half if files[low + half, FIRST_TOKEN] <= token else 0
        left -= half
    return low


@inline_kernel
def memory_of(token: Integer, size: Integer, row: np.ndarray, clock: int, files: np.ndarray, report: np.ndarray) -> int:
    """Address of stream tokens [token, token + size) of a store; 0 with `report` filled where that cannot be had."""
    shard = shard_of(token, row, files)
    at = token - files[shard, FIRST_TOKEN]
    if at + size > files[shard, FILE_TOKENS]:  # a document that straddles shards: its boundaries are damaged
        report[0], report[1], report[2] = BAD_BOUNDARY, row[FIRST_FILE], token
        report[3], report[4] = token, token + size
        return 0
    if not is_mapped(shard, clock, files, report):
        return 0
    return files[shard, ADDRESS] + at * row[ITEM_BYTES]
