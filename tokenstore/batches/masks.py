"""Loss masks (FMT-10): one bit per token, set if the token is in the loss. Used only for stores that have masks."""

import numpy as np

from tokenstore.intrinsics import array_at, uint8_at
from tokenstore.jit import Integer, inline_kernel

ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


@inline_kernel
def bits_at(place: Integer, count: Integer) -> np.uint64:
    """The bits of `count` tokens, at most 57; bit k is that of token k. Higher bits are undefined.

    Reads only mask bytes that contain one of these bits, so it never reads beyond the end of a file.

    place: position of the first bit, as 8 x address + bit. The lowest bit of a byte comes first.
    """
    shift = place & 7
    num_bytes = (shift + count + 7) >> 3
    found = array_at(uint8_at(place >> 3), (num_bytes,))
    bits = np.uint64(0)
    for i in range(num_bytes):
        bits |= np.uint64(found[i]) << np.uint64(8 * i)
    return bits >> np.uint64(shift)
