"""Rows -> the place of each in the shuffle of its epoch, all rows of a call at once: which window, or which bin (ORD-7, ORD-15)."""

import numpy as np

from tokenstore.batches.block import SHUFFLE, keys_of, sources_of
from tokenstore.batches.tables import NUM_SEQUENCES, SEQUENCE_KEY
from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.packed import permute_each

# Rows of the uint64 scratch, with a column per number to permute: the number, later its place; the size of its range;
# the key
NUMBERS, SIZES, KEYS = range(3)


@inline_kernel
def shuffle_numbers(block: np.ndarray, rows: np.ndarray) -> None:
    """Fill keys[NUMBERS, :B] with the places of located rows int64[B, 2] in the epochs they are of; 0 for a row of padding."""
    keys, sources = keys_of(block), sources_of(block)
    for r in range(rows.shape[0]):
        keys[SIZES, r], keys[NUMBERS, r], keys[KEYS, r] = 1, 0, 0
        if rows[r, 0] >= 0:
            source = sources[rows[r, 0]]
            epoch = rows[r, 1] // source[NUM_SEQUENCES]
            keys[SIZES, r] = np.uint64(source[NUM_SEQUENCES])
            keys[NUMBERS, r] = np.uint64(rows[r, 1] - epoch * source[NUM_SEQUENCES])
            keys[KEYS, r] = counted_key(np.uint64(source[SEQUENCE_KEY]), epoch)
    if block[SHUFFLE]:
        count = rows.shape[0]
        permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])
