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
        lengths = runs[first : first + _BLOCK, 0]
        edges = np.append(runs[first : first + _BLOCK, 1], num_documents)
        if first + _BLOCK < len(runs):
            edges[-1] = runs[first + _BLOCK, 1]
        if lengths[0] <= last_length or lengths[-1] > num_tokens or edges[-1] > num_documents:
            return False
        if not (lengths[1:] > lengths[:-1]).all() or not (edges[1:] > edges[:-1]).all():
            return False
        # Everything rises from 0 or 1 on, so no difference can overflow. The sum of products is bounded in float first,
        # because int64 could overflow
        counts = edges[1:] - edges[:-1]
        if lengths.astype(np.float64) @ counts.astype(np.float64) > 1.01 * num_tokens:
            return False
        total += int(lengths @ counts)
        last_length = int(lengths[-1])
    return total == num_tokens
