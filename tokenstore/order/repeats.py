"""Documents by length and how often each appears in an epoch (ORD-12).

The copies of documents in an epoch are numbered 0, 1, ... in the order of their documents in the length index. A repeat
factor p/q spreads the copies as evenly as a line of slope p/q crosses whole numbers. So the document of a copy is
computed, not stored, and every epoch has the same number of copies.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from tokenstore.jit import inline_kernel


@dataclass(frozen=True)
class Member:
    """The documents of one store by length, and its repeat factor p/q.

    Attributes:
        lengths: int64[runs], tokens per document of each run, rising.
        starts: int64[runs], position in the length index of each run's first document.
        num_documents: documents of the store.
        p, q: repeat factor in lowest terms.

    Raises: ValueError: p/q is not positive or not in lowest terms.
    """

    lengths: np.ndarray
    starts: np.ndarray
    num_documents: int
    p: int = 1
    q: int = 1

    def __post_init__(self) -> None:
        if self.p < 1 or self.q < 1 or gcd(self.p, self.q) != 1:
            raise ValueError(f"repeat factor: expected p/q in lowest terms, found {self.p}/{self.q}")

    @property
    def num_copies(self) -> int:
        """Number of copies in an epoch, including those that are empty in some epochs."""
        return -(-self.num_documents * self.p // self.q)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, each counted once."""
        return int(np.dot(self.lengths, np.diff(self.starts, append=self.num_documents)))


@inline_kernel
def position_of(copy: int, epoch: int, p: int, q: int) -> int:
    """Position of the document of number `copy` in `epoch`; the number of documents or more if the copy is empty."""
    if p == q:
        return copy
    e = epoch % q  # F(e + x) - F(e) does not change when e changes by q; small products cannot overflow
    return ((e * p // q + copy + 1) * q + p - 1) // p - 1 - e


def copies_of(position: int, epoch: int, p: int, q: int) -> range:
    """Numbers of the copies of the document at `position` in `epoch`: the inverse of `position_of`."""
    e = epoch % q
    return range((e + position) * p // q - e * p // q, (e + position + 1) * p // q - e * p // q)
