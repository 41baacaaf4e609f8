"""Sequences of packed sources (ORD-13, ORD-15) -> their spans, a microbatch at a time.

Every piece needs three places in memory that lie anywhere in a store of any size: its document's number, the boundaries of
that document, its tokens. So each step is done for all pieces of the microbatch before the next one, and asks the processor
for what the next one reads.
"""

import numpy as np
from numba import carray

from tokenstore.batches.packings import (
    CLASS_FIRSTS,
    COUNTS,
    ENTRIES,
    EPOCH,
    FIRSTS,
    LEAVES,
    MEMBERS,
    NODES,
    NUM_ENTRIES,
    NUM_LEAVES,
    NUM_NODES,
    PACKING_CLOCK,
    STREAM,
)
from tokenstore.batches.shuffled import KEYS, NUMBERS, SIZES, shuffle_numbers
from tokenstore.batches.spans import (
    CONTINUES,
    DOCUMENT,
    DOCUMENT_START,
    LENGTH,
    MEMORY,
    SPAN_STORE,
    START,
    boundaries_of,
    is_mapped,
    memory_of,
)
from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    BAD_ORDER,
    CLASS_KEY,
    FIRST_FILE,
    NOT_PACKED,
    NUM_DOCUMENTS,
    NUM_SEQUENCES,
    NUM_TOKENS,
    ORDER_FILE,
    PACKING,
    ROW_KEY,
    P,
    Q,
)
from tokenstore.format.layout import MOST_SHORT_NUMBERS
from tokenstore.intrinsics import int64_at, prefetch, uint32_at
from tokenstore.jit import inline_kernel
from tokenstore.order.classes import MEMBER, PIECE, RANK, SLOT, entry_of
from tokenstore.order.keys import counted_key
from tokenstore.order.packed import permute_each, shuffle_slots, slots_of_bin
from tokenstore.order.repeats import position_of

# Rows of the int64 scratch, a column a piece: its room in tokens; its slot, then place in the length index, then document; its
# number in the document; its store; how many whole pieces of L its rank has room for. A column a row: its packing and bin
ROOM, PLACE, NUMBER, PIECE_STORE, PIECES_OF_RANK, _PACKING, _BIN = range(7)
WORK_ROWS = 7


@inline_kernel
def _packing_of(
    source: int, epoch: int, clock: int, sources: np.ndarray, packings: np.ndarray, report: np.ndarray
) -> int:
    """The row of `packings` for this epoch of a source; -1 with `report` asking for it where there is none."""
    row = sources[source, PACKING]
    if packings[row, STREAM] != source or packings[row, EPOCH] != epoch:
        row = 0
        while row < packings.shape[0] and (packings[row, STREAM] != source or packings[row, EPOCH] != epoch):
            row += 1
        if row == packings.shape[0]:
            report[0], report[1], report[2] = NOT_PACKED, source, epoch
            return -1
        sources[source, PACKING] = row
    packings[row, PACKING_CLOCK] = clock
    return row


@inline_kernel
def _lay_bins(
    rows: np.ndarray,
    shuffle: bool,
    clock: int,
    sources: np.ndarray,
    packings: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
) -> bool:
    """The packing of each row, and its bin in that; False with `report` asking for a packing."""
    for r in range(rows.shape[0]):
        if rows[r, 0] >= 0:
            epoch = rows[r, 1] // sources[rows[r, 0], NUM_SEQUENCES]
            work[_PACKING, r] = _packing_of(rows[r, 0], epoch, clock, sources, packings, report)
            if work[_PACKING, r] < 0:
                return False
    shuffle_numbers(rows, shuffle, sources, keys)
    for r in range(rows.shape[0]):
        work[_BIN, r] = np.int64(keys[NUMBERS, r])
    return True


@inline_kernel
def _lay_slots(
    rows: np.ndarray,
    length: int,
    shuffle: bool,
    clock: int,
    sources: np.ndarray,
    packings: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
    starts: np.ndarray,
) -> int:
    """The slots of all rows, in row order, as places in their class in this epoch; returns how many, -1 for `report`."""
    if not _lay_bins(rows, shuffle, clock, sources, packings, report, work, keys):
        return -1
    num_rows = rows.shape[0]
    count = 0
    for r in range(num_rows):
        starts[r] = count
        if rows[r, 0] < 0:
            continue
        packing = packings[work[_PACKING, r]]
        nodes = carray(int64_at(packing[NODES]), (packing[NUM_NODES], 4))
        leaves = carray(int64_at(packing[LEAVES]), (packing[NUM_LEAVES], 2))
        bins = carray(int64_at(packing[FIRSTS]), (packing[NUM_LEAVES] + 1,))
        more = slots_of_bin(work[_BIN, r], nodes, leaves, bins, work[ROOM, count:], work[PLACE, count:])
        if shuffle:
            source = sources[rows[r, 0]]
            counts = carray(int64_at(packing[COUNTS]), (length + 1,))
            row_key = counted_key(np.uint64(source[ROW_KEY]), rows[r, 1])
            shuffle_slots(row_key, more, work[ROOM, count:], work[PLACE, count:])
            class_key = counted_key(np.uint64(source[CLASS_KEY]), packing[EPOCH])
            for j in range(count, count + more):
                keys[NUMBERS, j] = np.uint64(work[PLACE, j])
                keys[SIZES, j] = np.uint64(counts[work[ROOM, j]])
                keys[KEYS, j] = counted_key(class_key, work[ROOM, j])
        count += more
    starts[num_rows] = count
    if shuffle:
        permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])
        for j in range(count):
            work[PLACE, j] = np.int64(keys[NUMBERS, j])
    return count


@inline_kernel
def _find_places(
    rows: np.ndarray,
    length: int,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    packings: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    starts: np.ndarray,
) -> bool:
    """Slots -> places in the length indexes, -1 for a rank that is empty; and the number of the piece in its document."""
    for r in range(rows.shape[0]):
        if starts[r] == starts[r + 1]:
            continue
        packing = packings[work[_PACKING, r]]
        epoch = packing[EPOCH]
        entries = carray(int64_at(packing[ENTRIES]), (packing[NUM_ENTRIES], 4))
        class_firsts = carray(int64_at(packing[CLASS_FIRSTS]), (length + 2,))
        members = carray(int64_at(packing[MEMBERS]), (stores.shape[0],))  # no more than there are stores
        for j in range(starts[r], starts[r + 1]):
            room = work[ROOM, j]
            entry = entry_of(room, work[PLACE, j], class_firsts, entries)
            rank, piece = work[PLACE, j] - entries[entry, SLOT], entries[entry, PIECE]
            work[PIECES_OF_RANK, j] = piece
            if room == length:
                rank, piece = rank // piece, rank % piece
            store = members[entries[entry, MEMBER]]
            row = stores[store]
            place = position_of(entries[entry, RANK] + rank, epoch, row[P], row[Q])
            work[NUMBER, j], work[PIECE_STORE, j] = piece, store
            work[PLACE, j] = place if place < row[NUM_DOCUMENTS] else -1
            if not is_mapped(row[ORDER_FILE], clock, files, report) or not is_mapped(
                row[FIRST_FILE], clock, files, report
            ):
                return False
            prefetch(files[row[ORDER_FILE], ADDRESS] + place * (4 if row[NUM_DOCUMENTS] <= MOST_SHORT_NUMBERS else 8))
    return True


@inline_kernel
def _find_documents(count: int, stores: np.ndarray, files: np.ndarray, report: np.ndarray, work: np.ndarray) -> bool:
    """Places in the length indexes -> documents."""
    for j in range(count):
        row = stores[work[PIECE_STORE, j]]
        place, size = work[PLACE, j], row[NUM_DOCUMENTS]
        if place < 0:
            continue
        address = files[row[ORDER_FILE], ADDRESS]
        if size <= MOST_SHORT_NUMBERS:
            document = np.int64(carray(uint32_at(address), (size,))[place])
        else:
            document = carray(int64_at(address), (size,))[place]
        if document < 0 or document >= size:
            report[0], report[1], report[2], report[3], report[4] = BAD_ORDER, row[ORDER_FILE], 0, document, 0
            return False
        prefetch(files[row[FIRST_FILE], ADDRESS] + document * 8)
        work[PLACE, j] = document
    return True


@inline_kernel
def packed_spans(
    rows: np.ndarray,
    length: int,
    shuffle: bool,
    clock: int,
    stores: np.ndarray,
    sources: np.ndarray,
    packings: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    work: np.ndarray,
    keys: np.ndarray,
    starts: np.ndarray,
    out: np.ndarray,
) -> int:
    """Spans of the sequences `rows` int64[B, 2] (source, number); returns how many, or -1 with `report` filled.

    work: int64[7, B * length], keys: uint64[3, B * length], scratch. firsts: int64[B + 1], each row's first span.
    out: int64[B * length, 7].
    """
    pieces = _lay_slots(rows, length, shuffle, clock, sources, packings, report, work, keys, starts)
    if pieces < 0:
        return -1
    if not _find_places(rows, length, clock, stores, sources, packings, files, report, work, starts):
        return -1
    if not _find_documents(pieces, stores, files, report, work):
        return -1
    count = j = 0
    for r in range(rows.shape[0]):
        row_stop, starts[r] = starts[r + 1], count
        while j < row_stop:
            row = stores[work[PIECE_STORE, j]]
            document, room, piece = work[PLACE, j], work[ROOM, j], work[NUMBER, j]
            pieces_of_rank = work[PIECES_OF_RANK, j]
            j += 1
            if document < 0:
                continue
            boundaries = boundaries_of(row, files)
            first, stop = boundaries[document], boundaries[document + 1]
            if first < 0 or stop <= first or stop > row[NUM_TOKENS]:
                report[0], report[1], report[2], report[3] = BAD_BOUNDARY, row[FIRST_FILE], first, first
                report[4] = stop
                return -1
            fits = (stop - first) // length == pieces_of_rank and (room == length or (stop - first) % length == room)
            most = pieces_of_rank * length + (room if room < length else length - 1)
            if not fits and (row[P] == row[Q] or stop - first > most):
                report[0], report[1], report[2], report[3] = BAD_ORDER, row[ORDER_FILE], 0, document
                report[4] = stop - first
                return -1
            token = first + piece * length
            size = min(room, stop - token)
            if size <= 0:  # a shorter document than the rank has room for
                continue
            out[count, MEMORY] = memory_of(token, size + (token + size < stop), row, clock, files, report)
            if out[count, MEMORY] == 0:
                return -1
            out[count, START], out[count, LENGTH], out[count, DOCUMENT] = token, size, document
            out[count, DOCUMENT_START], out[count, CONTINUES] = first, token + size < stop
            out[count, SPAN_STORE] = work[PIECE_STORE, j - 1]
            count += 1
    starts[rows.shape[0]] = count
    return count
