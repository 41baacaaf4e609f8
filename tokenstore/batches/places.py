"""Lists the places of microbatches, 256 at once: 16 at once, each would take five times as long, with the caches cold."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import numpy as np

Place = tuple[Any, ...]  # step, first row, rows, ...
MOST_LISTED = 256


class Places:
    """A queue of the places of microbatches."""

    def __init__(self, places: Iterable[Place]):
        """places: (step, first row, number of rows, ...) of each microbatch, all of the same length."""
        self._coming = iter(places)
        self._listed: list[Place] = []
        self._next = 0  # the number of the next one in `_listed`
        self._count = 1  # how many to list next. At first one, so that the first batch does not wait for others
        self._table: np.ndarray | None = None
        self._address = self._columns = 0

    def next(self, count: int) -> list[Place]:
        """The next places, at most `count`, without taking them; fewer where they were listed separately. Empty at the end."""
        if self._next == len(self._listed):
            self._listed, self._next, self._table = list(islice(self._coming, self._count)), 0, None
            self._count = min(2 * self._count, MOST_LISTED)
        return self._listed[self._next : self._next + count]

    def take(self, count: int) -> None:
        """Take the first `count` of the next places."""
        self._next += count

    def address(self) -> int:
        """Address of the next places as int64[n, columns]. It is valid until other places are listed."""
        if self._table is None:
            self._columns = len(self._listed[0])
            self._table = np.fromiter(chain.from_iterable(self._listed), np.int64, len(self._listed) * self._columns)
            self._address = self._table.ctypes.data
        return self._address + 8 * self._columns * self._next
