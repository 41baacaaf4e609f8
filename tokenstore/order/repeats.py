"""Documents by length and how often an epoch gives each (ORD-12): ranks, and the position a rank has in an epoch.

A repeat factor p/q spreads its copies as evenly as a line of slope p/q crosses whole numbers, so no list of the chosen
documents is kept, and every epoch has the same ranks.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from tokenstore.jit import inline_kernel


@dataclass(frozen=True)
class Member:
    """The documents of one store, by length, and its repeat factor p/q in lowest terms.

    Attributes:
        lengths: int64[runs], tokens of the documents of each run, rising.
        firsts: int64[runs], position of each run's first document.
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
    def num_ranks(self) -> int:
        """Most documents of an epoch, copies counted."""
        return -(-self.num_documents * self.p // self.q)


@inline_kernel
def position_of(rank: int, epoch: int, p: int, q: int) -> int:
    """Position of the document at `rank` in `epoch`; the number of documents or more where there is none."""
    if p == q:
        return rank
    e = epoch % q  # F(e + x) - F(e) does not change when q is taken from e
    return ((e * p // q + rank + 1) * q + p - 1) // p - 1 - e


def ranks_of(position: int, epoch: int, p: int, q: int) -> range:
    """The ranks that the document at `position` has in `epoch`: the inverse of `position_of`."""
    e = epoch % q
    return range((e + position) * p // q - e * p // q, (e + position + 1) * p // q - e * p // q)
