"""Block: the bytes of a block of a source with locality (ORD-20), in the files of its store."""

from typing import NamedTuple

Key = tuple[int, int]  # numbers of the first and the last sequence that use a block


class Block(NamedTuple):
    """Ranges of the files of a store that are read together.

    Attributes:
        key: numbers of the first and the last sequence that use it.
        ranges: (file, start, stop) of each.
    """

    key: Key
    ranges: tuple[tuple[int, int, int], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(stop - start for _, start, stop in self.ranges)

    def offset(self, number: int, start: int, stop: int) -> int | None:
        """Where the bytes [start, stop) of a file are in the block; None if it does not have all of them."""
        at = 0
        for file, first, last in self.ranges:
            if file == number and first <= start and stop <= last:
                return at + start - first
            at += last - first
        return None
