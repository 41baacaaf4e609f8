"""Loss masks (FMT-10): which tokens are in the loss, one bit per token. Only for stores that have them.

The bits of a chunk are first spread to a byte each, so that the loops that use them become vector instructions.
"""

import numpy as np

from tokenstore.intrinsics import array_at, int64_at, uint8_at, uint16_at, uint32_at, uint64_at
from tokenstore.jit import Integer, inline_kernel

MASK_WORDS = 80  # uint64 of scratch, 8 tokens each: a chunk of 512 that begins inside a byte, and one more token
_REPEAT, _PICK = np.uint64(0x0101010101010101), np.uint64(0x8040201008040201)


@inline_kernel
def read_bits(place: Integer, count: Integer, scratch: Integer) -> Integer:
    """Spread `count` bits from bit `place` (8 x address + bit) on; returns the address of a byte each, not 0 where set.

    It reads no byte that holds none of these bits.
    """
    shift = place & 7
    num_bytes = (shift + count + 7) >> 3
    bits = array_at(uint8_at(place >> 3), (num_bytes,))
    words = array_at(uint64_at(scratch), (num_bytes,))
    for i in range(num_bytes):
        words[i] = (np.uint64(bits[i]) * _REPEAT) & _PICK  # byte k of the word is not 0 where bit k is set
    return scratch + shift


@inline_kernel
def widen_in_loss(
    tokens: Integer, token_bytes: Integer, count: Integer, in_loss: Integer, ignored: Integer, out: Integer
) -> None:
    """Copy `count` tokens of uint16 or uint32 to int64, with `ignored` in place of those whose byte of `in_loss` is 0."""
    wide, flags = array_at(int64_at(out), (count,)), array_at(uint8_at(in_loss), (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            token = np.int64(short[i])  # read in any case: a load that depends on a flag is no vector instruction
            wide[i] = token if flags[i] else ignored
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            token = np.int64(words[i])
            wide[i] = token if flags[i] else ignored
