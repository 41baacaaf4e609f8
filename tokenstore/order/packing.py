"""Packing (ORD-14): assigns the pieces of an epoch to bins of one sequence each.

The input is the histogram of piece lengths, not the documents. Best-fit decreasing is due to Johnson (1973). Krell et
al. 2021 (arXiv 2107.02027) apply it to many equal bins at once. Here the long pieces are first spread over all bins by
worst fit, so that documents get new neighbours in every epoch.
"""

from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel, kernel
from tokenstore.order.bitset import add, empty_bitset, next_member, remove
from tokenstore.order.classes import LengthClasses
from tokenstore.order.keys import as_bits, counted_key
from tokenstore.order.words import put_word

PARTS = 16384  # approximate number of entries over all classes; more entries mix better and take longer
JITTER_BITS = 22
# Percent of the tokens that is packed by best fit (0: all), and strength of the jitter
ATTEMPTS = (
    (2, 38),
    (5, 38),
    (10, 26),
    (25, 12),
    (50, 12),
    (0, 2),
    (0, 0),
)
SLACK, SLACK_OF_FEW, FEW_PIECES, FEW_BINS = 1000, 200, 100_000, 32

# Columns of a group. Its bins are BINS consecutive bins of group PARENT, from bin OFFSET on. Each got COPIES slots of
# class LENGTH, the first of them FIRST_SLOT. The first TAKEN of its bins have moved to later groups. BELOW is the next
# group on the same stack
PARENT, OFFSET, FIRST_SLOT, LENGTH, COPIES, BINS, TAKEN, BELOW = range(8)
_LENGTH, _FIRST, _STOP = range(3)  # columns of an entry: the slots [_FIRST, _STOP) of class _LENGTH
_NO_BIN, _NO_ROOM = -1, -2
_ALL_JOIN = 1 << 62


@dataclass(frozen=True)
class Packing:
    """The bins of one epoch.

    `groups` is a tree. A bin contains the slots that its group added, and those of all ancestors of the group.

    Attributes:
        groups: int64[n, 8], see the columns above. Group 0 is the root: all bins, empty.
        leaves: int64[m], the groups in which bins end, in the order in which the groups were made.
        starts: int64[m + 1], number of the first bin of each leaf, and the number of bins.
        attempt: index in ATTEMPTS of the attempt that succeeded.
    """

    groups: np.ndarray
    leaves: np.ndarray
    starts: np.ndarray
    attempt: int


# Columns of the tables of `Bins`
NODE_PARENT, CONTENT, NODE_OFFSET, NODE_FIRST_SLOT = range(4)
START, GROUP, GONE, SQUARES = range(4)
COPIES_BITS = (16, 32)  # of CONTENT, in a narrow and a wide table


@dataclass(frozen=True)
class Bins:
    """A packing in the form that kernels read, see `words`: 16 bytes per group, or 32.

    Attributes:
        nodes: uint32[n << wide, 4], of each group PARENT, class and COPIES (both in CONTENT), OFFSET and
            FIRST_SLOT. The class is its number in `LengthClasses.table`.
        leaves: uint32[m << wide, 4], by rising number of their bins: START, number of the first bin; GROUP in which they
            end; GONE, how many bins before them have left that group; SQUARES, the sum of the squares of the rooms in
            such a bin (ORD-19).
        near: int32[k + 1], the leaf that contains bin i << shift, for each i; at the end, the last leaf. It has about as many
            entries as there are leaves, so the leaf of a bin is found in a step or two.
        shift: see `near`.
        wide: as in `LengthClasses`.
    """

    nodes: np.ndarray
    leaves: np.ndarray
    near: np.ndarray
    shift: int
    wide: int


def bins_of(packing: Packing, classes: LengthClasses) -> Bins:
    """Convert a packing to the form that kernels read."""
    groups, leaves, starts, wide = packing.groups, packing.leaves, packing.starts, classes.wide
    num_leaves, num_bins = len(leaves), int(starts[-1])
    shift = max(num_bins // max(num_leaves, 1), 1).bit_length() - 1
    nodes = np.empty((len(groups) << wide, 4), np.uint32)
    ends = np.empty((num_leaves << wide, 4), np.uint32)
    near = np.empty(-(-num_bins >> shift) + 1, np.int32)
    class_of = np.empty(classes.length + 1, np.int32)
    class_of[classes.rooms] = np.arange(len(classes.rooms))
    squares = np.empty(len(groups), np.int64)
    write_nodes(groups, class_of, wide, nodes, squares)
    write_leaves(groups, leaves, starts, squares, wide, shift, ends, near)
    return Bins(nodes, ends, near, shift, wide)


@kernel
def write_nodes(groups: np.ndarray, class_of: np.ndarray, wide: int, nodes: np.ndarray, squares: np.ndarray) -> None:
    """Write `Bins.nodes`, and the sum of the squares of the rooms in a bin of each group.

    A group adds slots to bins of its parent, which was made before it, so one pass from the root suffices.

    Args:
        groups: see `Packing`.
        class_of: int32[L + 1], the number of the class of each length that groups have.
        wide: as in `Bins`.
        nodes: uint32[n << wide, 4], output.
        squares: int64[n], output.
    """
    for g in range(groups.shape[0]):
        parent, length, copies = groups[g, PARENT], groups[g, LENGTH], groups[g, COPIES]
        squares[g] = squares[parent] + copies * length * length if g else 0
        number = np.int64(class_of[length]) if g else 0  # the root, empty bins, has no class
        put_word(nodes, g, NODE_PARENT, wide, parent)
        put_word(nodes, g, CONTENT, wide, (number << COPIES_BITS[wide]) + copies)
        put_word(nodes, g, NODE_OFFSET, wide, groups[g, OFFSET])
        put_word(nodes, g, NODE_FIRST_SLOT, wide, groups[g, FIRST_SLOT])


@kernel
def write_leaves(
    groups: np.ndarray,
    leaves: np.ndarray,
    starts: np.ndarray,
    squares: np.ndarray,
    wide: int,
    shift: int,
    out: np.ndarray,
    near: np.ndarray,
) -> None:
    """Write `Bins.leaves` and `Bins.near` of a packing.

    Args:
        groups, leaves, starts: see `Packing`.
        squares: int64[n], of each group.
        wide, shift: as in `Bins`.
        out: uint32[m << wide, 4], output.
        near: int32[k + 1], output.
    """
    entry = 0
    for leaf in range(leaves.size):
        group = leaves[leaf]
        put_word(out, leaf, START, wide, starts[leaf])
        put_word(out, leaf, GROUP, wide, group)
        put_word(out, leaf, GONE, wide, groups[group, TAKEN])
        put_word(out, leaf, SQUARES, wide, squares[group])
        while entry < near.size - 1 and entry << shift < starts[leaf + 1]:
            near[entry] = leaf
            entry += 1
    near[near.size - 1] = leaves.size - 1


def num_best_fit(classes: LengthClasses) -> int:
    """Number of sequences per epoch under `best_fit`. It is the same for every epoch."""
    lengths, slots = classes.rooms[::-1], classes.slots[::-1]
    pieces = int(slots.sum())
    entries = np.zeros((len(lengths), 3), np.int64)  # one per class
    entries[:, _LENGTH], entries[:, _STOP] = lengths, slots
    groups = _pack(entries, classes.length + 1, classes.length, pieces, _ALL_JOIN)
    bins = int(groups[0, TAKEN])
    least = -(-int((lengths * slots).sum()) // classes.length)
    if least < FEW_BINS:
        return bins
    slack = SLACK if pieces >= FEW_PIECES else SLACK_OF_FEW
    return min(pieces, max(bins - (-bins // (2 * slack)), least - (-least // slack)))


def pack(classes: LengthClasses, num_bins: int, jitter_base: np.uint64, epoch: int, shuffle: bool) -> Packing:
    """Pack an epoch into exactly `num_bins` bins under `best_fit`.

    Args:
        classes: length classes of the source.
        num_bins: result of `num_best_fit`.
        jitter_base: base key for "jitter" (ORD-1).
        epoch: number of the epoch. Without shuffle it has no effect.
        shuffle: whether the plan shuffles.
    """
    length, pieces, counts = classes.length, classes.num_pieces, classes.counts
    parts = max(1, PARTS // length)
    memory = None  # that of the first attempt, whose pages exist
    for attempt, (percent, jitter) in enumerate(ATTEMPTS):
        last = attempt == len(ATTEMPTS) - 1
        if not shuffle and not last:
            continue
        cut = _cut(counts, percent) if percent else length + 1
        entries = _entries(counts, parts if shuffle else 1, jitter, cut, jitter_base, epoch)
        groups = _pack(entries, cut, length, num_bins, pieces - num_bins, memory)
        if len(groups):
            return _numbered(groups, attempt)
        memory = groups.base
    raise AssertionError("best-fit decreasing cannot fail, because num_bins is at least the number it fills")


def pack_singles(classes: LengthClasses) -> Packing:
    """Pack under `none`: one piece per bin, the longest pieces first."""
    lengths = classes.rooms[::-1]
    groups = np.zeros((len(lengths) + 1, 8), np.int64)
    groups[1:, LENGTH], groups[1:, COPIES], groups[1:, BINS] = lengths, 1, classes.slots[::-1]
    groups[1:, OFFSET] = np.cumsum(groups[:-1, BINS])
    groups[0, BINS] = groups[0, TAKEN] = classes.num_pieces
    return _numbered(groups, 0)


def _numbered(groups: np.ndarray, attempt: int) -> Packing:
    """Number the bins by the group in which they end."""
    ended = groups[:, BINS] - groups[:, TAKEN]
    leaves = np.flatnonzero(ended)
    return Packing(groups, leaves, np.append(0, np.cumsum(ended[leaves])), attempt)


def _cut(counts: np.ndarray, percent: int) -> int:
    """The greatest length such that the pieces below it contain at most `percent` of the tokens outside class L."""
    tokens = np.cumsum(counts[:-1] * np.arange(len(counts) - 1))  # [L], tokens in pieces of at most each length
    return int(np.searchsorted(tokens, int(tokens[-1]) // 100 * percent, side="right"))


def _entries(counts: np.ndarray, parts: int, jitter: int, cut: int, base: np.uint64, epoch: int) -> np.ndarray:
    """int64[n, 3], the entries in the order in which they are placed (ORD-14, steps 3 and 4)."""
    sizes = np.minimum(counts, parts)
    entries = np.empty((int(sizes.sum()), 3), np.int64)
    sort_keys = np.empty(len(entries), np.int64)
    used = _cut_classes(counts, parts, jitter, cut, as_bits(base), epoch, entries, sort_keys)
    return entries.take(greatest_first(sort_keys[:used]), axis=0)


def greatest_first(keys: np.ndarray) -> np.ndarray:
    """Indices that sort int64 `keys` (all >= 0) from greatest to smallest. Equal keys keep their order.

    Each key and its index are combined into one integer, and these are sorted. That takes a fifth of the time of a
    stable argsort.
    """
    bits = len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):  # does not fit 63 bits: sequences of half a million tokens
        return np.argsort(-keys, kind="stable")
    both = (-keys << bits) + np.arange(len(keys))
    both.sort()
    return both & ((1 << bits) - 1)


@kernel
def _cut_classes(
    counts: np.ndarray,
    parts: int,
    jitter: int,
    cut: int,
    base_bits: int,
    epoch: int,
    entries: np.ndarray,
    sort_keys: np.ndarray,
) -> int:
    """Cut each class into entries of nearly equal size and compute their sort keys. Returns the number of entries.

    Sort keys are integers, length * (2**22 + jitter * u), so that jitter changes the order of similar lengths without
    floats. `most` is greater than any of them. Entries of length >= `cut` get `most` in addition, and class L gets 2 *
    `most`, so one descending sort gives the order of ORD-14 step 4.

    Args:
        counts: int64[L + 1], slots of each class.
        parts: entries per class, at most; class L is always one entry.
        jitter: strength of the jitter.
        cut: the smallest length that is placed by worst fit.
        base_bits: base key for "jitter", as int64.
        epoch: number of the epoch.
        entries: int64[n, 3], output, from the longest class to the shortest.
        sort_keys: int64[n], output.
    """
    used = 0
    longest = counts.size - 1
    most = counts.size << (JITTER_BITS + 1)  # above every length with its jitter
    key = counted_key(np.uint64(base_bits), epoch)
    for length in range(longest, 0, -1):
        count = counts[length]
        pieces = min(count, parts if length < longest else 1)
        class_key = counted_key(key, length)
        for i in range(pieces):
            entries[used, _LENGTH] = length
            entries[used, _FIRST] = i * count // pieces
            entries[used, _STOP] = (i + 1) * count // pieces
            u = np.int64(counted_key(class_key, i) >> np.uint64(48)) - 32768
            sort_keys[used] = length * ((1 << JITTER_BITS) + jitter * u) + (most if length >= cut else 0)
            if length == longest:
                sort_keys[used] = 2 * most
            used += 1
    return used


def _pack(
    entries: np.ndarray, cut: int, length: int, num_bins: int, joins: int, memory: np.ndarray | None = None
) -> np.ndarray:
    """int64[n, 8], the groups; n = 0 if a piece fits no bin. memory: int64[m, 8] to write them to, if they fit."""
    room = min(int((entries[:, _STOP] - entries[:, _FIRST]).sum()) + 1, 128 * len(entries) + 1024)
    groups = np.empty((room, 8), np.int64) if memory is None else memory
    while True:
        stacks, bits = np.full(length + 1, -1, np.int64), empty_bitset(length + 1)
        used = place(entries, cut, num_bins, joins, stacks, bits, groups)
        if used != _NO_ROOM:
            return groups[: max(used, 0)]  # a view: pages of `groups` that were never written take no memory
        groups = np.empty((2 * len(groups), 8), np.int64)


@inline_kernel
def _tokens_left(best: bool, piece: int, joins: int, top: int, stacks: np.ndarray, bits: np.ndarray) -> int:
    """Tokens left in the bins that get the next piece, which selects a stack; 0 or less if the piece fits no bin.

    Best fit takes the smallest number that is enough, worst fit the greatest. When no more pieces may join others, only
    empty bins are used.
    """
    if joins == 0:
        return stacks.size - 1 if stacks[stacks.size - 1] >= 0 else 0
    if best:
        return next_member(bits, piece)
    return top if top >= piece else 0


@kernel
def place(
    entries: np.ndarray, cut: int, num_bins: int, joins: int, stacks: np.ndarray, bits: np.ndarray, groups: np.ndarray
) -> int:
    """Place all entries into bins (ORD-14, step 5).

    Bins with equal content are handled together as a group, so the cost depends on the number of entries, not on the
    number of documents. Invariant: stack r lists the groups that have bins left with r free tokens, and `bits` contains
    r exactly if stack r is not empty. The stacks are linked lists through column BELOW, so a step takes constant time
    apart from finding r.

    Args:
        entries: int64[n, 3], in the order in which they are placed.
        cut: entries of this length or more are placed by worst fit, the others by best fit.
        num_bins: number of bins N.
        joins: number of pieces that may join a bin that is not empty.
        stacks: int64[L + 1] of -1, scratch: the top group of each stack.
        bits: empty bitset for L + 1 numbers, scratch.
        groups: int64[room, 8], output.

    Returns: the number of groups; _NO_BIN if a piece fits no bin; _NO_ROOM if `groups` is too short.
    """
    length = top = stacks.size - 1
    groups[0, :] = 0
    groups[0, BINS], groups[0, BELOW] = num_bins, -1
    stacks[length] = 0
    add(bits, length)
    used = 1
    for e in range(entries.shape[0]):
        piece, first, stop = entries[e, _LENGTH], entries[e, _FIRST], entries[e, _STOP]
        best = piece < cut
        while first < stop:
            while not best and top > 0 and stacks[top] < 0:  # bins only get fuller, so the greatest r never grows
                top -= 1
            left = _tokens_left(best, piece, joins, top, stacks, bits)
            if left <= 0:
                return _NO_BIN
            if used == groups.shape[0]:
                return _NO_ROOM
            parent = stacks[left]
            copies = min(left // piece, stop - first) if best else 1
            copies = min(copies, joins if left < length else joins + 1)
            cost = copies if left < length else copies - 1  # pieces per bin that join others
            bins = min(groups[parent, BINS] - groups[parent, TAKEN], (stop - first) // copies)
            if cost > 0:
                bins = min(bins, joins // cost)
                joins -= bins * cost
            # The first `bins` bins of the parent leave it and form the new group
            group = groups[used]
            group[PARENT], group[OFFSET], group[FIRST_SLOT] = parent, groups[parent, TAKEN], first
            group[LENGTH], group[COPIES], group[BINS], group[TAKEN] = piece, copies, bins, 0
            groups[parent, TAKEN] += bins
            if groups[parent, TAKEN] == groups[parent, BINS]:
                stacks[left] = groups[parent, BELOW]
                if stacks[left] < 0:
                    remove(bits, left)
            left -= copies * piece
            if left > 0:
                if stacks[left] < 0:
                    add(bits, left)
                group[BELOW] = stacks[left]
                stacks[left] = used
            first += copies * bins
            used += 1
    return used
