"""Plans the spans of sequences of packed sources (ORD-13, ORD-15), for all rows of a call.

Each piece needs three reads that depend on each other: the number of its document in the length index, the boundaries
of that document, and its tokens. All three can be anywhere in files that are larger than the processor caches. So the
work is done in stages. Each stage handles all pieces of the call, and prefetches the memory that the next stage reads:

    rows --_read_bins--> the packing's entries for each bin      reads them for all rows in turn
         --_find_slots--> class and slot of each piece           prefetches the length classes
         --_find_places--> place in the length index             prefetches the length index
         --_find_documents--> number of the document             prefetches the boundaries
         --_put_piece--> span                                    `gather` prefetches the tokens
"""

import numpy as np
from numba import carray

from tokenstore.batches.block import (
    ALIGN,
    CLOCK,
    SEQUENCE_LENGTH,
    SHUFFLE,
    files_of,
    keys_of,
    packings_of,
    report,
    sources_of,
    stores_of,
    work_of,
)
from tokenstore.batches.packings import (
    CLASSES,
    ENTRIES,
    EPOCH,
    LEAVES,
    MEMBERS,
    NEAR,
    NODES,
    NUM_CLASSES,
    NUM_ENTRIES,
    NUM_LEAVES,
    NUM_NEAR,
    NUM_NODES,
    PACKING_CLOCK,
    SHIFT,
    SOURCE,
    WIDE,
)
from tokenstore.batches.shuffled import KEYS, NUMBERS, SIZES, shuffle_numbers
from tokenstore.batches.spans import boundaries_of, is_mapped, put_span
from tokenstore.batches.tables import (
    ADDRESS,
    BAD_BOUNDARY,
    BAD_INDEX,
    CLASS_KEY,
    FIRST_FILE,
    IN_SLICE,
    INDEX_FILE,
    NO_ROOM,
    NOT_PACKED,
    NUM_DOCUMENTS,
    NUM_SEQUENCES,
    NUM_TOKENS,
    PACKING,
    ROW_KEY,
    SLICE_FIRST,
    SLICE_P,
    SLICE_Q,
    SLICE_STEP,
    P,
    Q,
)
from tokenstore.format.layout import MOST_SHORT_NUMBERS
from tokenstore.intrinsics import int32_at, int64_at, prefetch, uint32_at
from tokenstore.jit import inline_kernel
from tokenstore.order.classes import CLASS_ROOM, COPY, FIRST_ENTRY, MEMBER_BITS, PIECE_AND_MEMBER, SLOT, SLOTS, entry_of
from tokenstore.order.keys import counted_key
from tokenstore.order.packed import leaves_near, permute_each, shuffle_slots, slots_of_bin
from tokenstore.order.packing import GROUP, NODE_PARENT, START
from tokenstore.order.repeats import position_of
from tokenstore.order.slices import slice_position
from tokenstore.order.words import both_parts, word

# Rows of the int64 scratch. The first five have one column per piece: ROOM, its length class in tokens; PLACE, its
# slot, then its place in the length index, then its document; NUMBER, the number of its class (CLASS), then its number in
# the document; PIECE_STORE, its store; PIECES_PER_COPY, the number of full pieces that its document copy has room for. The others have one column per
# row: its packing, its bin, the leaf of its bin, and how far `_find_leaves` or `_read_bins` has got
ROOM, PLACE, NUMBER, PIECE_STORE, PIECES_PER_COPY, ROW_PACKING, ROW_BIN, ROW_LEAF, ROW_LEFT = range(9)
CLASS, ROW_NODE = NUMBER, ROW_LEFT


@inline_kernel
def _packing_of(block: np.ndarray, source: int, epoch: int) -> int:
    """The row of the table of packings for an epoch of a source; -1, with the report NOT_PACKED, if there is none.

    The row that the source used last is tried first, because an epoch lasts for many calls.
    """
    packings, sources = packings_of(block), sources_of(block)
    row = sources[source, PACKING]
    if packings[row, SOURCE] != source or packings[row, EPOCH] != epoch:
        row = 0
        while row < packings.shape[0] and (packings[row, SOURCE] != source or packings[row, EPOCH] != epoch):
            row += 1
        if row == packings.shape[0]:
            report(block, NOT_PACKED, source, epoch, 0, 0)
            return -1
        sources[source, PACKING] = row
    packings[row, PACKING_CLOCK] = block[CLOCK]
    return row


@inline_kernel
def find_bins(block: np.ndarray, rows: np.ndarray) -> bool:
    """Write the packing and the bin of each row to the scratch. Returns False, with a report, if a packing is missing."""
    sources, work, keys = sources_of(block), work_of(block), keys_of(block)
    for r in range(rows.shape[0]):
        if rows[r, 0] >= 0:
            epoch = rows[r, 1] // sources[rows[r, 0], NUM_SEQUENCES]
            work[ROW_PACKING, r] = _packing_of(block, rows[r, 0], epoch)
            if work[ROW_PACKING, r] < 0:
                return False
    shuffle_numbers(block, rows)
    for r in range(rows.shape[0]):
        work[ROW_BIN, r] = np.int64(keys[NUMBERS, r])
    return True


@inline_kernel
def nodes_of(packing: np.ndarray) -> np.ndarray:
    """`Bins.nodes` of a row of the table of packings."""
    return carray(uint32_at(packing[NODES]), (packing[NUM_NODES], 4))


@inline_kernel
def leaves_of(packing: np.ndarray) -> np.ndarray:
    """`Bins.leaves` of a row of the table of packings."""
    return carray(uint32_at(packing[LEAVES]), (packing[NUM_LEAVES], 4))


@inline_kernel
def classes_of(packing: np.ndarray) -> np.ndarray:
    """`LengthClasses.table` of a row of the table of packings."""
    return carray(uint32_at(packing[CLASSES]), (packing[NUM_CLASSES], 3))


@inline_kernel
def row_bytes(packing: np.ndarray) -> int:
    """Bytes per row of `Bins.nodes` and `Bins.leaves` of a row of the table of packings."""
    return 16 << packing[WIDE]


@inline_kernel
def leaves_of_row(block: np.ndarray, r: int) -> tuple[int, int]:
    """`leaves_near` of the bin of row r, after `find_bins`."""
    packing, number = packings_of(block)[work_of(block)[ROW_PACKING, r]], work_of(block)[ROW_BIN, r]
    near = carray(int32_at(packing[NEAR]), (packing[NUM_NEAR],))
    return leaves_near(number, near, packing[SHIFT])


@inline_kernel
def _find_leaves(block: np.ndarray, rows: np.ndarray) -> None:
    """Write the leaf of each row's bin to ROW_LEAF. It is `leaf_of`, but all rows take a step in turn; see `_read_bins`."""
    packings, work = packings_of(block), work_of(block)
    for r in range(rows.shape[0]):
        if rows[r, 0] >= 0:
            packing = packings[work[ROW_PACKING, r]]
            prefetch(packing[NEAR] + 4 * (work[ROW_BIN, r] >> packing[SHIFT]))
    for r in range(rows.shape[0]):
        work[ROW_LEAF, r] = work[ROW_LEFT, r] = 0
        if rows[r, 0] >= 0:
            packing = packings[work[ROW_PACKING, r]]
            work[ROW_LEAF, r], work[ROW_LEFT, r] = leaves_of_row(block, r)
            prefetch(packing[LEAVES] + row_bytes(packing) * work[ROW_LEAF, r])
    is_searching = True
    while is_searching:
        is_searching = False
        for r in range(rows.shape[0]):
            left = work[ROW_LEFT, r]
            if left > 1:
                packing, half = packings[work[ROW_PACKING, r]], left >> 1
                start = word(leaves_of(packing), work[ROW_LEAF, r] + half, START, packing[WIDE])
                work[ROW_LEAF, r] += half if start <= work[ROW_BIN, r] else 0
                work[ROW_LEFT, r] = left - half
                is_searching |= left - half > 1


@inline_kernel
def _read_bins(block: np.ndarray, rows: np.ndarray) -> None:
    """Find the leaves of all bins, and read all that `slots_of_bin` will read, so that it finds it in the cache.

    That is a walk through a tree of some MB, where each read depends on the one before it. Here all rows take a step in
    turn, and prefetch what their next step reads, so that their waits overlap. Taking turns leaves a
    quarter of the time, and prefetching half of that.
    """
    _find_leaves(block, rows)
    packings, work = packings_of(block), work_of(block)
    for r in range(rows.shape[0]):
        work[ROW_NODE, r] = 0
        if rows[r, 0] >= 0:
            packing = packings[work[ROW_PACKING, r]]
            work[ROW_NODE, r] = word(leaves_of(packing), work[ROW_LEAF, r], GROUP, packing[WIDE])
            prefetch(packing[NODES] + row_bytes(packing) * work[ROW_NODE, r])
    is_walking = True
    while is_walking:
        is_walking = False
        for r in range(rows.shape[0]):
            node = work[ROW_NODE, r]
            if node > 0:
                packing = packings[work[ROW_PACKING, r]]
                parent = word(nodes_of(packing), node, NODE_PARENT, packing[WIDE])
                prefetch(packing[NODES] + row_bytes(packing) * parent)
                work[ROW_NODE, r] = parent
                is_walking |= work[ROW_NODE, r] > 0


@inline_kernel
def _find_slots(block: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> int:
    """Write the pieces of all rows, one row after the other: class to ROOM, permuted slot to PLACE.

    The pieces of row r get the columns [starts[r], starts[r + 1]). The permutations of all pieces are one call of
    `permute_each`, because it is vectorized over pieces. Returns the number of pieces, or -1 with a report.
    """
    if not find_bins(block, rows):
        return -1
    _read_bins(block, rows)
    sources, packings, work, keys = sources_of(block), packings_of(block), work_of(block), keys_of(block)
    num_rows = rows.shape[0]
    count = 0
    for r in range(num_rows):
        starts[r] = count
        if rows[r, 0] < 0:
            continue
        packing = packings[work[ROW_PACKING, r]]
        nodes, leaves, table, wide = nodes_of(packing), leaves_of(packing), classes_of(packing), packing[WIDE]
        leaf = work[ROW_LEAF, r]
        more = slots_of_bin(work[ROW_BIN, r], leaf, nodes, leaves, wide, work[CLASS, count:], work[PLACE, count:])
        if block[SHUFFLE]:
            source = sources[rows[r, 0]]
            row_key = counted_key(np.uint64(source[ROW_KEY]), rows[r, 1])
            shuffle_slots(row_key, more, work[CLASS, count:], work[PLACE, count:])
            class_key = counted_key(np.uint64(source[CLASS_KEY]), packing[EPOCH])
            for j in range(count, count + more):
                keys[NUMBERS, j] = np.uint64(work[PLACE, j])
                keys[SIZES, j] = np.uint64(word(table, work[CLASS, j], SLOTS, wide))
                keys[KEYS, j] = counted_key(class_key, word(table, work[CLASS, j], CLASS_ROOM, wide))
        for j in range(count, count + more):
            work[ROOM, j] = word(table, work[CLASS, j], CLASS_ROOM, wide)
        count += more
    starts[num_rows] = count
    if block[SHUFFLE]:
        permute_each(keys[SIZES, :count], keys[KEYS, :count], keys[NUMBERS, :count])
        for j in range(count):
            work[PLACE, j] = np.int64(keys[NUMBERS, j])
    return count


@inline_kernel
def _find_places(block: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> bool:
    """Replace the slots in PLACE by places in the length index; -1 for a document copy that is empty in this epoch.

    Also writes NUMBER, PIECE_STORE and PIECES_PER_COPY, and prefetches the length index. Returns False, with a report,
    if a file is not mapped.
    """
    stores, files, packings, work = stores_of(block), files_of(block), packings_of(block), work_of(block)
    length = block[SEQUENCE_LENGTH]
    for r in range(rows.shape[0]):
        for j in range(starts[r], starts[r + 1]):
            packing = packings[work[ROW_PACKING, r]]
            table, wide = classes_of(packing), packing[WIDE]
            first = word(table, work[CLASS, j], FIRST_ENTRY, wide)
            stop = word(table, work[CLASS, j] + 1, FIRST_ENTRY, wide)
            num_bytes = 12 << wide  # of an entry
            prefetch(packing[ENTRIES] + num_bytes * first)  # most classes have a few entries
            prefetch(packing[ENTRIES] + num_bytes * (first + ((stop - first) >> 1)))
            prefetch(packing[ENTRIES] + num_bytes * stop - 1)
    for r in range(rows.shape[0]):
        if starts[r] == starts[r + 1]:
            continue
        packing = packings[work[ROW_PACKING, r]]
        epoch = packing[EPOCH]
        table, wide = classes_of(packing), packing[WIDE]
        entries = carray(uint32_at(packing[ENTRIES]), (packing[NUM_ENTRIES], 3))
        members = carray(int64_at(packing[MEMBERS]), (stores.shape[0],))  # at most one per store
        for j in range(starts[r], starts[r + 1]):
            room = work[ROOM, j]
            entry = entry_of(work[CLASS, j], work[PLACE, j], table, entries, wide)
            copy = work[PLACE, j] - word(entries, entry, SLOT, wide)
            piece, member = both_parts(word(entries, entry, PIECE_AND_MEMBER, wide), MEMBER_BITS[wide])
            work[PIECES_PER_COPY, j] = piece
            if room == length:  # in class L a copy has `piece` slots in a row, one per full piece
                copy, piece = copy // piece, copy % piece
            store = members[member]
            row = stores[store]
            place = position_of(word(entries, entry, COPY, wide) + copy, epoch, row[P], row[Q])
            work[NUMBER, j], work[PIECE_STORE, j] = piece, store
            if place < row[IN_SLICE]:
                place = slice_position(place, row[SLICE_FIRST], row[SLICE_STEP], row[SLICE_P], row[SLICE_Q])
            else:
                place = -1
            work[PLACE, j] = place
            if not is_mapped(block, row[INDEX_FILE]) or not is_mapped(block, row[FIRST_FILE]):
                return False
            prefetch(files[row[INDEX_FILE], ADDRESS] + place * (4 if row[NUM_DOCUMENTS] <= MOST_SHORT_NUMBERS else 8))
    return True


@inline_kernel
def _find_documents(block: np.ndarray, count: int) -> bool:
    """Replace the places in PLACE by document numbers, and prefetch the boundaries of the documents.

    Numbers come from a file, so each is checked before it is used as an index. Returns False with a report if one is
    out of range.
    """
    stores, files, work = stores_of(block), files_of(block), work_of(block)
    for j in range(count):
        row = stores[work[PIECE_STORE, j]]
        place, size = work[PLACE, j], row[NUM_DOCUMENTS]
        if place < 0:
            continue
        address = files[row[INDEX_FILE], ADDRESS]
        if size <= MOST_SHORT_NUMBERS:
            document = np.int64(carray(uint32_at(address), (size,))[place])
        else:
            document = carray(int64_at(address), (size,))[place]
        if document < 0 or document >= size:
            report(block, BAD_INDEX, row[INDEX_FILE], 0, document, 0)
            return False
        prefetch(files[row[FIRST_FILE], ADDRESS] + document * 8)
        work[PLACE, j] = document
    return True


@inline_kernel
def _put_piece(block: np.ndarray, j: int, out: np.ndarray) -> int:
    """Write the span of piece j to `out`, int64[SPAN_COLUMNS]. Returns 1, 0 if the piece is empty, or -1 with a
    report.
    """
    work, length = work_of(block), block[SEQUENCE_LENGTH]
    document, room, store = work[PLACE, j], work[ROOM, j], work[PIECE_STORE, j]
    if document < 0:
        return 0
    row = stores_of(block)[store]
    boundaries = boundaries_of(row, files_of(block))
    first, stop = boundaries[document], boundaries[document + 1]
    if first < 0 or stop <= first or stop > row[NUM_TOKENS]:
        report(block, BAD_BOUNDARY, row[FIRST_FILE], first, first, stop)
        return -1
    # The document must have the length that the length index implies, with alignment rounded up. With a fractional
    # repeat factor, a copy has documents of different lengths in different epochs, but none is longer than the room of
    # the copy
    whole, needs = work[PIECES_PER_COPY, j], stop - first
    if block[ALIGN]:
        needs += -needs % block[ALIGN]
    fits = needs // length == whole and (room == length or needs % length == room)
    most = whole * length + (room if room < length else length - 1)
    if not fits and (row[P] == row[Q] or needs > most):
        report(block, BAD_INDEX, row[INDEX_FILE], 0, document, stop - first)
        return -1
    token = first + work[NUMBER, j] * length
    size = min(room, stop - token)
    if size <= 0:  # the document is shorter than the room of its copy
        return 0
    return 1 if put_span(block, store, token, size, document, first, stop, out) else -1


@inline_kernel
def packed_spans(block: np.ndarray, rows: np.ndarray, starts: np.ndarray, spans: np.ndarray) -> bool:
    """Fill `starts` and `spans` for located rows.

    Returns False, with a report, if a file or a packing is needed, or if it finds damage.

    Args:
        block: the argument block.
        rows: int64[n, 2], source and sequence number; source -1 is a row of padding and has no spans.
        starts: int64[n + 1], output: index of each row's first span, and the number of spans.
        spans: int64[room, SPAN_COLUMNS], output.
    """
    pieces = _find_slots(block, rows, starts)
    if pieces < 0:
        return False
    if not _find_places(block, rows, starts) or not _find_documents(block, pieces):
        return False
    # `starts` counts pieces up to here. From here on it counts spans, because empty pieces have none
    count = j = 0
    for r in range(rows.shape[0]):
        row_stop, starts[r] = starts[r + 1], count
        while j < row_stop:
            if count == spans.shape[0]:
                report(block, NO_ROOM, 0, 0, 0, 0)
                return False
            more = _put_piece(block, j, spans[count])
            if more < 0:
                return False
            count += more
            j += 1
    starts[rows.shape[0]] = count
    return True
