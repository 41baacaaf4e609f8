"""Permutes the sequences of an epoch for plans in which a source has lanes (ORD-20), for all rows of a call.

A number goes through two permutations, that of the blocks and that inside its block. Each is one call of `permute_each`
for all rows, because blocks are small domains, on which it is three times as fast as one number after the other.
"""

import numpy as np

from tokenstore.batches.block import keys_of, sources_of, work_of
from tokenstore.batches.shuffled import KEYS, NUMBERS, SIZES, put_numbers
from tokenstore.batches.tables import (
    BLOCK_KEY,
    HAS_LANES,
    NUM_SEQUENCES,
    PLACE_KEY,
    SHAPE,
    SHORT_EPOCH,
    SHORT_PLACE,
)
from tokenstore.jit import Integer, inline_kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.lanes import BLOCK, NUM_BLOCKS, block_size, full_place, line_place, short_place
from tokenstore.order.packed import permute_each

# Rows of the int64 scratch, which has one column per row of the call. FIRST: first window of the block. INSIDE: place in
# the block; -1 in a row whose source has no lanes
FIRST, INSIDE = range(2)


@inline_kernel
def _short_place(source: np.ndarray, epoch: Integer) -> Integer:
    """The place of the last block on the line of an epoch. It is kept, because an epoch lasts for many calls.

    source: row of the table of sources.
    """
    if source[SHORT_EPOCH] != epoch:
        source[SHORT_PLACE] = short_place(counted_key(np.uint64(source[BLOCK_KEY]), epoch), source[SHAPE:])
        source[SHORT_EPOCH] = epoch
    return np.int64(source[SHORT_PLACE])


@inline_kernel
def _put_blocks(block: np.ndarray, rows: np.ndarray) -> None:
    """Replace the numbers of rows with lanes by places of blocks."""
    keys, sources, work = keys_of(block), sources_of(block), work_of(block)
    for r in range(rows.shape[0]):
        work[INSIDE, r] = -1
        if rows[r, 0] >= 0 and rows[r, 1] >= 0 and sources[rows[r, 0], HAS_LANES]:
            source = sources[rows[r, 0]]
            shape, epoch = source[SHAPE:], rows[r, 1] // source[NUM_SEQUENCES]
            place = full_place(line_place(np.int64(keys[NUMBERS, r]), shape), _short_place(source, epoch), shape)
            place_of_block = place // shape[BLOCK]
            work[INSIDE, r] = place - place_of_block * shape[BLOCK]
            keys[NUMBERS, r], keys[SIZES, r] = np.uint64(place_of_block), np.uint64(shape[NUM_BLOCKS])
            keys[KEYS, r] = counted_key(np.uint64(source[BLOCK_KEY]), epoch)


@inline_kernel
def _put_places(block: np.ndarray, rows: np.ndarray) -> None:
    """Move the first window of each row's block to FIRST, and replace it by the place in the block.

    The windows of other rows are moved too, and the places of these rows are 0 of 1.
    """
    keys, sources, work = keys_of(block), sources_of(block), work_of(block)
    for r in range(rows.shape[0]):
        found, inside = np.int64(keys[NUMBERS, r]), work[INSIDE, r]
        work[FIRST, r], keys[NUMBERS, r], keys[SIZES, r], keys[KEYS, r] = found, 0, 1, 0
        if inside >= 0:
            source = sources[rows[r, 0]]
            shape, epoch = source[SHAPE:], rows[r, 1] // source[NUM_SEQUENCES]
            work[FIRST, r] = found * shape[BLOCK]
            keys[NUMBERS, r], keys[SIZES, r] = np.uint64(inside), np.uint64(block_size(found, shape))
            keys[KEYS, r] = counted_key(counted_key(np.uint64(source[PLACE_KEY]), epoch), found)


@inline_kernel
def shuffle_lanes(block: np.ndarray, rows: np.ndarray) -> None:
    """Like `shuffle_numbers`, for a plan in which a source has lanes. It has shuffle, and packing `concat`."""
    keys, work, count = keys_of(block), work_of(block), rows.shape[0]
    put_numbers(block, rows)
    _put_blocks(block, rows)
    permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])
    _put_places(block, rows)
    permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])
    for r in range(count):
        keys[NUMBERS, r] += np.uint64(work[FIRST, r])
