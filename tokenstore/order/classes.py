"""Length classes (ORD-13): the pieces of a source's documents at one sequence length, as unions of runs.

The size of their tables depends on the number of distinct lengths, not on the number of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.repeats import Member

SLOT, COPY, PIECE, MEMBER = range(4)


@dataclass(frozen=True)
class LengthClasses:
    """The slots of every class, in order of member, run and copy.

    Attributes:
        length: the sequence length L.
        counts: int64[L + 1], slots of each class.
        starts: int64[L + 2], where each class begins in `entries`.
        entries: int64[n, 4], a row for the slots that a run adds to a class: its first SLOT, its first COPY, its
            MEMBER, and PIECE: the number of the piece in its document, in class L the number of pieces of each copy.
    """

    length: int
    counts: np.ndarray
    starts: np.ndarray
    entries: np.ndarray

    @property
    def num_pieces(self) -> int:
        """Number of pieces per epoch."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Room of all pieces together, in tokens."""
        return int((self.counts * np.arange(self.length + 1)).sum())


def length_classes(members: Sequence[Member], length: int) -> LengthClasses:
    """Length classes of `members`, sorted by name, at sequence length `length`, in O(runs log runs + length)."""
    parts = []
    for number, member in enumerate(members):
        copies = np.append(member.starts * member.p // member.q, member.num_copies)
        chunks, rest = np.divmod(member.lengths, length)
        sizes = np.diff(copies)
        for classes, piece, slots in ((rest, chunks, sizes), (np.full_like(rest, length), chunks, sizes * chunks)):
            used = (classes > 0) & (slots > 0)
            columns = (classes, slots, copies[:-1], piece, np.full_like(piece, number))
            parts.append(np.stack([column[used] for column in columns]))
    table = np.concatenate(parts, axis=1)
    table = table[:, np.argsort(table[0], kind="stable")]
    classes, slots = table[:2]
    starts = np.searchsorted(classes, np.arange(length + 2))
    ends = np.append(0, np.cumsum(slots))
    counts = np.diff(ends[starts])
    first_slots = ends[:-1] - ends[starts[classes]]
    return LengthClasses(length, counts, starts, np.stack([first_slots, *table[2:]], axis=1))


@inline_kernel
def entry_of(length: int, slot: int, starts: np.ndarray, entries: np.ndarray) -> int:
    """The row of `entries` that holds `slot` of the class of `length`. Unchecked: 0 <= slot < counts[length]."""
    low, left = starts[length], starts[length + 1] - starts[length]
    while left > 1:
        half = left >> 1
        low += half if entries[low + half, SLOT] <= slot else 0
        left -= half
    return low


def slot_of(classes: LengthClasses, member: int, copy: int, piece: int, run_length: int) -> tuple[int, int]:
    """(class, slot) of piece `piece` of copy `copy` of `member`, in a run of `run_length` tokens: the inverse of `entry_of`."""
    full = piece < run_length // classes.length
    length = classes.length if full else run_length % classes.length
    rows = classes.entries[classes.starts[length] : classes.starts[length + 1]]
    # rows are sorted by member, then copy; a run has at most one row per class
    key = (rows[:, MEMBER] < member) | ((rows[:, MEMBER] == member) & (rows[:, COPY] <= copy))
    row = rows[int(np.count_nonzero(key)) - 1]
    offset = copy - int(row[COPY])
    return length, int(row[SLOT]) + (offset * int(row[PIECE]) + piece if full else offset)
