"""Checks whether the runs of a length index are possible (FMT-9). It works in blocks, so a forged file costs no memory."""

import numpy as np

_BLOCK = 1 << 16  # runs checked at once


def are_runs(runs: np.ndarray, num_documents: int, num_tokens: int) -> bool:
    """Whether the lengths rise, and the documents of all lengths add up to the documents and tokens of the store.

    Args:
        runs: int64[n, 2], n >= 1: length, and index of the first document with that length. Any values are allowed.
        num_documents, num_tokens: totals of the store.
    """
    total = last_length = 0
    if runs[0, 1] != 0:
        return False
    for first in range(0, len(runs), _BLOCK):
        lengths, starts = runs[first : first + _BLOCK].T
        stop = int(runs[first + _BLOCK, 1]) if first + _BLOCK < len(runs) else num_documents
        bounded = last_length < lengths[0] and lengths.max() <= num_tokens and starts.min() >= 0
        if not bounded or not starts.max() < stop <= num_documents:  # after this check no difference can overflow
            return False
        counts = np.diff(starts, append=stop)
        # Rising lengths are at least 1. The sum of products is bounded in float first, because int64 could overflow
        if not (counts > 0).all() or not (np.diff(lengths) > 0).all():
            return False
        if lengths.astype(np.float64) @ counts.astype(np.float64) > 1.01 * num_tokens:
            return False
        total += int(lengths @ counts)
        last_length = int(lengths[-1])
    return total == num_tokens
