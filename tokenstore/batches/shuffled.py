"""Permutes the sequences of an epoch, for all rows of a call: the result is a window (ORD-7) or a bin (ORD-15)."""

import numpy as np

from tokenstore.batches.block import SHUFFLE, keys_of, sources_of
from tokenstore.batches.tables import NUM_SEQUENCES, SEQUENCE_KEY
from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.packed import permute_each

# Rows of the uint64 scratch, which has one column per number to permute: the number, replaced by its image; the size of
# the domain; the key
NUMBERS, SIZES, KEYS = range(3)


@inline_kernel
def shuffle_numbers(block: np.ndarray, rows: np.ndarray) -> None:
    """Write the permuted number of each row's sequence in its epoch to keys[NUMBERS, :n]; 0 for a row of padding,
    and for the rest of an epoch, see `concat_spans`.

    rows: int64[n, 2], source and sequence number. Without shuffle the numbers are not permuted.
    """
    put_numbers(block, rows)
    if block[SHUFFLE]:
        keys, count = keys_of(block), rows.shape[0]
        permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])


@inline_kernel
def put_numbers(block: np.ndarray, rows: np.ndarray) -> None:
    """Write the number of each row's sequence in its epoch, the sequences per epoch and the key to the scratch."""
    keys, sources = keys_of(block), sources_of(block)
    for r in range(rows.shape[0]):
        keys[SIZES, r], keys[NUMBERS, r], keys[KEYS, r] = 1, 0, 0
        if rows[r, 0] >= 0 and rows[r, 1] >= 0:
            source = sources[rows[r, 0]]
            epoch = rows[r, 1] // source[NUM_SEQUENCES]
            keys[SIZES, r] = np.uint64(source[NUM_SEQUENCES])
            keys[NUMBERS, r] = np.uint64(rows[r, 1] - epoch * source[NUM_SEQUENCES])
            keys[KEYS, r] = counted_key(np.uint64(source[SEQUENCE_KEY]), epoch)
