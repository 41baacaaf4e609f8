"""Documents sorted by (tokens, id) (ORD-12): a counting sort, two passes over the boundaries and nothing else in memory."""

import numpy as np

from tokenstore.jit import kernel

LONG = 1 << 20  # documents of this many tokens or more share one count: there cannot be many


@kernel
def count_lengths(starts: np.ndarray, counts: np.ndarray) -> bool:
    """Add the documents between starts int64[n + 1] to int64[LONG + 1] `counts` by length; False for one of no token."""
    for i in range(starts.size - 1):
        length = starts[i + 1] - starts[i]
        if length < 1:
            return False
        counts[min(length, LONG)] += 1
    return True


@kernel
def place_by_length(starts: np.ndarray, first_document: int, places: np.ndarray, out: np.ndarray) -> None:
    """Put the documents between starts int64[n + 1], the first of which is `first_document`, where they belong in `out`.

    places: int64[LONG + 1], where the next document of each length goes; moved on. Unchecked: counted with the same starts.
    """
    for i in range(starts.size - 1):
        length = min(starts[i + 1] - starts[i], LONG)
        out[places[length]] = first_document + i
        places[length] += 1
