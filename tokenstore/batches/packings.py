"""The packings of the current epochs, as a table of addresses that kernels read.

At most two packings per source are kept, unless one batch needs more. Nothing is written to disk, because making a
packing takes milliseconds and every rank makes the same one.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tokenstore.batches.sources import Source
from tokenstore.order.keys import base_key
from tokenstore.order.packing import Bins, Packing, bins_of, pack, pack_singles

# Columns of `packings`: source and epoch, the call that used it last, then addresses and sizes of the arrays of `Bins` and of
# `LengthClasses` (CLASSES is its table). MEMBERS: number of the store of each member
(
    SOURCE,
    EPOCH,
    PACKING_CLOCK,
    NODES,
    NUM_NODES,
    LEAVES,
    NUM_LEAVES,
    NEAR,
    NUM_NEAR,
    SHIFT,
    WIDE,
    CLASSES,
    NUM_CLASSES,
    ENTRIES,
    NUM_ENTRIES,
    MEMBERS,
) = range(16)
PACKING_COLUMNS = 16
_KEPT = 2  # packings per source: the current epoch and the next one


class Packings:
    """Makes packings when a kernel needs one, and drops the least recently used.

    Attributes:
        table: int64[n, PACKING_COLUMNS], see the columns above; -1 in rows that are not used. `add` may replace it by a
            longer one.
    """

    def __init__(self, sources: Sequence[Source], stores: Iterable[str], seed: int, shuffle: bool):
        """Make an empty table; `stores` has the names of all stores in the order of the table of stores."""
        self._sources, self._shuffle = sources, shuffle
        self._jitter = [base_key(seed, "jitter", source.name) for source in sources]
        numbers = {name: number for number, name in enumerate(stores)}
        self._members = [np.array([numbers[member.name] for member in source.members]) for source in sources]
        self._held: dict[tuple[int, int], Bins] = {}
        self.table = np.full((_KEPT * len(sources) + 1, PACKING_COLUMNS), -1, np.int64)

    def packing(self, number: int, epoch: int) -> Packing:
        """Make the packing of an epoch of source `number`.

        All epochs have the same packing under `none`, and without shuffle.
        """
        source = self._sources[number]
        if source.packing == "none":
            return pack_singles(source.classes)
        return pack(source.classes, source.num_sequences, self._jitter[number], epoch, self._shuffle)

    def add(self, number: int, epoch: int, clock: int) -> None:
        """Make the packing of an epoch of source `number` and put it into the table."""
        row = self._free_row(number, clock)
        classes = self._sources[number].classes
        made = bins_of(
            self.packing(number, epoch), classes
        )  # before dropping the old one, as an interrupt may occur here
        old = (int(self.table[row, SOURCE]), int(self.table[row, EPOCH]))
        self.table[row] = -1  # before the arrays are freed, so that no kernel reads freed memory
        self._held.pop(old, None)
        self._held[number, epoch] = made
        self.table[row] = (
            *(number, epoch, clock),
            *(made.nodes.ctypes.data, len(made.nodes), made.leaves.ctypes.data, len(made.leaves)),
            *(made.near.ctypes.data, len(made.near), made.shift, made.wide),
            *(classes.table.ctypes.data, len(classes.table), classes.entries.ctypes.data, len(classes.entries)),
            self._members[number].ctypes.data,
        )

    def add_missing(self, number: int, numbers: np.ndarray, clock: int) -> None:
        """Make the missing packings of all epochs that sequences `numbers` (int64[n]) of source `number` belong to.

        A batch may span many epochs.
        """
        epochs = np.unique(numbers // self._sources[number].num_sequences).tolist()
        mine = self.table[:, SOURCE] == number
        # Mark those that exist as used, so that `add` does not drop them
        self.table[mine & np.isin(self.table[:, EPOCH], epochs), PACKING_CLOCK] = clock
        for epoch in epochs:
            if (number, epoch) not in self._held:
                self.add(number, epoch, clock)

    def _free_row(self, number: int, clock: int) -> int:
        """An unused row, or the least recently used row of the source. Adds a row if the current batch uses all of
        them.
        """
        table = self.table
        mine = np.flatnonzero(table[:, SOURCE] == number)
        free = np.flatnonzero(table[:, SOURCE] < 0)
        rows = mine if len(mine) >= _KEPT or not len(free) else free
        oldest = int(rows[np.argmin(table[rows, PACKING_CLOCK])]) if len(rows) else -1
        if oldest >= 0 and (table[oldest, PACKING_CLOCK] != clock or table[oldest, SOURCE] < 0):
            return oldest
        self.table = np.concatenate([table, np.full((1, PACKING_COLUMNS), -1, np.int64)])
        return len(table)
