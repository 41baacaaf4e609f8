"""Length classes (ORD-13, ORD-18): the pieces of a source's documents, grouped by length.

The tables have one row per distinct document length and member. Their size does not depend on the number of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel
from tokenstore.order.repeats import Member

SLOT, COPY, PIECE, MEMBER = range(4)  # columns of `entries`


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
    parts, padding = [], 0
    for number, member in enumerate(members):
        copies = np.append(member.starts * member.p // member.q, member.num_copies)
        rooms = -(-member.lengths // align) * align
        chunks, rest = np.divmod(rooms, length)
        sizes = np.diff(copies)
        padding += int(((rooms - member.lengths) * sizes).sum())
        # A run contributes to two classes: one shorter piece per copy, and `chunks` full pieces per copy to class L
        for classes, piece, slots in ((rest, chunks, sizes), (np.full_like(rest, length), chunks, sizes * chunks)):
            used = (classes > 0) & (slots > 0)
            columns = (classes, slots, copies[:-1], piece, np.full_like(piece, number))
            parts.append(np.stack([column[used] for column in columns]))
    table = np.concatenate(parts, axis=1)  # [5, n]: class, slots, first copy, piece, member
    table = table[:, np.argsort(table[0], kind="stable")]
    classes, slots = table[:2]
    starts = np.searchsorted(classes, np.arange(length + 2))
    ends = np.append(0, np.cumsum(slots))
    counts = np.diff(ends[starts])
    # Slots of the class before this row: running total over all rows, less the total where the class begins
    first_slots = ends[:-1] - ends[starts[classes]]
    return LengthClasses(length, counts, starts, np.stack([first_slots, *table[2:]], axis=1), align, padding)


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
