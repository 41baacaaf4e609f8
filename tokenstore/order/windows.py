"""`concat` (ORD-7): a source's token stream as a circle, cut into windows at another offset every epoch."""

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.keys import counted_key
from tokenstore.order.permutation import permute


def num_windows(num_tokens: int, sequence_length: int) -> int:
    """Sequences an epoch of `concat`."""
    return num_tokens // sequence_length


@inline_kernel
def window_offset(epoch: int, num_tokens: int, offset_base: np.uint64) -> int:
    """Stream position at which the circle of `epoch` begins."""
    return np.int64(counted_key(offset_base, epoch) % np.uint64(num_tokens))


@inline_kernel
def window_start(
    epoch: int, i: int, num_tokens: int, length: int, sequence_base: np.uint64, offset_base: np.uint64, shuffle: bool
) -> int:
    """Stream position of the first token of sequence `i` of `epoch`. Unchecked: 0 <= i < num_tokens div length."""
    if not shuffle:
        return i * length
    window = permute(i, num_tokens // length, counted_key(sequence_base, epoch))
    start = window_offset(epoch, num_tokens, offset_base) + window * length
    return start - num_tokens if start >= num_tokens else start
