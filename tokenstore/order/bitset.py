"""A set of small numbers that finds its next member quickly: one word per 64 numbers, and a second level with one bit
per word.
"""

import numpy as np

from tokenstore.intrinsics import trailing_zeros
from tokenstore.jit import inline_kernel

_ZERO, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


def empty_bitset(size: int) -> np.ndarray:
    """uint64[2, words], a set of numbers below `size`, empty."""
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
    """The least member >= `number`, or -1."""
    word = number >> 6
    found = bits[0, word] & (_ALL << np.uint64(number & 63))
    if found != _ZERO:
        return (word << 6) + trailing_zeros(found)
    over = word >> 6
    above = bits[1, over] & ~(_ALL >> np.uint64(63 - (word & 63)))
    while above == _ZERO:
        over += 1
        if over << 6 >= bits.shape[1]:
            return -1
        above = bits[1, over]
    word = (over << 6) + trailing_zeros(above)
    return (word << 6) + trailing_zeros(bits[0, word])
