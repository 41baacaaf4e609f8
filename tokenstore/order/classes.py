"""Length classes (ORD-13, ORD-18): the pieces of a source's documents, grouped by length.

The tables have one row per distinct document length and member. Their size does not depend on the number of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel, kernel
from tokenstore.order.repeats import Member

SLOT, COPY, PIECE, MEMBER = range(4)  # columns of `entries`
# Columns of a run: tokens per document, its first copy, its copies, and its member
_TOKENS, _FIRST_COPY, _COPIES, _MEMBER = range(4)


@dataclass(frozen=True)
class LengthClasses:
    """The slots of every class, in the order of member, run and copy number.

    Attributes:
        length: the sequence length L.
        counts: int64[L + 1], number of slots of each class.
        starts: int64[L + 2], first row of each class in `entries`.
        entries: int64[n, 4], one row per class and run that contributes slots to it. SLOT is the first of these slots,
            COPY the number of the first copy, MEMBER the member. PIECE is the number of the piece in its document; in
            class L it is the number of full pieces of each copy.
        align: rooms are multiples of this number (ORD-18).
        padding: tokens that alignment adds to all rooms.
    """

    length: int
    counts: np.ndarray
    starts: np.ndarray
    entries: np.ndarray
    align: int = 1
    padding: int = 0

    @property
    def num_pieces(self) -> int:
        """Number of pieces per epoch."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Total length of all pieces in tokens. A shorter copy may use less of its piece."""
        return int((self.counts * np.arange(self.length + 1)).sum())


def length_classes(members: Sequence[Member], length: int, align: int = 1) -> LengthClasses:
    """Compute the length classes of a source.

    Takes O(runs log runs + length).

    Args:
        members: the members of the source, sorted by name.
        length: the sequence length L.
        align: rooms are multiples of this number, a divisor of `length` (ORD-18).
    """
    runs = np.empty((sum(member.lengths.size for member in members), 4), np.int64)
    used = 0
    for number, member in enumerate(members):
        rows = runs[used : used + member.lengths.size]
        rows[:, _TOKENS], rows[:, _MEMBER] = member.lengths, number
        rows[:, _FIRST_COPY] = member.starts * member.p // member.q
        rows[:-1, _COPIES] = rows[1:, _FIRST_COPY]
        rows[-1:, _COPIES] = member.num_copies
        used += member.lengths.size
    runs[:, _COPIES] -= runs[:, _FIRST_COPY]
    counts, starts = np.zeros(length + 1, np.int64), np.zeros(length + 2, np.int64)
    entries = np.empty((2 * len(runs), 4), np.int64)
    padding = group_by_class(runs, align, counts, starts, entries)
    return LengthClasses(length, counts, starts, entries[: starts[-1]].copy(), align, padding)


@kernel
def group_by_class(runs: np.ndarray, align: int, counts: np.ndarray, starts: np.ndarray, entries: np.ndarray) -> int:
    """Fill the tables of `LengthClasses` by a counting sort. Returns the tokens that alignment adds.

    A run contributes to two classes: one shorter piece per copy, and its full pieces to class L.

    Args:
        runs: int64[n, 4], see the columns above.
        align: as in `LengthClasses`.
        counts, starts: int64[L + 1] and int64[L + 2] of zeros, output.
        entries: int64[2 n, 4], output; the last entry of `starts` is the number of rows that are used.
    """
    length, padding = counts.size - 1, 0
    for i in range(runs.shape[0]):
        room = -(-runs[i, _TOKENS] // align) * align
        if runs[i, _COPIES] > 0:
            padding += (room - runs[i, _TOKENS]) * runs[i, _COPIES]
            starts[room % length + 1] += room % length > 0
            starts[length + 1] += room >= length
    for c in range(1, length + 2):
        starts[c] += starts[c - 1]
    for i in range(runs.shape[0]):
        room = -(-runs[i, _TOKENS] // align) * align
        for c, slots in ((room % length, runs[i, _COPIES]), (length, runs[i, _COPIES] * (room // length))):
            if c > 0 and slots > 0:
                entry = entries[starts[c]]
                entry[SLOT], entry[COPY], entry[PIECE] = counts[c], runs[i, _FIRST_COPY], room // length
                entry[MEMBER] = runs[i, _MEMBER]
                counts[c] += slots
                starts[c] += 1
    for c in range(length + 1, 0, -1):  # each start has moved to the end of its class
        starts[c] = starts[c - 1]
    starts[0] = 0
    return padding


@inline_kernel
def entry_of(length: int, slot: int, starts: np.ndarray, entries: np.ndarray) -> int:
    """The row of `entries` that contains `slot` of class `length`. Requires 0 <= slot < counts[length]; not checked."""
    low, left = starts[length], starts[length + 1] - starts[length]
    while left > 1:  # binary search without a branch that depends on the data
        half = left >> 1
        low += half if entries[low + half, SLOT] <= slot else 0
        left -= half
    return low


def slot_of(classes: LengthClasses, member: int, copy: int, piece: int, room: int) -> tuple[int, int]:
    """Class and slot of piece `piece` of a document copy: the inverse of `entry_of`.

    Args:
        classes: length classes of the source.
        member: number of the member.
        copy: number of the copy in the epoch.
        piece: number of the piece in the document.
        room: tokens that the copy has room for.
    """
    room += -room % classes.align
    full = piece < room // classes.length
    length = classes.length if full else room % classes.length
    rows = classes.entries[classes.starts[length] : classes.starts[length + 1]]
    # Rows of a class are sorted by member and copy, so the last row at or before this copy contains it
    key = (rows[:, MEMBER] < member) | ((rows[:, MEMBER] == member) & (rows[:, COPY] <= copy))
    row = rows[int(np.count_nonzero(key)) - 1]
    offset = copy - int(row[COPY])
    return length, int(row[SLOT]) + (offset * int(row[PIECE]) + piece if full else offset)
