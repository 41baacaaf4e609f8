"""Sorts documents by (tokens, document number) (ORD-12): a counting sort in two passes over the boundaries."""

import numpy as np

from tokenstore.jit import kernel

LONG = 1 << 20  # tokens; longer documents share one count, because even a large store has few of them


@kernel
def count_lengths(starts: np.ndarray, counts: np.ndarray) -> bool:
    """Count documents by length; False if a document has no tokens.

    Args:
        starts: int64[n + 1], first token of each of n documents, and the end of the last one.
        counts: int64[k + 1], increased in place. The last entry counts all documents of k or more tokens.
    """
    longest = counts.size - 1
    for i in range(starts.size - 1):
        length = starts[i + 1] - starts[i]
        if length < 1:
            return False
        counts[min(length, longest)] += 1
    return True


@kernel
def place_by_length(starts: np.ndarray, first_document: int, places: np.ndarray, out: np.ndarray) -> None:
    """Write the numbers of n documents to their places in the sorted order.

    Args:
        starts: int64[n + 1], the same as for `count_lengths`; not checked again.
        first_document: number of the first document.
        places: int64[k + 1], place of the next document of each length; increased in place.
        out: output with one entry per document of the store, sorted by length.
    """
    longest = places.size - 1
    for i in range(starts.size - 1):
        length = min(starts[i + 1] - starts[i], longest)
        out[places[length]] = first_document + i
        places[length] += 1
