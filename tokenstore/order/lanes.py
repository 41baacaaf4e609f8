"""Lanes (ORD-20): an order of the windows of an epoch that reads a few blocks of neighbouring windows side by side.

The windows are cut into blocks, the blocks are permuted and form a line, and the line is cut into as many stretches as
there are lanes. Successive sequences take one window from each stretch in turn. So at any time one block per lane is in
use, and the sequences of a step come from different blocks.

Names, with their letters in ORD-20:

    `Lanes`                           N, s and W of a source, in canonical form; `Lanes.shape` is what kernels take
    `lane_windows`, `lane_numbers`    numbers i of an epoch -> windows, and back
    `line_place`, `place_number`      number i -> place x on the line, and back
    `owner_lane`                      number i -> its lane, the same in every epoch; `owner_lanes`: many
    `block_of`, `block_size`          window -> block b; windows of a block

The lane of a number is not the stretch j that it is read from, but (j f) mod W: f spreads any few successive numbers
evenly over ranges of lanes, so each node of a cluster can own a range of lanes.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from tokenstore.jit import Integer, inline_kernel, kernel
from tokenstore.order.keys import as_bits, counted_key
from tokenstore.order.permutation import permute, unpermute

MOST_LANES = 1 << 24  # so that products of two lanes fit int64

# Words of a shape: N, s, nb, r, W, f, and a, t = divmod(N, W)
NUM_WINDOWS, BLOCK, NUM_BLOCKS, LAST_SIZE, NUM_LANES, STRIDE, STRETCH, LONGER = range(8)
SHAPE_WORDS = 8


@dataclass(frozen=True)
class Lanes:
    """The lanes of a source.

    Settings that give the same order are equal: a block has at most all windows, and there are at most as many lanes as
    blocks.

    Attributes:
        num_windows: sequences per epoch.
        block: windows per block. The last block may have fewer.
        count: lanes.
    """

    num_windows: int
    block: int
    count: int

    @classmethod
    def of(cls, num_windows: int, block_sequences: int, lanes: int) -> "Lanes":
        """The lanes of a source with these settings. All numbers are at least 1; `lanes` is at most MOST_LANES."""
        block = min(block_sequences, num_windows)
        return cls(num_windows, block, min(lanes, -(-num_windows // block)))

    @property
    def num_blocks(self) -> int:
        """Blocks per epoch."""
        return -(-self.num_windows // self.block)

    @property
    def stride(self) -> int:
        """f: near W / 1.618 and prime to W, so that the lanes of successive numbers are spread evenly."""
        if self.count < 3:
            return 1
        stride = self.count * 618034 // 1000000
        while gcd(stride, self.count) > 1:
            stride += 1
        return stride

    @property
    def shape(self) -> np.ndarray:
        """int64[SHAPE_WORDS], see the words above."""
        last = self.num_windows - (self.num_blocks - 1) * self.block
        words = (self.num_windows, self.block, self.num_blocks, last, self.count, self.stride)
        return np.array([*words, *divmod(self.num_windows, self.count)], np.int64)


@inline_kernel
def line_place(number: Integer, shape: np.ndarray) -> Integer:
    """Place on the line, x, of number `number` of an epoch. Requires 0 <= number < N; not checked."""
    turn = number // shape[NUM_LANES]
    stretch = number - turn * shape[NUM_LANES]
    return stretch * shape[STRETCH] + min(stretch, shape[LONGER]) + turn


@inline_kernel
def place_number(place: Integer, shape: np.ndarray) -> Integer:
    """The inverse of `line_place`. The first t stretches have a + 1 places, the others a."""
    longer = shape[LONGER] * (shape[STRETCH] + 1)
    if place < longer:  # noqa: SIM108 - two formulas, one for each kind of stretch
        stretch = place // (shape[STRETCH] + 1)
    else:
        stretch = shape[LONGER] + (place - longer) // shape[STRETCH]
    turn = place - stretch * shape[STRETCH] - min(stretch, shape[LONGER])
    return turn * shape[NUM_LANES] + stretch


@inline_kernel
def owner_lane(number: Integer, shape: np.ndarray) -> Integer:
    """The lane of number `number` of an epoch, in range(W)."""
    return number % shape[NUM_LANES] * shape[STRIDE] % shape[NUM_LANES]


@inline_kernel
def block_of(window: Integer, shape: np.ndarray) -> Integer:
    """The block that contains a window."""
    return window // shape[BLOCK]


@inline_kernel
def block_size(block: Integer, shape: np.ndarray) -> Integer:
    """Windows of a block: s, or r for the last one."""
    return shape[LAST_SIZE] if block == shape[NUM_BLOCKS] - 1 else shape[BLOCK]


@inline_kernel
def short_place(block_key: np.uint64, shape: np.ndarray) -> Integer:
    """p*, the place of the last block among the permuted blocks."""
    return unpermute(shape[NUM_BLOCKS] - 1, shape[NUM_BLOCKS], block_key)


@inline_kernel
def full_place(place: Integer, short: Integer, shape: np.ndarray) -> Integer:
    """y: place `place` of the line if the last block, at place `short`, were as long as the others."""
    gap = shape[BLOCK] - shape[LAST_SIZE]
    return place + gap if place >= short * shape[BLOCK] + shape[LAST_SIZE] else place


@inline_kernel
def _window(number: Integer, shape: np.ndarray, short: Integer, block_key: np.uint64, place_key: np.uint64) -> Integer:
    full = full_place(line_place(number, shape), short, shape)
    place = full // shape[BLOCK]
    block = permute(place, shape[NUM_BLOCKS], block_key)
    inside = full - place * shape[BLOCK]
    return block * shape[BLOCK] + permute(inside, block_size(block, shape), counted_key(place_key, block))


@inline_kernel
def _number(window: Integer, shape: np.ndarray, short: Integer, block_key: np.uint64, place_key: np.uint64) -> Integer:
    block = block_of(window, shape)
    inside = unpermute(window - block * shape[BLOCK], block_size(block, shape), counted_key(place_key, block))
    place = unpermute(block, shape[NUM_BLOCKS], block_key)
    full = place * shape[BLOCK] + inside
    return place_number(full - (shape[BLOCK] - shape[LAST_SIZE]) if place > short else full, shape)


@kernel
def _windows(shape: np.ndarray, block_bits: int, place_bits: int, epoch: int, out: np.ndarray) -> None:
    block_key = counted_key(np.uint64(block_bits), epoch)
    place_key = counted_key(np.uint64(place_bits), epoch)
    short = short_place(block_key, shape)
    for j in range(out.size):
        out[j] = _window(out[j], shape, short, block_key, place_key)


@kernel
def _numbers(shape: np.ndarray, block_bits: int, place_bits: int, epoch: int, out: np.ndarray) -> None:
    block_key = counted_key(np.uint64(block_bits), epoch)
    place_key = counted_key(np.uint64(place_bits), epoch)
    short = short_place(block_key, shape)
    for j in range(out.size):
        out[j] = _number(out[j], shape, short, block_key, place_key)


@kernel
def _owners(shape: np.ndarray, out: np.ndarray) -> None:
    for j in range(out.size):
        out[j] = owner_lane(out[j], shape)


def lane_windows(
    lanes: Lanes, numbers: np.ndarray, epoch: int, block_base: np.uint64, place_base: np.uint64
) -> np.ndarray:
    """The windows of many numbers of one epoch.

    Args:
        lanes: the lanes of the source.
        numbers: int64[n], in range(N).
        epoch: number of the epoch.
        block_base, place_base: base keys "block" and "place" of the source (ORD-1).

    Returns: int64[n].
    """
    out = np.array(numbers, np.int64)
    _windows(lanes.shape, as_bits(block_base), as_bits(place_base), epoch, out)
    return out


def lane_numbers(
    lanes: Lanes, windows: np.ndarray, epoch: int, block_base: np.uint64, place_base: np.uint64
) -> np.ndarray:
    """The inverse of `lane_windows`."""
    out = np.array(windows, np.int64)
    _numbers(lanes.shape, as_bits(block_base), as_bits(place_base), epoch, out)
    return out


def owner_lanes(lanes: Lanes, numbers: np.ndarray) -> np.ndarray:
    """The lanes, int64[n] in range(W), of many numbers (int64[n], in range(N)) of any epoch."""
    out = np.array(numbers, np.int64)
    _owners(lanes.shape, out)
    return out
