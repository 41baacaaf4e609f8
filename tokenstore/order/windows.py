"""Windows of `concat` (ORD-7): the token stream as a circle, cut into windows from a different offset in each epoch."""

import numpy as np

from tokenstore.jit import Integer, inline_kernel
from tokenstore.order.keys import counted_key


def num_windows(num_tokens: int, sequence_length: int) -> int:
    """Number of sequences per epoch under `concat`."""
    return num_tokens // sequence_length


@inline_kernel
def window_offset(epoch: int, num_tokens: int, offset_base: np.uint64) -> Integer:
    """Stream position at which the circle of `epoch` begins."""
    return np.int64(counted_key(offset_base, epoch) % np.uint64(num_tokens))


@inline_kernel
def window_start(
    epoch: int, window: Integer, num_tokens: int, length: int, offset_base: np.uint64, shuffle: bool
) -> Integer:
    """Stream position of the first token of a window.

    Args:
        epoch: number of the epoch.
        window: number of the window in the epoch, after the shuffle: 0 <= window < num_tokens div length; not checked.
        num_tokens: tokens of the stream.
        length: tokens per window.
        offset_base: base key for "offset" (ORD-1).
        shuffle: without it, the offset is 0.
    """
    if not shuffle:
        return window * length
    start = window_offset(epoch, num_tokens, offset_base) + window * length
    return start - num_tokens if start >= num_tokens else start
