"""Length classes (ORD-13, ORD-18): the pieces of a source's documents, grouped by length.

The tables have one row per distinct document length and member. Their size does not depend on the number of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.jit import Integer, inline_kernel, kernel
from tokenstore.order.repeats import Member
from tokenstore.order.words import NARROW, WIDE, packed_words, unpacked_words, word

# Columns of `table`: tokens of a piece, slots, and the first row in `entries`; of `entries`: see `LengthClasses`
CLASS_ROOM, SLOTS, FIRST_ENTRY = range(3)
SLOT, COPY, PIECE_AND_MEMBER = range(3)
MEMBER_BITS = (16, 20)  # of PIECE_AND_MEMBER, in a narrow and a wide table
_MOST_PIECES = 1 << (63 - MEMBER_BITS[WIDE])
# Columns of a run: tokens per document, its first copy, its copies, and its member
_TOKENS, _FIRST_COPY, _COPIES, _MEMBER = range(4)
_PIECE, _ITS_MEMBER = 2, 3  # columns after SLOT and COPY of an entry, before both become halves of a number


@dataclass(frozen=True)
class LengthClasses:
    """The length classes that have slots, by rising length, and their slots in the order of member, run and copy number.

    The tables have the form of `words`. Their size is proportional to the number of different lengths.

    Attributes:
        length: the sequence length L.
        table: uint32[(k + 1) << wide, 3], a row per class, see the columns above. The last row only ends the entries.
        entries: uint32[n << wide, 3], one row per class and run that contributes slots to it. SLOT is the first of these
            slots, COPY the number of the first copy. PIECE_AND_MEMBER has two parts: the number of the piece in its
            document, in class L the number of full pieces of each copy; and the member.
        wide: WIDE if the numbers of these tables, or of the packings of an epoch, need 8 bytes; otherwise NARROW.
        align: rooms are multiples of this number (ORD-18).
        padding: tokens that alignment adds to all rooms.
    """

    length: int
    table: np.ndarray
    entries: np.ndarray
    wide: int
    align: int = 1
    padding: int = 0

    @property
    def rooms(self) -> np.ndarray:
        """int64[k], the tokens of a piece of each class."""
        return unpacked_words(self.table, self.wide)[:-1, CLASS_ROOM]

    @property
    def slots(self) -> np.ndarray:
        """int64[k], the number of slots of each class."""
        return unpacked_words(self.table, self.wide)[:-1, SLOTS]

    @property
    def counts(self) -> np.ndarray:
        """int64[L + 1], the number of pieces of each length."""
        counts = np.zeros(self.length + 1, np.int64)
        counts[self.rooms] = self.slots
        return counts

    @property
    def num_pieces(self) -> int:
        """Number of pieces per epoch."""
        return int(self.slots.sum())

    @property
    def num_tokens(self) -> int:
        """Total length of all pieces in tokens. A shorter copy may use less of its piece."""
        return int((self.slots * self.rooms).sum())

    def entries_of(self, number: int) -> np.ndarray:
        """int64[n, 4], the entries of class number `number`: the first slot, the first copy, piece and member."""
        first, stop = unpacked_words(self.table, self.wide)[number : number + 2, FIRST_ENTRY].tolist()
        rows = unpacked_words(self.entries, self.wide)[first:stop]
        bits, both = MEMBER_BITS[self.wide], rows[:, PIECE_AND_MEMBER]
        return np.stack([rows[:, SLOT], rows[:, COPY], both >> bits, both & ((1 << bits) - 1)], axis=1)


def length_classes(members: Sequence[Member], length: int, align: int = 1) -> LengthClasses:
    """Compute the length classes of a source.

    Takes O(runs log runs + length).

    Args:
        members: the members of the source, sorted by name.
        length: the sequence length L.
        align: rooms are multiples of this number, a divisor of `length` (ORD-18).

    Raises: ValueError: a document has more than 2**43 pieces, or there are more than 2**20 members.
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
    entries = entries[: starts[-1]]
    rooms = np.flatnonzero(counts)
    table = np.zeros((len(rooms) + 1, 3), np.int64)
    table[:-1, CLASS_ROOM], table[:-1, SLOTS], table[:-1, FIRST_ENTRY] = rooms, counts[rooms], starts[rooms]
    table[-1, FIRST_ENTRY] = len(entries)
    wide = _width(length, int(counts.sum()), int(entries[:, _PIECE].max(initial=0)), len(members))
    entries[:, PIECE_AND_MEMBER] = (entries[:, _PIECE] << MEMBER_BITS[wide]) + entries[:, _ITS_MEMBER]
    return LengthClasses(length, packed_words(table, wide), packed_words(entries[:, :3], wide), wide, align, padding)


def _width(length: int, num_pieces: int, most_pieces: int, num_members: int) -> int:
    """NARROW if all numbers in the tables of a source fit 32 bits.

    No number is greater than that of all pieces, than L**2 (ORD-19), or than two parts of 16 bits: piece and member, or
    class and slots per bin, which are at most L.

    Args:
        length: the sequence length L.
        num_pieces: pieces of an epoch.
        most_pieces: pieces of a document, at most.
        num_members: members of the source.
    """
    if most_pieces >= _MOST_PIECES or num_members > 1 << MEMBER_BITS[WIDE]:
        raise ValueError(
            f"documents: expected fewer than {_MOST_PIECES:,} sequences of {length} tokens in each, and at most"
            f" {1 << MEMBER_BITS[WIDE]:,} members, found {most_pieces:,} and {num_members:,}"
        )
    return NARROW if max(length, most_pieces, num_members) < 1 << 16 and num_pieces < 1 << 32 else WIDE


@kernel
def group_by_class(runs: np.ndarray, align: int, counts: np.ndarray, starts: np.ndarray, entries: np.ndarray) -> int:
    """Fill tables for all lengths 0..L by a counting sort. Returns the tokens that alignment adds.

    A run contributes to two classes: one shorter piece per copy, and its full pieces to class L.

    Args:
        runs: int64[n, 4], see the columns above.
        align: as in `LengthClasses`.
        counts, starts: int64[L + 1] and int64[L + 2] of zeros, output: slots of each class, and its first entry.
        entries: int64[2 n, 4], output: slot, copy, piece and member; see `LengthClasses`. The last number of `starts`
            is that of the rows that are used.
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
                entry[SLOT], entry[COPY], entry[_PIECE] = counts[c], runs[i, _FIRST_COPY], room // length
                entry[_ITS_MEMBER] = runs[i, _MEMBER]
                counts[c] += slots
                starts[c] += 1
    for c in range(length + 1, 0, -1):  # each start has moved to the end of its class
        starts[c] = starts[c - 1]
    starts[0] = 0
    return padding


@inline_kernel
def entry_of(number: Integer, slot: Integer, table: np.ndarray, entries: np.ndarray, wide: int) -> Integer:
    """The row of `entries` that contains a slot of class number `number`. The slot is not checked: it must exist."""
    low = word(table, number, FIRST_ENTRY, wide)
    left = word(table, number + 1, FIRST_ENTRY, wide) - low
    while left > 1:  # binary search without a branch that depends on the data
        half = left >> 1
        low += half if word(entries, low + half, SLOT, wide) <= slot else 0
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
    rows = classes.entries_of(int(np.searchsorted(classes.rooms, length)))
    # Rows of a class are sorted by member and copy, so the last row at or before this copy contains it
    slots, copies, pieces, members = rows.T
    key = (members < member) | ((members == member) & (copies <= copy))
    row = int(np.count_nonzero(key)) - 1
    offset = copy - int(copies[row])
    return length, int(slots[row]) + (offset * int(pieces[row]) + piece if full else offset)
