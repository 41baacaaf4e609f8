"""An array in an object, of which only slices are fetched."""

from collections.abc import Callable

import numpy as np


class RemoteArray:
    """A one-dimensional array at a URL: `array[a:b]` fetches these items.

    Attributes:
        dtype: of the items.
        size: number of items.
    """

    def __init__(self, read: Callable[[int, int], np.ndarray], dtype: np.dtype, first_byte: int, size: int):
        """`read(start, stop)` returns bytes of the object as uint8[stop - start]; the array begins at `first_byte`."""
        self._read, self.dtype, self._first_byte, self.size = read, dtype, first_byte, size

    def __getitem__(self, items: slice) -> np.ndarray:
        """Consecutive items, read-only."""
        start, stop, step = items.indices(self.size)
        if step != 1:
            raise ValueError(f"step: expected 1, found {step}")
        if stop <= start:
            return np.empty(0, self.dtype)
        first, last = (self._first_byte + self.dtype.itemsize * item for item in (start, stop))
        return self._read(first, last).view(self.dtype)
