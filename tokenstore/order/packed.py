"""Sequences of a packed source (ORD-15): the slots of a bin, their order in the row, and which piece is in a slot in an
epoch.
"""

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key, mix
from tokenstore.order.permutation import SMALL, SWAP_ROUNDS, permute, swap_round


@inline_kernel
def slots_of_bin(
    number: int, nodes: np.ndarray, leaves: np.ndarray, starts: np.ndarray, lengths: np.ndarray, slots: np.ndarray
) -> int:
    """Write the slots of bin `number` to int64 `lengths` (their classes) and `slots`; return how many there are, at
    most L.

    nodes, leaves, starts: see `packing.Bins`.
    """
    low, left = 0, leaves.shape[0]
    while left > 1:  # without a branch: a wrong branch prediction costs more than the whole step
        half = left >> 1
        low += half if starts[low + half] <= number else 0
        left -= half
    node, place = leaves[low, 0], number + leaves[low, 1]
    count = 0
    while node > 0:
        length, copies = nodes[node, 1] >> 32, nodes[node, 1] & 0xFFFFFFFF
        first = nodes[node, 3] + place * copies
        for slot in range(first, first + copies):
            lengths[count], slots[count] = length, slot
            count += 1
        place += nodes[node, 2]
        node = nodes[node, 0]
    return count


@inline_kernel
def shuffle_slots(key: np.uint64, count: int, lengths: np.ndarray, slots: np.ndarray) -> None:
    """Shuffle the first `count` entries of both arrays in the same way (Fisher, Yates)."""
    for t in range(count - 1, 0, -1):
        chosen = np.int64(((counted_key(key, t) >> np.uint64(32)) * np.uint64(t + 1)) >> np.uint64(32))
        lengths[t], lengths[chosen] = lengths[chosen], lengths[t]
        slots[t], slots[chosen] = slots[chosen], slots[t]


@inline_kernel
def permute_each(sizes: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> None:
    """`permute` every numbers[j] in range(sizes[j]) with keys[j], in place. All are uint64 arrays; `keys` is
    overwritten.

    On small domains each round is applied to all numbers before the next one. The processor then works on several at a
    time, which is three times as fast.
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
