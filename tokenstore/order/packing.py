"""Packing (ORD-14): puts the pieces of an epoch into bins of one sequence each. It works on the length histogram, not
on documents.

Best-fit decreasing is from Johnson (1973). Krell et al. (2021, arXiv 2107.02027) handle many equal bins at once.
Spreading the long pieces over all bins first gives documents new neighbours in every epoch.
"""

from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel, kernel
from tokenstore.order.bitset import add, empty_bitset, next_member, remove
from tokenstore.order.classes import LengthClasses
from tokenstore.order.keys import as_bits, counted_key

PARTS = 16384  # entries of all classes together, approximately: more of them mix better and cost more
JITTER_BITS = 22
LADDER = (
    (2, 38),
    (5, 38),
    (10, 26),
    (25, 12),
    (50, 12),
    (0, 2),
    (0, 0),
)  # by attempt: percent of tokens packed by best fit (0: all), and jitter
SLACK, SLACK_OF_FEW, FEW_PIECES, FEW_BINS = 1000, 200, 100_000, 32

# Columns of a group: where its bins come from (a group and the first of its bins), what was put into each, number of
# bins, bins that moved on to later groups, and the group below it on its stack
PARENT, OFFSET, FIRST_SLOT, LENGTH, COPIES, BINS, TAKEN, BELOW = range(8)
_LENGTH, _FIRST, _STOP = range(3)  # columns of an entry
_NO_BIN, _NO_ROOM = -1, -2
_ALL_JOIN = 1 << 62


@dataclass(frozen=True)
class Packing:
    """The bins of one epoch. `groups` is a tree: a bin's content is that of its group and of all groups it came from.

    Attributes:
        groups: int64[n, 8], see the columns above; group 0 has the empty bins from which all others came.
        leaves: int64[m], the groups in which bins ended, in the order in which they were made.
        starts: int64[m + 1], number of the first bin that ended in each.
        attempt: number of the attempt that succeeded.
    """

    groups: np.ndarray
    leaves: np.ndarray
    starts: np.ndarray
    attempt: int


@dataclass(frozen=True)
class Bins:
    """A packing in the form in which bins are read one by one. It takes half the memory.

    Attributes:
        nodes: int64[n, 4], for each group: its parent, length << 32 | copies, first bin in the parent, first slot.
        leaves: int64[m, 2], the groups in which bins ended; a bin's number plus the second column is its place in the group.
        starts: int64[m + 1], number of the first bin that ended in each.
    """

    nodes: np.ndarray
    leaves: np.ndarray
    starts: np.ndarray


def bins_of(packing: Packing) -> Bins:
    """The bins of a packing."""
    groups, leaves = packing.groups, packing.leaves
    content = groups[:, LENGTH] << 32 | groups[:, COPIES]
    nodes = np.stack([groups[:, PARENT], content, groups[:, OFFSET], groups[:, FIRST_SLOT]], axis=1)
    return Bins(nodes, np.stack([leaves, groups[leaves, TAKEN] - packing.starts[:-1]], axis=1), packing.starts)


def num_best_fit(classes: LengthClasses) -> int:
    """Number of sequences per epoch of `best_fit`, the same for every epoch."""
    pieces = classes.num_pieces
    lengths = np.flatnonzero(classes.counts)[::-1]
    entries = np.stack([lengths, np.zeros_like(lengths), classes.counts[lengths]], axis=1)  # no class is cut
    groups = _pack(entries, classes.length + 1, classes.length, pieces, _ALL_JOIN)
    bins = int(groups[0, TAKEN])
    least = -(-classes.num_tokens // classes.length)
    if least < FEW_BINS:
        return bins
    slack = SLACK if pieces >= FEW_PIECES else SLACK_OF_FEW
    return min(pieces, max(bins - (-bins // (2 * slack)), least - (-least // slack)))


def pack(classes: LengthClasses, num_bins: int, jitter_base: np.uint64, epoch: int, shuffle: bool) -> Packing:
    """Pack `epoch` into exactly `num_bins` bins (`num_best_fit`). Without shuffle all epochs have the same packing."""
    length, pieces = classes.length, classes.num_pieces
    parts = max(1, PARTS // length)
    for attempt, (percent, jitter) in enumerate(LADDER):
        last = attempt == len(LADDER) - 1
        if not shuffle and not last:
            continue
        cut = _cut(classes, percent) if percent else length + 1
        entries = _entries(classes, parts if shuffle else 1, jitter, cut, jitter_base, epoch)
        groups = _pack(entries, cut, length, num_bins, pieces - num_bins)
        if len(groups):
            return _numbered(groups, attempt)
    raise AssertionError("best-fit decreasing fits by the choice of num_bins")


def pack_singles(classes: LengthClasses) -> Packing:
    """`none`: each piece has its own bin, the longest first."""
    lengths = np.flatnonzero(classes.counts)[::-1]
    groups = np.zeros((len(lengths) + 1, 8), np.int64)
    groups[1:, LENGTH], groups[1:, COPIES], groups[1:, BINS] = lengths, 1, classes.counts[lengths]
    groups[1:, OFFSET] = np.cumsum(groups[:-1, BINS])
    groups[0, BINS] = groups[0, TAKEN] = classes.num_pieces
    return _numbered(groups, 0)


def _numbered(groups: np.ndarray, attempt: int) -> Packing:
    ended = groups[:, BINS] - groups[:, TAKEN]
    leaves = np.flatnonzero(ended)
    return Packing(groups, leaves, np.append(0, np.cumsum(ended[leaves])), attempt)


def _cut(classes: LengthClasses, percent: int) -> int:
    """The greatest length such that shorter pieces have at most `percent` of the tokens of all classes except L."""
    tokens = np.cumsum(classes.counts[:-1] * np.arange(classes.length))  # tokens of pieces up to each length
    return int(np.searchsorted(tokens, int(tokens[-1]) // 100 * percent, side="right"))


def _entries(classes: LengthClasses, parts: int, jitter: int, cut: int, base: np.uint64, epoch: int) -> np.ndarray:
    """int64[n, 3], the sub-entries in the order in which they are packed."""
    sizes = np.minimum(classes.counts, parts)
    entries = np.empty((int(sizes.sum()), 3), np.int64)
    sort_keys = np.empty(len(entries), np.int64)
    used = _cut_classes(classes.counts, parts, jitter, cut, as_bits(base), epoch, entries, sort_keys)
    return entries.take(greatest_first(sort_keys[:used]), axis=0)


def greatest_first(keys: np.ndarray) -> np.ndarray:
    """Indices that sort int64 `keys` >= 0 in descending order; equal keys stay in order.

    Each key and its index are sorted as one number, in a fifth of the time of a stable argsort.
    """
    bits = len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):  # both do not fit: sequences of half a million tokens
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
    """Fill entries and sort keys, the longest class first; return the number of entries."""
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


def _pack(entries: np.ndarray, cut: int, length: int, num_bins: int, joins: int) -> np.ndarray:
    """int64[n, 8], the groups; no rows if a piece found no bin."""
    room = min(int((entries[:, _STOP] - entries[:, _FIRST]).sum()) + 1, 128 * len(entries) + 1024)
    while True:
        stacks, bits = np.full(length + 1, -1, np.int64), empty_bitset(length + 1)
        groups = np.empty((room, 8), np.int64)
        used = place(entries, cut, num_bins, joins, stacks, bits, groups)
        if used != _NO_ROOM:
            return groups[: max(used, 0)]  # memory never touched costs nothing
        room *= 2


@inline_kernel
def _tokens_left(best: bool, piece: int, joins: int, top: int, stacks: np.ndarray, bits: np.ndarray) -> int:
    """The tokens left in the bins to which a piece goes; 0 or less if no bin fits."""
    if joins == 0:
        return stacks.size - 1 if stacks[stacks.size - 1] >= 0 else 0
    if best:
        return next_member(bits, piece)
    return top if top >= piece else 0


@kernel
def place(
    entries: np.ndarray, cut: int, num_bins: int, joins: int, stacks: np.ndarray, bits: np.ndarray, groups: np.ndarray
) -> int:
    """Place entries int64[n, 3] into bins of `stacks.size - 1` tokens, those of length >= `cut` worst fit, the others best fit.

    joins: number of pieces that may join a bin that is not empty. stacks: int64[L + 1] of -1; bits: an empty bitset;
        scratch.
    groups: int64[room, 8], filled. Returns the number of groups, _NO_BIN or _NO_ROOM.
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
            while not best and top > 0 and stacks[top] < 0:  # no bin gets more room than the emptiest has
                top -= 1
            left = _tokens_left(best, piece, joins, top, stacks, bits)
            if left <= 0:
                return _NO_BIN
            if used == groups.shape[0]:
                return _NO_ROOM
            parent = stacks[left]
            copies = min(left // piece, stop - first) if best else 1
            copies = min(copies, joins if left < length else joins + 1)
            cost = copies if left < length else copies - 1  # pieces of a bin that join others
            bins = min(groups[parent, BINS] - groups[parent, TAKEN], (stop - first) // copies)
            if cost > 0:
                bins = min(bins, joins // cost)
                joins -= bins * cost
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
