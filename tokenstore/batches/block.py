"""The argument block: one int64 array that contains constants and the addresses of all tables.

Its address is the only argument of the kernels `plan_spans` and `gather`. There are two reasons:

- Passing 17 arrays to numba took 1.05 us per call, more than planning a row. One integer takes 0.15 us.
- numba counts references to arrays that come from Python, with one or two atomic operations for each function that
  takes them. That took 2.9 of the 8 us of a batch of 8 x 2048. Arrays that a kernel makes from addresses have no owner,
  so nothing is counted.

An address is 0 if there is nothing to read or write. Python writes words through a memoryview, which takes 25 ns per
word.
"""

import numpy as np
from numba import carray

from tokenstore.batches.packings import PACKING_COLUMNS
from tokenstore.batches.tables import FILE_COLUMNS, REPORT_SIZE, SOURCE_COLUMNS, STORE_COLUMNS
from tokenstore.intrinsics import int64_at, uint64_at
from tokenstore.jit import Integer, inline_kernel

# Constants of the plan
SEQUENCE_LENGTH, PACKED, SHUFFLE, CROSS, PAD_ID, TOKEN_BYTES, VOCAB_SIZE = range(7)
# Tables (see `tables` and `packings`): the address and the number of rows of each
STORES, NUM_STORES, SOURCES, NUM_SOURCES, FILES, NUM_FILES, PACKINGS, NUM_PACKINGS = range(7, 15)
# Scratch of the planner: int64[WORK_ROWS, NUM_COLUMNS] and uint64[KEY_ROWS, NUM_COLUMNS]. CLOCK: number of the call
WORK, KEYS, NUM_COLUMNS, CLOCK = range(15, 19)
# The rows to plan or copy. ROWS: address of int64[NUM_ROWS, 2], source and sequence number. STARTS: address of
# int64[NUM_ROWS + 1], first span of each row. SPANS: address of int64[SPAN_ROOM, SPAN_COLUMNS]. NEXT_*: the same for
# the microbatch that is copied next; NEXT_ROWS is 0 if there is none
NUM_ROWS, ROWS, STARTS, SPANS, SPAN_ROOM, NEXT_ROWS, NEXT_STARTS, NEXT_SPANS = range(19, 27)
# Progress in prefetching the next microbatch: addresses of the next cache line and of the end of the current span, the
# number of the span after it, and the end of the spans
AHEAD_LINE, AHEAD_END, AHEAD_SPAN, AHEAD_STOP = range(27, 31)
# Addresses of the output arrays; 0 for an array that is not written. All have the shape [NUM_ROWS, SEQUENCE_LENGTH]:
# TARGETS, LABELS, POSITIONS and DOCUMENTS are int64, LOSS_MASK is float32, LABEL_MASK is bool. The exceptions are IDS, see
# ID_BYTES and EXTRA_IDS, and BORDERS, int32[NUM_ROWS * SEQUENCE_LENGTH + 1]
IDS, TARGETS, LABELS, POSITIONS, DOCUMENTS, LOSS_MASK, LABEL_MASK, BORDERS = range(31, 39)
# IGNORED_TARGET: the target and label of a token that is not in the loss. FLAT_LABELS: 1 if the model gets all rows as
# one row, so that the first token of each row must have no label
IGNORED_TARGET, FLAT_LABELS = range(39, 41)
# Results: number of borders written, and tokens of the longest piece
NUM_BORDERS, LONGEST = range(41, 43)
# The array IDS: bytes per element (8: int64, 4: int32 or uint32, 2: uint16), elements per row beyond SEQUENCE_LENGTH (0 or
# 1, the token after the row), and these elements in the rows before the current one
ID_BYTES, EXTRA_IDS, EXTRA_BEFORE = range(43, 46)
# ALIGN: the places at which pieces begin in a row are multiples of it; 0 if they follow one another. PIECE_TOKENS:
# address of int32[NUM_ROWS * SEQUENCE_LENGTH], the tokens of the piece that begins at each border, with alignment only.
# COSTS: address of int64[NUM_ROWS], written by `row_squares`
ALIGN, PIECE_TOKENS, COSTS = range(46, 49)
# LANES: 1 if a source has lanes
LANES = 49
# What the planner locates first: PLACES, address of int64[NUM_PLACES, PLACE_COLUMNS], whose first columns are step, first row
# and number of rows; 0 if the rows are located. STEPS: address of the tables of these steps, see `order.rows`
PLACES, NUM_PLACES, PLACE_COLUMNS, STEPS = range(50, 54)
# ZEROS: address of an int64 that is not 0 if zeros were read in place of a truncated file; see `sigbus`
ZEROS = 54
# int64[REPORT_SIZE], the outcome of a call; see `tables`
REPORT = 55
BLOCK_SIZE = REPORT + REPORT_SIZE

WORK_ROWS, KEY_ROWS = 9, 3


@inline_kernel
def block_at(address: int) -> np.ndarray:
    """The block at `address`, int64[BLOCK_SIZE]."""
    return carray(int64_at(address), (BLOCK_SIZE,))


@inline_kernel
def stores_of(block: np.ndarray) -> np.ndarray:
    """The table of stores, int64[num_stores, STORE_COLUMNS]."""
    return carray(int64_at(block[STORES]), (block[NUM_STORES], STORE_COLUMNS))


@inline_kernel
def sources_of(block: np.ndarray) -> np.ndarray:
    """The table of sources, int64[num_sources, SOURCE_COLUMNS]."""
    return carray(int64_at(block[SOURCES]), (block[NUM_SOURCES], SOURCE_COLUMNS))


@inline_kernel
def files_of(block: np.ndarray) -> np.ndarray:
    """The table of files, int64[num_files, FILE_COLUMNS]."""
    return carray(int64_at(block[FILES]), (block[NUM_FILES], FILE_COLUMNS))


@inline_kernel
def packings_of(block: np.ndarray) -> np.ndarray:
    """The table of packings, int64[num_packings, PACKING_COLUMNS]."""
    return carray(int64_at(block[PACKINGS]), (block[NUM_PACKINGS], PACKING_COLUMNS))


@inline_kernel
def work_of(block: np.ndarray) -> np.ndarray:
    """Scratch, int64[WORK_ROWS, NUM_COLUMNS]."""
    return carray(int64_at(block[WORK]), (WORK_ROWS, block[NUM_COLUMNS]))


@inline_kernel
def keys_of(block: np.ndarray) -> np.ndarray:
    """Scratch for permutations, uint64[KEY_ROWS, NUM_COLUMNS]; see `shuffled`."""
    return carray(uint64_at(block[KEYS]), (KEY_ROWS, block[NUM_COLUMNS]))


@inline_kernel
def report(block: np.ndarray, code: int, first: Integer, second: Integer, third: Integer, fourth: Integer) -> None:
    """Write the outcome of the call. The meaning of the other words depends on `code`; see `tables`."""
    block[REPORT], block[REPORT + 1], block[REPORT + 2] = code, first, second
    block[REPORT + 3], block[REPORT + 4] = third, fourth
