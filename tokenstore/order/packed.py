"""Sequences of a packed source (ORD-15): the slots of a bin, their order in the row, and their permutation."""

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key, mix
from tokenstore.order.packing import CONTENT, COPIES_BITS, GONE, GROUP, NODE_FIRST_SLOT, NODE_OFFSET, NODE_PARENT, START
from tokenstore.order.permutation import SMALL, SWAP_ROUNDS, permute, swap_round
from tokenstore.order.words import both_parts, word


@inline_kernel
def leaves_near(number: int, near: np.ndarray, shift: int) -> tuple[int, int]:
    """(first, count) of the few leaves among which `leaf_of` finds that of bin `number`. `near`, `shift`: see `packing.Bins`."""
    low = near[number >> shift]
    return low, near[(number >> shift) + 1] + 1 - low


@inline_kernel
def leaf_of(number: int, leaves: np.ndarray, first: int, count: int, wide: int) -> int:
    """The last of `count` leaves from `first` on that starts at or before bin `number`: the one that contains it."""
    low, left = first, count
    while left > 1:  # no branch that depends on the data: a misprediction costs more than a step
        half = left >> 1
        low += half if word(leaves, low + half, START, wide) <= number else 0
        left -= half
    return low


@inline_kernel
def slots_of_bin(
    number: int, leaf: int, nodes: np.ndarray, leaves: np.ndarray, wide: int, classes: np.ndarray, slots: np.ndarray
) -> int:
    """Write the slots of bin `number`, and return how many there are (at most L).

    From the leaf of the bin the loop follows parents up to the root, node 0, and lists the slots that each group added
    to the bin, the last placement first.

    Args:
        number: of the bin.
        leaf: its leaf, see `leaf_of`.
        nodes, leaves, wide: see `packing.Bins`.
        classes, slots: int64[L] or longer, output: number of the class, and slot.
    """
    node = word(leaves, leaf, GROUP, wide)
    place = number - word(leaves, leaf, START, wide) + word(leaves, leaf, GONE, wide)
    count = 0
    while node > 0:
        # The group put `copies` slots in a row into each of its bins; this bin is number `place` of the group
        length_class, copies = both_parts(word(nodes, node, CONTENT, wide), COPIES_BITS[wide])
        first = word(nodes, node, NODE_FIRST_SLOT, wide) + place * copies
        for slot in range(first, first + copies):
            classes[count], slots[count] = length_class, slot
            count += 1
        place += word(nodes, node, NODE_OFFSET, wide)
        node = word(nodes, node, NODE_PARENT, wide)
    return count


@inline_kernel
def shuffle_slots(key: np.uint64, count: int, classes: np.ndarray, slots: np.ndarray) -> None:
    """Shuffle the first `count` entries of both arrays in the same way (Fisher, Yates)."""
    for t in range(count - 1, 0, -1):
        chosen = np.int64(((counted_key(key, t) >> np.uint64(32)) * np.uint64(t + 1)) >> np.uint64(32))
        classes[t], classes[chosen] = classes[chosen], classes[t]
        slots[t], slots[chosen] = slots[chosen], slots[t]


@inline_kernel
def permute_each(sizes: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> None:
    """Replace each numbers[j] by `permute(numbers[j], sizes[j], keys[j])`.

    All arrays are uint64[n]. `keys` is overwritten.

    For small domains the outer loop is over rounds and the inner loop over numbers. The numbers are independent of each
    other, so the inner loop becomes vector instructions: three times as fast as one number after the other.
    """
    small = 0
    for j in range(numbers.size):
        if sizes[j] < SMALL:
            small += 1
        else:
            numbers[j] = np.uint64(permute(np.int64(numbers[j]), np.int64(sizes[j]), keys[j]))
    if small == 0:
        return
    for j in range(numbers.size):
        keys[j] = mix(keys[j])
    for r in range(SWAP_ROUNDS):
        for j in range(numbers.size):
            # Large domains are done already. Computing a round and discarding it keeps the loop free of branches
            x = swap_round(numbers[j], sizes[j], mix(keys[j] + np.uint64(r)))
            numbers[j] = x if sizes[j] < np.uint64(SMALL) else numbers[j]
