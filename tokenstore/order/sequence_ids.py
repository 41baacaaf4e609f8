"""The global number of a row: its row number in the step (ORD-6), plus the sequences of all earlier steps."""

from collections.abc import Sequence

import numpy as np

from tokenstore.order.inverse import place_before
from tokenstore.order.keys import base_key
from tokenstore.order.schedule import Schedule


class SequenceIds:
    """Computes the global numbers of located rows, by inverting ORD-5 and ORD-6.

    It does not need to know which step or rank a row was made for, so it is the same however a step is divided.
    """

    def __init__(self, schedule: Schedule, names: Sequence[str], seed: int, shuffle: bool):
        self._schedule, self._names = schedule, names
        self._key = base_key(seed, "step") if shuffle else None
        self._bases: dict[int, np.ndarray] = {}  # by source: its number of sequences before each segment

    def of(self, rows: np.ndarray) -> np.ndarray:
        """int64[n]: the global number of each row; -1 for a row of padding, and for a row that is in no step.

        rows: int64[n, 2], source and sequence number of each row; source -1 is a row of padding. An evaluation also has rows
            that are in no step: sequences that the last step drops, and numbers below 0 for the rest of a stream.
        """
        cursors = np.full(len(rows), -1, np.int64)
        for source in np.unique(rows[:, 0]).tolist():
            if source >= 0:
                mine = (rows[:, 0] == source) & (rows[:, 1] >= 0)
                cursors[mine] = self._cursors_of(source, rows[mine, 1])
        return self._row_numbers(cursors)

    def _cursors_of(self, source: int, numbers: np.ndarray) -> np.ndarray:
        """int64[n]: the cursor of each sequence of a source (ORD-5)."""
        name, segments = self._names[source], self._schedule.segments
        if source not in self._bases:
            self._bases[source] = np.array([segment.base.get(name, 0) for segment in segments])
        bases = self._bases[source]
        # A segment without the source begins at the same base as the one after it, so the last one is right
        inside = np.searchsorted(bases, numbers, side="right") - 1
        cursors = np.empty(len(numbers), np.int64)
        for i in np.unique(inside).tolist():
            mine = inside == i
            has_it = bool(segments[i].shares.get(name))
            cursors[mine] = segments[i].places(name, numbers[mine] - bases[i]) if has_it else -1
        end = self._schedule.num_steps
        return cursors if end is None else np.where(cursors < self._schedule.cursor(end), cursors, -1)

    def _row_numbers(self, cursors: np.ndarray) -> np.ndarray:
        """int64[n]: global numbers of the rows at these cursors. A negative cursor stays."""
        ids = cursors.copy()
        if self._key is None:
            return ids
        schedule, left = self._schedule, cursors >= 0
        while left.any():  # once per step; the rows of a microbatch are all in one
            step = schedule.step_of(int(cursors[left][0]))
            first, size = schedule.cursor(step), schedule.stage(step).global_batch_size
            mine = left & (first <= cursors) & (cursors < first + size)
            ids[mine] = first + place_before(cursors[mine] - first, size, self._key, step)
            left &= ~mine
        return ids
