"""Slices (ORD-16): a subset of the documents of a store, by their positions in the length index.

A slice is a handful of integers. The position of its y-th document, and the inverse, cost a division or two, so a slice
needs no file and no list of documents.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tokenstore.jit import inline_kernel

_MOST_COMPARED = 1 << 18  # documents; the pattern of every slice written by hand repeats within far fewer


@dataclass(frozen=True)
class Slice:
    """Three filters, each of which numbers what it keeps from 0 again.

    Attributes:
        first, count: positions [first, first + count) of the length index.
        i, n: of these, the ones whose number modulo n is i.
        p, q: of these, the fraction p/q, in lowest terms, evenly spaced.

    Raises: ValueError: a number is out of its range.

    Example:
        >>> every_fourth = Slice(0, 1000, i=0, n=4)
        >>> every_fourth.num_documents
        250
    """

    first: int
    count: int
    i: int = 0
    n: int = 1
    p: int = 1
    q: int = 1

    def __post_init__(self) -> None:
        if min(self.first, self.count) < 0 or not 0 <= self.i < self.n:
            raise ValueError(f"slice: expected a range and a number below {self.n}, found {self}")
        if not 1 <= self.p <= self.q or gcd(self.p, self.q) != 1:
            raise ValueError(f"slice: expected a fraction in lowest terms, at most 1, found {self.p}/{self.q}")

    @property
    def num_taken(self) -> int:
        """Number of documents after the first two filters."""
        return max(-(-(self.count - self.i) // self.n), 0)

    @property
    def num_documents(self) -> int:
        """Number of documents of the slice."""
        return self.num_taken * self.p // self.q

    def is_all(self, num_documents: int) -> bool:
        """Whether the slice keeps every document of a store with `num_documents` documents."""
        return self == Slice(0, num_documents)

    def before(self, positions: Any) -> np.ndarray:
        """How many documents of the slice come before each position of the length index: int64[n] -> int64[n]."""
        inside = np.clip(np.asarray(positions, np.int64) - self.first, 0, self.count)
        taken: np.ndarray = np.maximum(-(-(inside - self.i) // self.n), 0)
        return taken * self.p // self.q

    def positions(self, numbers: Any) -> np.ndarray:
        """The positions in the length index of the documents with these numbers in the slice: int64[n] -> int64[n]."""
        kept = -(-(np.asarray(numbers, np.int64) + 1) * self.q // self.p) - 1
        return self.first + self.i + self.n * kept

    def number_of(self, position: int) -> int | None:
        """The number in the slice of the document at a position of the length index; None if it is not in the slice."""
        number = int(self.before(position))
        inside = number < self.num_documents and int(self.positions(number)) == position
        return number if inside else None

    def overlaps(self, other: "Slice") -> bool:
        """Whether a document is in both slices of the same store.

        Only the first documents of the slices are compared if both are large and use fractions.
        """
        start, stop = max(self.first, other.first), min(self.first + self.count, other.first + other.count)
        if start >= stop or (self.first + self.i - other.first - other.i) % gcd(self.n, other.n):
            return False
        if self.n == self.q == other.n == other.q == 1:
            return True  # both are ranges
        low, high = self.before([start, stop]).tolist()
        mine = self.positions(np.arange(low, min(high, low + _MOST_COMPARED)))
        numbers = other.before(mine)
        inside = numbers < other.num_documents
        return bool(np.any(other.positions(numbers[inside]) == mine[inside]))


@inline_kernel
def slice_position(number: int, first: int, step: int, p: int, q: int) -> int:
    """Position in the length index of a document of a slice.

    Args:
        number: number of the document in the slice.
        first: `Slice.first` + `Slice.i`.
        step: `Slice.n`.
        p, q: fraction in lowest terms.
    """
    if q > 1:  # predictable, and a division costs as much as the rest
        number = ((number + 1) * q + p - 1) // p - 1
    return first + step * number
