"""Fills batches of one plan: its arrays, its scratch space, and the tables of the step it was last asked for.

Not safe for two threads at once: every loader has its own, and a Plan guards the one it keeps for itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np

from tokenstore.batches.gather import IGNORE, annotate, gather, plan_spans
from tokenstore.batches.masks import mask
from tokenstore.batches.packed_spans import WORK_ROWS
from tokenstore.batches.packings import Packings
from tokenstore.batches.shuffled import KEY_ROWS
from tokenstore.batches.sigbus import Guard
from tokenstore.batches.spans import CONTINUES, LENGTH, MEMORY, SPAN_COLUMNS, SPAN_STORE
from tokenstore.batches.tables import FIRST_MASK, ITEM_BYTES, NOT_PACKED, OK, REPORT_SIZE, Tables
from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.rows import SegmentTables, locate_rows, segment_tables
from tokenstore.order.schedule import Schedule
from tokenstore.store.maps import prefetch_pages

_NO_ROWS = np.empty((0, 0, 2), np.int64)
_AHEAD_ROWS, _AHEAD_PLACES = 512, 16  # rows and places in a step that `locate_next` keeps: 128 KB, or one step each


@dataclass(frozen=True)
class Order:
    """What decides a plan's order, beside the stores: the schedule, names of the streams in order, and a few constants."""

    schedule: Schedule
    names: tuple[str, ...]
    seed: int
    sequence_length: int
    packed: bool
    shuffle: bool
    cross_document_targets: bool
    pad_id: int


class Sampler:
    """Row numbers of a step -> tokens."""

    def __init__(self, order: Order, tables: Tables, packings: Packings):
        self._order = order
        self._guard = Guard(tables.files)  # first, so that it ends first: it knows the addresses of maps
        self._tables = tables
        self._packings = packings
        self._step_key = as_bits(base_key(order.seed, "step"))
        self._numbers = {name: number for number, name in enumerate(order.names)}
        self._has_masks = bool((tables.stores[:, FIRST_MASK] >= 0).any())
        self._make_scratch(1)
        self._report = np.zeros(REPORT_SIZE, np.int64)
        self._clock = 0
        self._end = (1 << 62) if order.schedule.end is None else order.schedule.end
        self._ahead: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
        self._cursor = self._batch_size = 0
        self._covered = range(0)  # cursors for which _segments holds the tables
        self._segments: SegmentTables

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "sampler: expected to stay in its process, as it holds addresses of maps; use plan.sampler() there"
        )

    @property
    def crosses_documents(self) -> bool:
        """Whether targets are predicted across document borders."""
        return self._order.cross_document_targets

    def locate(self, step: int, first_row: int, num_rows: int) -> np.ndarray:
        """int64[num_rows, 2]: source number and sequence number of rows first_row, ... of `step`."""
        rows: np.ndarray = self._locate_steps(step, 1, first_row, num_rows)[0]
        return rows

    def locate_next(self, step: int, first_row: int, num_rows: int) -> np.ndarray:
        """`locate` for who asks for the same rows of one step after the other: does some steps at once, and keeps them."""
        place = (first_row, num_rows)
        first_step, rows = self._ahead.get(place, (step, _NO_ROWS))
        if not 0 <= step - first_step < len(rows):
            if place not in self._ahead and len(self._ahead) == _AHEAD_PLACES:
                return self.locate(step, first_row, num_rows)  # not worth doing ahead what is not kept
            first_step, rows = step, self._locate_steps(step, max(_AHEAD_ROWS // num_rows, 1), first_row, num_rows)
            self._ahead[place] = (first_step, rows)
        located: np.ndarray = rows[step - first_step]
        return located

    def _locate_steps(self, step: int, most_steps: int, first_row: int, num_rows: int) -> np.ndarray:
        """int64[steps, num_rows, 2] of `step` and those after it: at most so many, as far as the tables at hand reach."""
        self._move_to(step)
        in_stage = self._order.schedule.stage_end(step) - step  # a segment may go on with another batch size
        steps = max(min(most_steps, in_stage, (self._covered.stop - self._cursor) // self._batch_size), 1)
        rows = np.empty((steps, num_rows, 2), np.int64)
        tables = self._segments
        locate_rows(
            first_row,
            step,
            self._cursor,
            self._end,
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
        """Make the tables at hand those of the segments of `step`."""
        schedule = self._order.schedule
        self._cursor, self._batch_size = schedule.cursor(step), schedule.stage(step).global_batch_size
        first, last = self._cursor, self._cursor + self._batch_size - 1
        if first not in self._covered or last not in self._covered:
            self._covered = range(0)  # an interrupt here must not leave other tables under the old range
            segments = schedule.segments_in(first, last + 1)
            self._segments = segment_tables(segments, self._numbers)
            end = segments[-1].end
            self._covered = range(segments[0].start, 1 << 62 if end is None else end)

    def _make_scratch(self, num_rows: int) -> None:
        """Room for so many rows, each token a document at worst; memory never touched costs nothing."""
        size = num_rows * (self._order.sequence_length + 1) + 1
        self._room = 0  # until there is room: memory may run out in between
        self._spans = np.empty((size, SPAN_COLUMNS), np.int64)
        self._firsts = np.zeros(num_rows + 1, np.int64)
        columns = size if self._order.packed else num_rows
        self._work, self._keys = np.empty((WORK_ROWS, columns), np.int64), np.empty((KEY_ROWS, columns), np.uint64)
        self._room = num_rows

    def _run(
        self, call: Callable[..., None], rows: np.ndarray, *options: int | bool, out: Sequence[np.ndarray] = ()
    ) -> None:
        """Call a kernel, again after each time it asks for a file to be mapped or an epoch to be packed."""
        if len(rows) > self._room:
            self._make_scratch(len(rows))
        tables = self._tables
        if tables.pace.is_due():
            self._guard.install()
            tables.check_files()
        self._clock += 1
        while True:
            call(
                rows,
                *options,
                self._clock,
                tables.stores,
                tables.sources,
                self._packings.table,
                tables.files,
                self._report,
                self._work,
                self._keys,
                self._firsts,
                self._spans,
                *out,
            )
            if self._is_done(rows):
                return

    def _is_done(self, rows: np.ndarray) -> bool:
        """Whether a kernel came to its end; if not, what it asked for is there now."""
        if cut := self._guard.take_replaced():  # before the report, which may come of the zeros
            self._tables.refuse_cut_file(cut)
            return False
        report = self._report
        if report[0] == NOT_PACKED:
            source = int(report[1])
            self._packings.add_missing(source, rows[rows[:, 0] == source, 1], self._clock)
        elif report[0] != OK:
            self._tables.resolve(report, self._clock)
        return bool(report[0] == OK)

    def fill(self, rows: np.ndarray, ids: np.ndarray, targets: np.ndarray) -> None:
        """Tokens and targets of located rows, int64[B, L] each, filled in place."""
        order = self._order
        options = (order.packed, order.shuffle, order.cross_document_targets, order.pad_id)
        self._run(gather, rows, *options, out=(ids, targets))
        if self._has_masks:
            self._mask(rows, targets)

    def _mask(self, rows: np.ndarray, targets: np.ndarray) -> None:
        tables = self._tables
        self._in_loss = np.empty((len(rows), targets.shape[1] + 1), np.bool_)
        scratch = (self._firsts, self._spans)
        while True:
            mask(self._clock, tables.stores, tables.files, self._report, *scratch, self._in_loss, targets)
            if self._is_done(rows):
                return

    def mask_labels(self, labels: np.ndarray) -> None:
        """Leave out the masked tokens of the rows that `fill` filled last from their labels, which are not shifted."""
        if self._has_masks:
            labels[~self._in_loss[:, :-1]] = IGNORE

    def annotate(self, positions: np.ndarray, documents: np.ndarray, starts: np.ndarray) -> None:
        """Positions, documents and document starts of the rows that `fill` filled last, see `gather.annotate`."""
        annotate(self._firsts, self._spans, positions, documents, starts)

    def lay(self, rows: np.ndarray) -> None:
        """Plan located rows down to where their tokens lie, and read none."""
        order = self._order
        self._run(plan_spans, rows, order.sequence_length, order.packed, order.shuffle)

    def call_for(self, rows: np.ndarray) -> None:
        """Have the tokens of located rows read from the disk, and go on meanwhile."""
        self.lay(rows)
        spans = self._spans[: self._firsts[len(rows)]]
        sizes = (spans[:, LENGTH] + spans[:, CONTINUES]) * self._tables.stores[spans[:, SPAN_STORE], ITEM_BYTES]
        prefetch_pages(zip(spans[:, MEMORY].tolist(), sizes.tolist(), strict=True))

    def spans(self, rows: np.ndarray) -> list[np.ndarray]:
        """int64[n, 7] of each located row, its spans; see `spans` for the columns."""
        self.lay(rows)
        return [self._spans[first:stop].copy() for first, stop in pairwise(self._firsts[: len(rows) + 1].tolist())]
