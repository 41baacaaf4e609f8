"""`concat` (ORD-7): a store's token stream as a circle, cut into windows at a different offset in every epoch."""

import numpy as np

from tokenstore.jit import Integer, inline_kernel
from tokenstore.order.keys import counted_key


def num_windows(num_tokens: int, sequence_length: int) -> int:
    """Number of sequences per epoch of `concat`."""
    return num_tokens // sequence_length


@inline_kernel
def window_offset(epoch: int, num_tokens: int, offset_base: np.uint64) -> Integer:
    """Stream position at which the circle of `epoch` begins."""
    return np.int64(counted_key(offset_base, epoch) % np.uint64(num_tokens))


@inline_kernel
def window_start(
    epoch: int, window: Integer, num_tokens: int, length: int, offset_base: np.uint64, shuffle: bool
) -> Integer:
    """Stream position of the first token of a window of `epoch`. Unchecked: 0 <= window < num_tokens div length.

    window: the sequence's number in the epoch, after the shuffle of the epoch.
    """
    if not shuffle:
        return window * length
    start = window_offset(epoch, num_tokens, offset_base) + window * length
    return start - num_tokens if start >= num_tokens else start
