"""Whether the runs of a length index can be true (FMT-9): checked in blocks, so that a false file costs no memory."""

import numpy as np

_BLOCK = 1 << 16  # runs checked at once


def are_runs(runs: np.ndarray, num_documents: int, num_tokens: int) -> bool:
    """Whether all lengths rise, and the documents of all lengths add up to those of the store, and to its tokens.

    Args:
        runs: int64[n, 2], length and place of its first document; any values. n >= 1.
        num_documents, num_tokens: of the store.
    """
    total = last_length = 0
    if runs[0, 1] != 0:
        return False
    for first in range(0, len(runs), _BLOCK):
        lengths, starts = runs[first : first + _BLOCK].T
        stop = int(runs[first + _BLOCK, 1]) if first + _BLOCK < len(runs) else num_documents
        bounded = last_length < lengths[0] and lengths.max() <= num_tokens and starts.min() >= 0
        if not bounded or not starts.max() < stop <= num_documents:  # from here on no difference wraps
            return False
        counts = np.diff(starts, append=stop)
        # Rising lengths are all at least 1; the sum of products is bounded before it is taken, as int64 would wrap
        if not (counts > 0).all() or not (np.diff(lengths) > 0).all():
            return False
        if lengths.astype(np.float64) @ counts.astype(np.float64) > 1.01 * num_tokens:
            return False
        total += int(lengths @ counts)
        last_length = int(lengths[-1])
    return total == num_tokens
