"""Sequences of a packed source (ORD-15): the slots of a bin, their order in the row, and who is in a slot this epoch."""

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key, mix
from tokenstore.order.packing import COPIES, FIRST_SLOT, LENGTH, OFFSET, PARENT, TAKEN
from tokenstore.order.permutation import SMALL, SWAP_ROUNDS, permute, swap_round


@inline_kernel
def slots_of_bin(
    number: int, groups: np.ndarray, leaves: np.ndarray, firsts: np.ndarray, lengths: np.ndarray, slots: np.ndarray
) -> int:
    """The slots of bin `number` into int64 `lengths` (their classes) and `slots`; returns how many, at most L."""
    low, left = 0, leaves.size
    while left > 1:  # no branch on what is found: a wrong guess costs more than the whole step
        half = left >> 1
        low += half if firsts[low + half] <= number else 0
        left -= half
    group = leaves[low]
    place = groups[group, TAKEN] + number - firsts[low]  # among the bins of the group
    count = 0
    while group > 0:
        copies = groups[group, COPIES]
        first = groups[group, FIRST_SLOT] + place * copies
        for slot in range(first, first + copies):
            lengths[count], slots[count] = groups[group, LENGTH], slot
            count += 1
        place += groups[group, OFFSET]
        group = groups[group, PARENT]
    return count


@inline_kernel
def shuffle_slots(key: np.uint64, count: int, lengths: np.ndarray, slots: np.ndarray) -> None:
    """Fisher and Yates over the first `count` of both arrays."""
    for t in range(count - 1, 0, -1):
        chosen = np.int64(((counted_key(key, t) >> np.uint64(32)) * np.uint64(t + 1)) >> np.uint64(32))
        lengths[t], lengths[chosen] = lengths[chosen], lengths[t]
        slots[t], slots[chosen] = slots[chosen], slots[t]


@inline_kernel
def permute_each(sizes: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> None:
    """`permute` every numbers[j] of range(sizes[j]) by keys[j], in place; uint64 arrays, `keys` is used up.

    Small domains go round by round, all at once: the processor does several side by side, three times as fast.
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
            x = swap_round(numbers[j], sizes[j], mix(keys[j] + np.uint64(r)))
            numbers[j] = x if sizes[j] < np.uint64(SMALL) else numbers[j]
