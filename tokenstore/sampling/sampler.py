"""Fills batches of one plan: its arrays, its scratch space, and the tables of the step it was last asked for.

Not safe for two threads at once: every loader has its own, and a Plan guards the one it keeps for itself.
"""

from dataclasses import dataclass

import numpy as np

from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.rows import SegmentTables, locate_rows, segment_tables
from tokenstore.order.schedule import Schedule
from tokenstore.sampling.gather import annotate, gather
from tokenstore.sampling.spans import SPAN_COLUMNS, spans_of
from tokenstore.sampling.tables import OK, REPORT_SIZE, Tables

_AHEAD_ROWS, _AHEAD_PLACES = 512, 16  # rows and places in a step that `locate_next` keeps: 128 KB, or one step each


@dataclass(frozen=True)
class Order:
    """What decides a plan's order, beside the stores: the schedule, source names in order, and a few constants."""

    schedule: Schedule
    names: tuple[str, ...]
    seed: int
    sequence_length: int
    shuffle: bool
    cross_document_targets: bool


class Sampler:
    """Row numbers of a step -> tokens."""

    def __init__(self, order: Order, tables: Tables):
        self._order = order
        self._tables = tables
        self._step_key = as_bits(base_key(order.seed, "step"))
        self._numbers = {name: number for number, name in enumerate(order.names)}
        self._spans = np.empty((0, SPAN_COLUMNS), np.int64)
        self._report = np.zeros(REPORT_SIZE, np.int64)
        self._clock = 0
        self._ahead: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
        self._cursor = self._batch_size = 0
        self._covered = range(0)  # cursors for which _segments holds the tables
        self._segments: SegmentTables

    def __reduce__(self) -> tuple:
        raise TypeError(
            "sampler: expected to stay in its process, as it holds addresses of maps; use plan.sampler() there"
        )

    @property
    def crosses_documents(self) -> bool:
        """Whether targets are predicted across document borders."""
        return self._order.cross_document_targets

    def locate(self, step: int, first_row: int, num_rows: int) -> np.ndarray:
        """int64[num_rows, 2]: source number and sequence number of rows first_row, ... of `step`."""
        return self._locate_steps(step, 1, first_row, num_rows)[0]

    def locate_next(self, step: int, first_row: int, num_rows: int) -> np.ndarray:
        """`locate` for who asks for the same rows of one step after the other: does some steps at once, and keeps them."""
        place = (first_row, num_rows)
        first_step, rows = self._ahead.get(place, (step, ()))
        if not 0 <= step - first_step < len(rows):
            if place not in self._ahead and len(self._ahead) == _AHEAD_PLACES:
                return self.locate(step, first_row, num_rows)  # not worth doing ahead what is not kept
            first_step, rows = step, self._locate_steps(step, max(_AHEAD_ROWS // num_rows, 1), first_row, num_rows)
            self._ahead[place] = (first_step, rows)
        return rows[step - first_step]

    def _locate_steps(self, step: int, most_steps: int, first_row: int, num_rows: int) -> np.ndarray:
        """int64[steps, num_rows, 2] of `step` and those after it: at most so many, as far as the tables at hand reach."""
        self._move_to(step)
        steps = min(most_steps, (self._covered.stop - self._cursor) // self._batch_size)
        rows = np.empty((steps, num_rows, 2), np.int64)
        tables = self._segments
        locate_rows(
            first_row,
            step,
            self._cursor,
            self._batch_size,
            self._step_key,
            self._order.shuffle,
            tables.spans,
            tables.counts,
            tables.numbers,
            tables.sources,
            tables.ranks,
            rows,
        )
        return rows

    def _move_to(self, step: int) -> None:
        """Make the tables at hand those of the segments of `step`; none goes beyond its stage and so its batch size."""
        schedule = self._order.schedule
        self._cursor, self._batch_size = schedule.cursor(step), schedule.stage(step).global_batch_size
        first, last = self._cursor, self._cursor + self._batch_size - 1
        if first not in self._covered or last not in self._covered:
            segments = schedule.segments_in(first, last + 1)
            self._segments = segment_tables(segments, self._numbers)
            end = segments[-1].end
            self._covered = range(segments[0].start, 1 << 62 if end is None else end)

    def _scratch(self, num_rows: int) -> np.ndarray:
        """Room for the spans of so many rows, each token a document at worst; memory never touched costs nothing."""
        size = num_rows * (self._order.sequence_length + 1) + 1
        if len(self._spans) < size:
            self._spans = np.empty((size, SPAN_COLUMNS), np.int64)
        return self._spans

    def fill(self, rows: np.ndarray, ids: np.ndarray, targets: np.ndarray) -> None:
        """Tokens and targets of located rows, int64[B, L] each, filled in place."""
        order, tables, report = self._order, self._tables, self._report
        spans = self._spans if len(self._spans) > ids.size + len(rows) else self._scratch(len(rows))
        self._clock += 1
        while True:
            gather(
                rows,
                order.shuffle,
                order.cross_document_targets,
                self._clock,
                tables.sources,
                tables.files,
                spans,
                report,
                ids,
                targets,
            )
            if report[0] == OK:
                return
            tables.resolve(report, self._clock)

    def annotate(self, rows: np.ndarray, positions: np.ndarray, documents: np.ndarray, starts: np.ndarray) -> None:
        """Positions, documents and document starts of located rows, see `gather.annotate`; filled in place."""
        tables, report = self._tables, self._report
        self._clock += 1
        while True:
            annotate(
                rows,
                self._order.shuffle,
                self._clock,
                tables.sources,
                tables.files,
                self._scratch(len(rows)),
                report,
                positions,
                documents,
                starts,
            )
            if report[0] == OK:
                return
            tables.resolve(report, self._clock)

    def spans(self, row: np.ndarray) -> np.ndarray:
        """int64[n, 6], the spans of one located row; see `spans` for the columns."""
        tables = self._tables
        self._clock += 1
        while True:
            count = spans_of(
                int(row[0]),
                int(row[1]),
                self._order.sequence_length,
                self._order.shuffle,
                self._clock,
                tables.sources,
                tables.files,
                self._report,
                self._scratch(1),
            )
            if count >= 0:
                return self._spans[:count].copy()
            tables.resolve(self._report, self._clock)
