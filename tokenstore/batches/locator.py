"""Locates rows of steps, in the order of ORD-6: from a row of a step to a source and the number of a sequence in it."""

from collections.abc import Mapping, Sequence

import numpy as np

from tokenstore.batches.places import Place
from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.rows import SegmentTables
from tokenstore.order.schedule import Schedule


class Locator:
    """Locates rows of a schedule. It keeps the tables of the current steps. Not thread-safe."""

    def __init__(self, schedule: Schedule, names: Sequence[str], seed: int, shuffle: bool):
        """names: of the sources, in the order of their numbers."""
        self._schedule = schedule
        self._end = (1 << 62) if schedule.end is None else schedule.end
        self._numbers: Mapping[str, int] = {name: number for number, name in enumerate(names)}
        self._step_key = as_bits(base_key(seed, "step")) if shuffle else None
        self._steps = self._covered = range(0)  # steps and cursors that `_tables` covers
        self._tables: SegmentTables

    def locate(self, places: Sequence[Place]) -> np.ndarray:
        """int64[n, 2], source and sequence number of all rows of `places` (step, first row, rows, ...), in order."""
        parts = []
        while places:
            tables, count = self.tables_of(places)
            parts.append(tables.locate(places[:count]))
            places = places[count:]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def tables_of(self, places: Sequence[Place]) -> tuple[SegmentTables, int]:
        """The tables for the first of `places`, and how many places from there on have the same tables: usually all."""
        if places[0][0] not in self._steps:
            self._move_to(places[0][0])
        count = 1
        while count < len(places) and places[count][0] in self._steps:
            count += 1
        return self._tables, count

    def _move_to(self, step: int) -> None:
        """Make `_tables` cover `step` and as many steps after it as have the same segments and batch size."""
        schedule = self._schedule
        cursor, size = schedule.cursor(step), schedule.stage(step).global_batch_size
        if cursor not in self._covered or cursor + size - 1 not in self._covered:
            # Empty first, so that an interrupt cannot leave ranges that do not match `_tables`
            self._covered = self._steps = range(0)
            segments = schedule.segments_in(cursor, cursor + size)
            self._tables = SegmentTables(segments, self._numbers)
            end = segments[-1].end
            self._covered = range(segments[0].start, 1 << 62 if end is None else end)
        # A segment may continue with another batch size
        num_steps = min(schedule.stage_end(step) - step, (self._covered.stop - cursor) // size)
        self._steps = range(0)
        self._tables.begin(step, cursor, self._end, size, self._step_key)
        self._steps = range(step, step + max(num_steps, 1))
