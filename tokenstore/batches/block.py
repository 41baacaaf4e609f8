"""The argument block: one int64 array with the addresses of all tables. Its own address is the only argument of a
kernel.

Passing 17 arrays to numba cost 1.05 us per call, more than planning a row; one integer costs 0.15. Numba also counts
references to an array that comes from Python, with one or two atomic operations for every function that takes it: 2.9
of the 8 us of a batch of 8 x 2048. An array made from an address inside the kernel has no owner, so nothing is counted.

A word that is an address is 0 if there is nothing to read or to write. Python writes words through a memoryview (25 ns
per word).
"""

import numpy as np
from numba import carray

from tokenstore.batches.packings import PACKING_COLUMNS
from tokenstore.batches.tables import FILE_COLUMNS, REPORT_SIZE, SOURCE_COLUMNS, STORE_COLUMNS
from tokenstore.intrinsics import int64_at, uint64_at
from tokenstore.jit import Integer, inline_kernel

# Constants of a plan
SEQUENCE_LENGTH, PACKED, SHUFFLE, CROSS, PAD_ID, TOKEN_BYTES, VOCAB_SIZE = range(7)
# Tables (see `tables` and `packings`), each an address and its number of rows
STORES, NUM_STORES, SOURCES, NUM_SOURCES, FILES, NUM_FILES, PACKINGS, NUM_PACKINGS = range(7, 15)
# Scratch of the planner: int64[WORK_ROWS, n] and uint64[KEY_ROWS, n]; and the time of the call under way
WORK, KEYS, NUM_COLUMNS, CLOCK = range(15, 19)
# What to plan and what to copy: how many rows; addresses of int64 `rows` [NUM_ROWS, 2] (source, sequence number), `starts`
# [NUM_ROWS + 1] and `spans` [SPAN_ROOM, SPAN_COLUMNS]. What is copied next, if NEXT_ROWS is not 0
NUM_ROWS, ROWS, STARTS, SPANS, SPAN_ROOM, NEXT_ROWS, NEXT_STARTS, NEXT_SPANS = range(19, 27)
# How far the lines of the coming microbatch have been prefetched: its span, bytes of that span, the span after its last
AHEAD_SPAN, AHEAD_BYTES, AHEAD_STOP = range(27, 30)
# Where to write (0: nowhere): int64[rows, SEQUENCE_LENGTH]: IDS, TARGETS, LABELS, POSITIONS, DOCUMENTS; float32
# LOSS_MASK and bool LABEL_MASK of that shape; BORDERS int32[rows * SEQUENCE_LENGTH + 1]
IDS, TARGETS, LABELS, POSITIONS, DOCUMENTS, LOSS_MASK, LABEL_MASK, BORDERS = range(30, 38)
# How to write: -100 or 0 for a target that is not in the loss; whether rows follow one another in one row, so that the first
# label of each is ignored; scratch for the loss mask of a chunk, uint64[MASK_WORDS]
IGNORED_TARGET, FLAT_LABELS, MASK_SCRATCH = range(38, 41)
# What was found: borders written, and the longest piece
NUM_BORDERS, LONGEST = range(41, 43)
# int64[REPORT_SIZE]: how a call ended, see `tables`
REPORT = 43
BLOCK_SIZE = REPORT + REPORT_SIZE

WORK_ROWS, KEY_ROWS = 7, 3


@inline_kernel
def block_at(address: int) -> np.ndarray:
    """int64[BLOCK_SIZE], the block at an address."""
    return carray(int64_at(address), (BLOCK_SIZE,))


@inline_kernel
def stores_of(block: np.ndarray) -> np.ndarray:
    """int64[num_stores, STORE_COLUMNS]."""
    return carray(int64_at(block[STORES]), (block[NUM_STORES], STORE_COLUMNS))


@inline_kernel
def sources_of(block: np.ndarray) -> np.ndarray:
    """int64[num_sources, SOURCE_COLUMNS]."""
    return carray(int64_at(block[SOURCES]), (block[NUM_SOURCES], SOURCE_COLUMNS))


@inline_kernel
def files_of(block: np.ndarray) -> np.ndarray:
    """int64[num_files, FILE_COLUMNS]."""
    return carray(int64_at(block[FILES]), (block[NUM_FILES], FILE_COLUMNS))


@inline_kernel
def packings_of(block: np.ndarray) -> np.ndarray:
    """int64[num_packings, PACKING_COLUMNS]."""
    return carray(int64_at(block[PACKINGS]), (block[NUM_PACKINGS], PACKING_COLUMNS))


@inline_kernel
def work_of(block: np.ndarray) -> np.ndarray:
    """int64[WORK_ROWS, columns], scratch."""
    return carray(int64_at(block[WORK]), (WORK_ROWS, block[NUM_COLUMNS]))


@inline_kernel
def keys_of(block: np.ndarray) -> np.ndarray:
    """uint64[KEY_ROWS, columns], scratch for permutations: see `shuffled`."""
    return carray(uint64_at(block[KEYS]), (KEY_ROWS, block[NUM_COLUMNS]))


@inline_kernel
def report(block: np.ndarray, code: int, first: Integer, second: Integer, third: Integer, fourth: Integer) -> None:
    """Report how the call ended. The meaning of the other words depends on `code`, see `tables`."""
    block[REPORT], block[REPORT + 1], block[REPORT + 2] = code, first, second
    block[REPORT + 3], block[REPORT + 4] = third, fourth
