"""Documents by length, and how often an epoch contains each (ORD-12): its copies, and their positions in an epoch.

A repeat factor p/q spreads its copies as evenly as a line of slope p/q crosses whole numbers, so no list of the chosen
documents is needed, and every epoch has the same number of copies.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from tokenstore.jit import inline_kernel


@dataclass(frozen=True)
class Member:
    """The documents of one store, by length, and its repeat factor p/q in lowest terms.

    Attributes:
        lengths: int64[runs], tokens of the documents of each run, increasing.
        starts: int64[runs], position of each run's first document.
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
        """Maximum number of copies in an epoch."""
        return -(-self.num_documents * self.p // self.q)


@inline_kernel
def position_of(copy: int, epoch: int, p: int, q: int) -> int:
    """Position of the document that is copy `copy` in `epoch`; the number of documents or more if the copy is empty."""
    if p == q:
        return copy
    e = epoch % q  # F(e + x) - F(e) does not change when q is taken from e
    return ((e * p // q + copy + 1) * q + p - 1) // p - 1 - e


def copies_of(position: int, epoch: int, p: int, q: int) -> range:
    """Numbers of the copies of the document at `position` in `epoch`: the inverse of `position_of`."""
    e = epoch % q
    return range((e + position) * p // q - e * p // q, (e + position + 1) * p // q - e * p // q)
