"""Kernels that only other kernels call, made callable for tests."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from tokenstore.batches import block as words
from tokenstore.batches.lane_numbers import shuffle_lanes
from tokenstore.batches.shuffled import NUMBERS
from tokenstore.jit import kernel
from tokenstore.order import bitset, packed, permutation, repeats, slices, windows
from tokenstore.order.classes import (
    CLASS_ROOM,
    COPY,
    FIRST_ENTRY,
    MEMBER_BITS,
    PIECE_AND_MEMBER,
    SLOT,
    SLOTS,
    LengthClasses,
    entry_of,
    length_classes,
)
from tokenstore.order.keys import as_bits, base_key, counted_key
from tokenstore.order.packing import Packing, num_best_fit, pack, pack_singles
from tokenstore.order.packing import bins_of as packing_bins
from tokenstore.order.repeats import Member
from tokenstore.order.words import both_parts, unpacked_words, word


@njit
def _counted_key(base_bits: int, counter: int) -> int:
    return np.int64(counted_key(np.uint64(base_bits), counter))


def key_of(base: int, counter: int) -> int:
    return int(np.int64(_counted_key(as_bits(np.uint64(base)), counter)).astype(np.uint64))


@njit
def _permute(indices: np.ndarray, n: int, key: int, inverse: bool, out: np.ndarray) -> None:
    for j in range(indices.size):
        if inverse:
            out[j] = permutation.unpermute(indices[j], n, np.uint64(key))
        else:
            out[j] = permutation.permute(indices[j], n, np.uint64(key))


def permute(indices: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(indices), np.int64)
    _permute(np.array(indices, np.int64), n, as_bits(np.uint64(key)), False, out)
    return out.tolist()


def unpermute(images: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(images), np.int64)
    _permute(np.array(images, np.int64), n, as_bits(np.uint64(key)), True, out)
    return out.tolist()


@njit
def _run(first: int, n: int, key: int, out: np.ndarray) -> None:
    permutation.permute_run(first, n, np.uint64(key), out)


def permute_consecutive(first: int, count: int, n: int, key: int) -> list[int]:
    out = np.empty(count, np.int64)
    _run(first, n, as_bits(np.uint64(key)), out)
    return out.tolist()


@njit
def _slice_positions(numbers: np.ndarray, first: int, step: int, p: int, q: int, out: np.ndarray) -> None:
    for j in range(numbers.size):
        out[j] = slices.slice_position(numbers[j], first, step, p, q)


def slice_positions(numbers: Sequence[int], chosen: slices.Slice) -> list[int]:
    """`slice_position` of each document of a slice."""
    out = np.empty(len(numbers), np.int64)
    numbers = np.array(numbers, np.int64)
    _slice_positions(numbers, chosen.first + chosen.i, chosen.n, chosen.p, chosen.q, out)
    return out.tolist()


@njit
def _window_start(k: int, num_tokens: int, length: int, sequence: int, offset: int, shuffle: bool) -> int:
    count = num_tokens // length
    epoch, window = k // count, k % count
    if shuffle:
        window = permutation.permute(window, count, counted_key(np.uint64(sequence), epoch))
    return windows.window_start(epoch, window, num_tokens, length, np.uint64(offset), shuffle)


def window_start(seed: int, name: str, num_tokens: int, length: int, k: int, shuffle: bool = True) -> int:
    keys = [as_bits(base_key(seed, purpose, name)) for purpose in ("sequence", "offset")]
    return _window_start(k, num_tokens, length, *keys, shuffle)


def member(lengths: Sequence[int] | np.ndarray, p: int = 1, q: int = 1, times: int = 1) -> Member:
    """Documents of these lengths, each `times` times."""
    tokens, counts = np.unique(np.asarray(lengths, np.int64), return_counts=True)
    counts *= times
    return Member(tokens, np.cumsum(counts) - counts, int(counts.sum()), p, q)


@njit
def _positions_of(copies: np.ndarray, epoch: int, p: int, q: int, out: np.ndarray) -> None:
    for j in range(copies.size):
        out[j] = repeats.position_of(copies[j], epoch, p, q)


def positions_of(copies: Sequence[int], epoch: int, p: int, q: int) -> list[int]:
    out = np.empty(len(copies), np.int64)
    _positions_of(np.array(copies, np.int64), epoch, p, q, out)
    return out.tolist()


@njit
def _entries_of(
    number: int, slots: np.ndarray, table: np.ndarray, entries: np.ndarray, wide: int, out: np.ndarray
) -> None:
    for j in range(slots.size):
        out[j] = entry_of(number, slots[j], table, entries, wide)


def entries_of(classes: LengthClasses, length: int, slots: Sequence[int]) -> np.ndarray:
    """int64[n, 4], the first slot, first copy, piece and member of the entry of each of these slots of a class."""
    out, number = np.empty(len(slots), np.int64), int(np.searchsorted(classes.rooms, length))
    _entries_of(number, np.array(slots, np.int64), classes.table, classes.entries, classes.wide, out)
    first = int(unpacked_words(classes.table, classes.wide)[number, FIRST_ENTRY])
    return classes.entries_of(number)[out - first]


ADD, REMOVE, NEXT = range(3)


@njit
def _replay(steps: np.ndarray, bits: np.ndarray, out: np.ndarray) -> None:
    for j in range(steps.shape[0]):
        if steps[j, 0] == ADD:
            bitset.add(bits, steps[j, 1])
        elif steps[j, 0] == REMOVE:
            bitset.remove(bits, steps[j, 1])
        else:
            out[j] = bitset.next_member(bits, steps[j, 1])


def replay(steps: Sequence[tuple[int, int]], size: int) -> list[int]:
    """What the NEXT among (ADD, REMOVE or NEXT, number) find in a bitset that begins empty; 0 for the others."""
    out = np.zeros(len(steps), np.int64)
    _replay(np.array(steps, np.int64).reshape(-1, 2), bitset.empty_bitset(size), out)
    return out.tolist()


@njit
def _permute_each(sizes: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> None:
    packed.permute_each(sizes, keys, numbers)


def permute_each(sizes: Sequence[int], keys: Sequence[int], numbers: Sequence[int]) -> list[int]:
    out = np.array(numbers, np.uint64)
    _permute_each(np.array(sizes, np.uint64), np.array(keys, np.uint64), out)
    return out.tolist()


@njit
def _bins(
    numbers: np.ndarray,
    room: int,
    nodes: np.ndarray,
    leaves: np.ndarray,
    near: np.ndarray,
    shift: int,
    wide: int,
    numbers_of_classes: np.ndarray,
    slots: np.ndarray,
) -> np.ndarray:
    ends, used = np.zeros(numbers.size, np.int64), 0
    for j in range(numbers.size):
        if used > room:
            break
        leaf = packed.leaf_of(numbers[j], leaves, *packed.leaves_near(numbers[j], near, shift), wide)
        used += packed.slots_of_bin(numbers[j], leaf, nodes, leaves, wide, numbers_of_classes[used:], slots[used:])
        ends[j] = used
    return ends


def _parts(packing: Packing, classes: LengthClasses) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    made = packing_bins(packing, classes)
    return made.nodes, made.leaves, made.near, made.shift, made.wide


def bins_of(
    packing: Packing, classes: LengthClasses, numbers: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(where each bin ends, classes, slots): the slots of those bins (all), one bin after the other."""
    numbers = np.arange(packing.starts[-1]) if numbers is None else numbers
    room = min(classes.num_pieces, len(numbers) * classes.length)
    found, slots = np.empty((2, room + classes.length + 1), np.int64)  # a bin more, should there be too many
    ends = _bins(numbers, room, *_parts(packing, classes), found, slots)
    used = int(ends[-1]) if ends.size else 0
    return ends, classes.rooms[found[:used]], slots[:used]


def bins(packing: Packing, classes: LengthClasses, numbers: np.ndarray | None = None) -> list[list[tuple[int, int]]]:
    """As the twin has them."""
    ends, lengths, slots = (x.tolist() for x in bins_of(packing, classes, numbers))
    every = list(zip(lengths, slots, strict=True))
    return [every[first:end] for first, end in zip([0, *ends], ends, strict=False)]


SEQUENCE, ITS_MEMBER, POSITION, ITS_PIECE, ROOM, ITS_SLOT = range(6)  # columns of a row of `packed_rows`


@njit
def _packed_rows(
    numbers: np.ndarray,
    epoch: int,
    num_sequences: int,
    length: int,
    shuffle: bool,
    bases: np.ndarray,
    nodes: np.ndarray,
    leaves: np.ndarray,
    near: np.ndarray,
    shift: int,
    wide: int,
    table: np.ndarray,
    entries: np.ndarray,
    factors: np.ndarray,
    out: np.ndarray,
) -> int:
    found, slots = np.empty(length, np.int64), np.empty(length, np.int64)
    sizes, keys, places = np.empty(length, np.uint64), np.empty(length, np.uint64), np.empty(length, np.uint64)
    used = 0
    for i in numbers:
        at = permutation.permute(i, num_sequences, counted_key(bases[0], epoch)) if shuffle else i
        leaf = packed.leaf_of(at, leaves, *packed.leaves_near(at, near, shift), wide)
        count = packed.slots_of_bin(at, leaf, nodes, leaves, wide, found, slots)
        if shuffle:
            packed.shuffle_slots(counted_key(bases[1], epoch * num_sequences + i), count, found, slots)
            for j in range(count):
                sizes[j], places[j] = np.uint64(word(table, found[j], SLOTS, wide)), np.uint64(slots[j])
                keys[j] = counted_key(counted_key(bases[2], epoch), word(table, found[j], CLASS_ROOM, wide))
            packed.permute_each(sizes[:count], keys[:count], places[:count])
            for j in range(count):
                slots[j] = np.int64(places[j])
        for j in range(count):
            room, entry = word(table, found[j], CLASS_ROOM, wide), entry_of(found[j], slots[j], table, entries, wide)
            piece, its_member = both_parts(word(entries, entry, PIECE_AND_MEMBER, wide), MEMBER_BITS[wide])
            copy = slots[j] - word(entries, entry, SLOT, wide)
            if room == length:
                copy, piece = copy // piece, copy % piece
            p, q = factors[its_member]
            position = repeats.position_of(word(entries, entry, COPY, wide) + copy, epoch, p, q)
            out[used, 0], out[used, 1], out[used, 2] = epoch * num_sequences + i, its_member, position
            out[used, 3], out[used, 4], out[used, 5] = piece, room, slots[j]
            used += 1
    return used


class PackedSource:
    """A packed source by production's kernels."""

    def __init__(
        self, members: Sequence[Member], length: int, seed: int, name: str, packing: str, shuffle: bool, align: int = 1
    ):
        self._seed, self._name, self._packing, self._shuffle = seed, name, packing, shuffle
        self.classes = length_classes(members, length, align)
        self.num_sequences = num_best_fit(self.classes) if packing == "best_fit" else self.classes.num_pieces
        self._factors = np.array([(each.p, each.q) for each in members], np.int64)

    def pack(self, epoch: int) -> Packing:
        if self._packing == "none":
            return pack_singles(self.classes)
        jitter = base_key(self._seed, "jitter", self._name)
        return pack(self.classes, self.num_sequences, jitter, epoch, self._shuffle)

    def rows(self, epoch: int, numbers: Sequence[int] | None = None) -> np.ndarray:
        """int64[n, 6], the slots of those sequences of an epoch (all), in row order, empty ones too."""
        classes, made = self.classes, self.pack(epoch)
        numbers = np.array(range(self.num_sequences) if numbers is None else numbers, np.int64)
        bases = [base_key(self._seed, purpose, self._name) for purpose in ("sequence", "row", "class")]
        out = np.empty((min(classes.num_pieces, len(numbers) * classes.length), 6), np.int64)
        used = _packed_rows(
            numbers,
            epoch,
            self.num_sequences,
            classes.length,
            self._shuffle,
            np.array(bases, np.uint64),
            *_parts(made, classes),
            classes.table,
            classes.entries,
            self._factors,
            out,
        )
        return out[:used]


def packed_sequences(
    members: Sequence[tuple[Sequence[int], int, int]],
    length: int,
    seed: int,
    name: str,
    ks: Sequence[int],
    packing: str,
    shuffle: bool,
    align: int = 1,
) -> list[list[tuple[int, int, int, int]]]:
    """Pieces [(member, document, start, stop)] of sequences `ks`, as the twin has them."""
    source = PackedSource([member(*each) for each in members], length, seed, name, packing, shuffle, align)
    by_length = [np.argsort(np.array(lengths), kind="stable").tolist() for lengths, _, _ in members]
    out: dict[int, list] = {k: [] for k in ks}
    for epoch in {k // source.num_sequences for k in ks}:
        numbers = sorted({k % source.num_sequences for k in ks if k // source.num_sequences == epoch})
        for row in source.rows(epoch, numbers).tolist():
            lengths = members[row[ITS_MEMBER]][0]
            if row[POSITION] >= len(lengths):
                continue
            document = by_length[row[ITS_MEMBER]][row[POSITION]]
            start = row[ITS_PIECE] * length
            stop = min(start + row[ROOM], lengths[document])
            if start < stop:
                out[row[SEQUENCE]].append((row[ITS_MEMBER], document, start, stop))
    return [out[k] for k in ks]


@kernel  # kept on disk: compiling it takes six seconds
def _shuffle_lanes(block: np.ndarray, rows: np.ndarray) -> None:
    shuffle_lanes(block, rows)


def batch_windows(sources: np.ndarray, rows: Sequence[tuple[int, int]]) -> list[int]:
    """The windows of rows (source, sequence number), computed all at once as for a batch. sources: the table of sources."""
    block, located = np.zeros(words.BLOCK_SIZE, np.int64), np.array(rows, np.int64)
    work, keys = np.empty((words.WORK_ROWS, len(rows)), np.int64), np.empty((words.KEY_ROWS, len(rows)), np.uint64)
    block[words.SOURCES], block[words.NUM_SOURCES] = sources.ctypes.data, len(sources)
    block[words.WORK], block[words.KEYS], block[words.NUM_COLUMNS] = work.ctypes.data, keys.ctypes.data, len(rows)
    _shuffle_lanes(block, located)
    return keys[NUMBERS].tolist()
