"""Ranges of bytes of files: what spans consist of."""

from typing import NamedTuple

import numpy as np

from tokenstore.batches.spans import MASK, MEMORY

_ALIGNMENT = 8


def room_of(num_bytes: int) -> int:
    """Bytes of a buffer for a range: what follows it is aligned."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class Ranges(NamedTuple):
    """Ranges of bytes that spans consist of. A span with a mask has two.

    Attributes:
        spans: int64[n], index of the span.
        files: int64[n], number of the file in the store.
        starts, stops: int64[n], offsets, starts < stops.
        bits: int64[n], for a mask the first token's bit in its first byte, otherwise -1.
        virtual: bool[n], whether the file is not mapped.
    """

    spans: np.ndarray
    files: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    bits: np.ndarray
    virtual: np.ndarray

    def only(self, chosen: np.ndarray) -> "Ranges":
        """The ranges where bool[n] is True."""
        return Ranges(*(each[chosen] for each in self))

    def joined(self, other: "Ranges") -> "Ranges":
        """These ranges and others."""
        return Ranges(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def merged(self, unit: int, num_bytes: np.ndarray) -> tuple[list[tuple[int, int, int]], np.ndarray]:
        """(file, start, stop) of all ranges, those that touch or overlap joined; and int64[n], which of these each one is in.

        Args:
            unit: starts are rounded down and stops rounded up to a multiple of it, or to the end of the file.
            num_bytes: int64[files], size of each file.
        """
        merged: list[tuple[int, int, int]] = []
        places = np.empty(len(self.spans), np.int64)
        starts = self.starts // unit * unit
        stops = np.minimum(-(-self.stops // unit) * unit, num_bytes[self.files])
        for i in np.lexsort((starts, self.files)).tolist():
            number, start, stop = int(self.files[i]), int(starts[i]), int(stops[i])
            if merged and merged[-1][0] == number and start <= merged[-1][2]:
                merged[-1] = number, merged[-1][1], max(stop, merged[-1][2])
            else:
                merged.append((number, start, stop))
            places[i] = len(merged) - 1
        return merged, places

    def put_addresses(self, spans: np.ndarray, addresses: np.ndarray) -> None:
        """Let the spans point to where their bytes are: int64[n], an address per range."""
        is_mask = self.bits >= 0
        spans[self.spans[~is_mask], MEMORY] = addresses[~is_mask]
        spans[self.spans[is_mask], MASK] = 8 * addresses[is_mask] + self.bits[is_mask]
