"""Loss masks (FMT-10): one bit per token, set if the token is in the loss. Used only for stores that have masks.

`read_bits` expands the bits of a chunk to bytes once. The loops over tokens then read a byte per token, without shifts
and without branches, so that they become vector instructions.
"""

import numpy as np

from tokenstore.intrinsics import array_at, int64_at, uint8_at, uint16_at, uint32_at, uint64_at
from tokenstore.jit import Integer, inline_kernel

# uint64 words of scratch, one per mask byte. A chunk of 512 tokens and one more, which begins inside a byte, needs 65
MASK_WORDS = 80
_REPEAT, _PICK = np.uint64(0x0101010101010101), np.uint64(0x8040201008040201)


@inline_kernel
def read_bits(place: Integer, count: Integer, scratch: Integer) -> Integer:
    """Expand `count` bits to bytes. Returns the address of the first byte; a byte is not 0 if its bit is set.

    Reads only mask bytes that contain one of these bits, so it never reads beyond the end of a file.

    Args:
        place: position of the first bit, as 8 x address + bit. The lowest bit of a byte comes first.
        count: number of bits.
        scratch: address of uint64[MASK_WORDS].
    """
    shift = place & 7
    num_bytes = (shift + count + 7) >> 3
    bits = array_at(uint8_at(place >> 3), (num_bytes,))
    words = array_at(uint64_at(scratch), (num_bytes,))  # 8 bytes per mask byte
    for i in range(num_bytes):
        words[i] = (np.uint64(bits[i]) * _REPEAT) & _PICK  # byte k of the word is not 0 if bit k is set
    return scratch + shift


@inline_kernel
def widen_in_loss(
    tokens: Integer, token_bytes: Integer, count: Integer, in_loss: Integer, ignored: Integer, out: Integer
) -> None:
    """Copy tokens to int64, and replace those that are not in the loss.

    Args:
        tokens: address of uint16[count] or uint32[count].
        token_bytes: 2 or 4.
        count: number of tokens.
        in_loss: address of uint8[count], from `read_bits`.
        ignored: value for tokens whose byte is 0.
        out: address of int64[count], output.
    """
    wide, flags = array_at(int64_at(out), (count,)), array_at(uint8_at(in_loss), (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            token = np.int64(short[i])  # loaded in any case: a conditional load prevents vector instructions
            wide[i] = token if flags[i] else ignored
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            token = np.int64(words[i])
            wide[i] = token if flags[i] else ignored
