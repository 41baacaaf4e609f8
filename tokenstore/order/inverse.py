"""The inverse of the order: which sequence contains a slot or a window. Used by searches, not to make batches."""

import numpy as np

from tokenstore.jit import kernel
from tokenstore.order.keys import as_bits, counted_key
from tokenstore.order.packing import COPIES, FIRST_SLOT, LENGTH, OFFSET, PARENT, TAKEN, Packing
from tokenstore.order.permutation import unpermute
from tokenstore.order.windows import window_offset


class BinIndex:
    """Finds the bin of a slot in a packing.

    A lookup takes O(depth log groups), where depth is the number of groups that a bin passed through. The constructor
    sorts the groups twice.
    """

    def __init__(self, packing: Packing):
        self._packing = packing
        groups = packing.groups
        self._by_slot = np.lexsort((groups[:, FIRST_SLOT], groups[:, LENGTH]))
        self._by_parent = np.lexsort((groups[:, OFFSET], groups[:, PARENT]))
        self._lengths, self._parents = groups[self._by_slot, LENGTH], groups[self._by_parent, PARENT]

    def bin_of(self, length: int, slot: int) -> int:
        """The number of the bin that contains `slot` of class `length`."""
        packing, groups = self._packing, self._packing.groups
        group = _last(self._by_slot, self._lengths, length, groups[:, FIRST_SLOT], slot)
        place = (slot - int(groups[group, FIRST_SLOT])) // int(groups[group, COPIES])
        while place < groups[group, TAKEN]:  # the bin left this group for a later one
            group = _last(self._by_parent, self._parents, group, groups[:, OFFSET], place)
            place -= int(groups[group, OFFSET])
        leaf = int(np.searchsorted(packing.leaves, group))
        return int(packing.starts[leaf]) + place - int(groups[group, TAKEN])


def _last(order: np.ndarray, keys: np.ndarray, key: int, values: np.ndarray, value: int) -> int:
    """The last row with key `key` and a value of at most `value`. `order` sorts rows by key, then by value."""
    low, high = np.searchsorted(keys, [key, key + 1])
    rows = order[low:high]
    return int(rows[np.searchsorted(values[rows], value, side="right") - 1])


def place_before(images: np.ndarray, size: int, base: np.uint64, counter: int, inner: int = -1) -> np.ndarray:
    """Undo `permute` for many numbers.

    Args:
        images: int64[n] in range(size), results of `permute`.
        size: size of the permuted range.
        base: base key.
        counter: the key is counted key number `counter` of `base`.
        inner: if 0 or more, the key is instead counted key number `inner` of that key, as for the classes of an epoch.

    Returns: int64[n], the numbers that `permute` maps to `images`.
    """
    out = np.empty(len(images), np.int64)
    _unpermute(np.asarray(images, np.int64), size, as_bits(base), counter, inner, out)
    return out


@kernel
def _unpermute(images: np.ndarray, size: int, base_bits: int, counter: int, inner: int, out: np.ndarray) -> None:
    key = counted_key(np.uint64(base_bits), counter)
    if inner >= 0:
        key = counted_key(key, inner)
    for j in range(images.size):
        out[j] = unpermute(images[j], size, key)


def circle_offset(num_tokens: int, base: np.uint64, epoch: int) -> int:
    """Stream position at which the circle of `concat` begins in `epoch` (ORD-7)."""
    out = np.empty(1, np.int64)
    _offset(num_tokens, as_bits(base), epoch, out)
    return int(out[0])


@kernel
def _offset(num_tokens: int, base_bits: int, epoch: int, out: np.ndarray) -> None:
    out[0] = np.int64(window_offset(epoch, num_tokens, np.uint64(base_bits)))
