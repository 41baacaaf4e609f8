"""A set of small integers whose next member is found in a few instructions.

A set is uint64[2, words]. Bit n % 64 of word [0, n // 64] is set if n is a member. Bit w % 64 of word [1, w // 64] is
set if word [0, w] is not 0, so a search reads one summary word for every 4,096 numbers that are not in the set.
"""

import numpy as np

from tokenstore.intrinsics import trailing_zeros
from tokenstore.jit import inline_kernel

_ZERO, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


def empty_bitset(size: int) -> np.ndarray:
    """An empty set for numbers in [0, size), as uint64[2, words]."""
    return np.zeros((2, size // 64 + 1), np.uint64)


@inline_kernel
def add(bits: np.ndarray, number: int) -> None:
    """Add a number to the set."""
    word = number >> 6
    bits[0, word] |= _ONE << np.uint64(number & 63)
    bits[1, word >> 6] |= _ONE << np.uint64(word & 63)


@inline_kernel
def remove(bits: np.ndarray, number: int) -> None:
    """Remove a number from the set."""
    word = number >> 6
    bits[0, word] &= ~(_ONE << np.uint64(number & 63))
    if bits[0, word] == _ZERO:
        bits[1, word >> 6] &= ~(_ONE << np.uint64(word & 63))


@inline_kernel
def next_member(bits: np.ndarray, number: int) -> int:
    """The smallest member >= `number`, or -1 if there is none."""
    word = number >> 6
    found = bits[0, word] & (_ALL << np.uint64(number & 63))
    if found != _ZERO:
        return (word << 6) + trailing_zeros(found)
    over = word >> 6
    # Summary bits of the words after this one. The mask keeps bits 0..word & 63 and cannot shift by 64
    above = bits[1, over] & ~(_ALL >> np.uint64(63 - (word & 63)))
    while above == _ZERO:
        over += 1
        if over << 6 >= bits.shape[1]:
            return -1
        above = bits[1, over]
    word = (over << 6) + trailing_zeros(above)
    return (word << 6) + trailing_zeros(bits[0, word])
