"""Fills arrays with the rows of steps in three stages: locate the rows, plan their spans, copy their tokens.

    places (step, first row, rows) --locate--> int64[n, 2] source, sequence --plan--> PlannedRows --copy--> the arrays

Rows of many microbatches are located and planned by one call of a kernel, and copied a microbatch at a time: planning 64
rows at once costs half as much per row as planning 8, because each step waits for memory for all rows together. So
little Python code runs per microbatch, and none of it plans.

Not thread-safe: every loader has its own sampler, and a Plan protects its own with a lock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tokenstore.batches import block as words
from tokenstore.batches.block import (
    KEY_ROWS,
    NEXT_ROWS,
    NEXT_SPANS,
    NEXT_STARTS,
    NUM_ROWS,
    REPORT,
    SPANS,
    STARTS,
    WORK_ROWS,
)
from tokenstore.batches.coming import Coming
from tokenstore.batches.costs import row_squares
from tokenstore.batches.gather import IGNORE, gather
from tokenstore.batches.locator import Locator
from tokenstore.batches.packings import Packings
from tokenstore.batches.places import Place
from tokenstore.batches.planned import PlannedRows, PlanResult
from tokenstore.batches.planner import plan_spans
from tokenstore.batches.remote_rows import RemoteRows
from tokenstore.batches.sigbus import Guard
from tokenstore.batches.tables import (
    HAS_LANES,
    NO_ROOM,
    NOT_PACKED,
    OK,
    REPORT_SIZE,
    TOKEN_BYTES,
    VOCAB_SIZE,
    ZEROS_READ,
    Tables,
)
from tokenstore.order.lanes import Lanes
from tokenstore.order.rank_rows import check_nodes
from tokenstore.order.schedule import Schedule
from tokenstore.store.maps import sparse_array

_FIRST_SPANS = 8  # room for spans per row, until rows have more


@dataclass(frozen=True)
class Order:
    """Everything that determines the order of a plan, except the stores.

    Attributes:
        schedule: the segments of the run.
        names: names of the sources, sorted.
        seed: seed of the plan.
        sequence_length: tokens per row.
        packed: whether the packing is `best_fit` or `none`, not `concat`.
        shuffle: whether the plan shuffles.
        cross_document_targets: whether the last token of a document has the next token of the row as target.
        pad_id: token id of padding.
        align: pieces begin in a row at multiples of it (ORD-18); 0 if they follow one another.
        balance: the integers (a, b) of the costs by which rows are dealt to ranks (ORD-19); None without balance.
        lanes: lanes of each source, in the order of `names` (ORD-20); None for one without. Empty if none has.
    """

    schedule: Schedule
    names: tuple[str, ...]
    seed: int
    sequence_length: int
    packed: bool
    shuffle: bool
    cross_document_targets: bool
    pad_id: int
    align: int = 0
    balance: tuple[int, int] | None = None
    lanes: tuple[Lanes | None, ...] = ()

    def lanes_in(self, step: int) -> tuple[Lanes | None, ...]:
        """Like `lanes`, but only of the sources that have a share in the stage of `step`. Empty if none of them has lanes."""
        if not self.lanes:
            return ()
        shares = self.schedule.stage(step).shares
        used = tuple(lanes if name in shares else None for name, lanes in zip(self.names, self.lanes, strict=True))
        return used if any(used) else ()

    def num_groups(self, step: int, world_size: int, nodes: int) -> int:
        """Node groups among which the rows of `step` are divided (ORD-21); 1 if there is nothing to divide by."""
        return nodes if check_nodes(nodes) > 1 and world_size % nodes == 0 and self.lanes_in(step) else 1


class Sampler:
    """Locates, plans and copies rows. It owns the argument block, the scratch arrays and the maps of its tables.

    Attributes:
        block: the argument block. `copy` fills each array whose address is in it; see `block` for their shapes. A word that was
            set once must be set before every later call.
        remote: fetches what is at URLs; None if no store is.
    """

    def __init__(self, order: Order, tables: Tables, packings: Packings):
        self._order = order
        self._guard = Guard(tables.files)  # created first so that it is removed first: it has addresses of maps
        self._tables = tables
        self._packings = packings
        array = np.zeros(words.BLOCK_SIZE, np.int64)
        self._address = array.ctypes.data
        self.block = array.data  # 25 ns per word; numpy takes 100
        self._report = array[REPORT : REPORT + REPORT_SIZE]
        self._token_bytes = int(tables.stores[0, TOKEN_BYTES])  # all stores of a plan have one tokenizer, so one dtype
        self.remote = RemoteRows(tables.open_stores, order.sequence_length) if tables.has_remote else None
        self._borders = self._piece_tokens = np.empty(0, np.int32)
        self._set_constants()
        self._packing_table: np.ndarray | None = None  # the one whose address the block has
        self._room, self._spans_per_row = 0, min(_FIRST_SPANS, order.sequence_length + 1)
        self._clock = 0
        self._locator = Locator(order.schedule, order.names, order.seed, order.shuffle)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "sampler: cannot be pickled, because it contains memory addresses; call plan.sampler() in the other process"
        )

    def _set_constants(self) -> None:
        """Write the words of the block that never change."""
        order, tables, block = self._order, self._tables, self.block
        block[words.SEQUENCE_LENGTH], block[words.PAD_ID] = order.sequence_length, order.pad_id
        block[words.PACKED], block[words.SHUFFLE] = order.packed, order.shuffle
        block[words.CROSS], block[words.ALIGN] = order.cross_document_targets, order.align
        self.set_format()
        block[words.TOKEN_BYTES], block[words.VOCAB_SIZE] = self._token_bytes, int(tables.stores[0, VOCAB_SIZE])
        block[words.LANES] = bool(tables.sources[:, HAS_LANES].any())
        for word, table in (
            (words.STORES, tables.stores),
            (words.SOURCES, tables.sources),
            (words.FILES, tables.files),
        ):
            block[word], block[word + 1] = table.ctypes.data, len(table)
        block[words.ZEROS] = self._guard.zeros

    # ---- rows of steps

    def locate(self, step: int, first_row: int, num_rows: int) -> np.ndarray:
        """int64[num_rows, 2], source and sequence number of the rows of `step` from `first_row` on."""
        return self.locate_places([(step, first_row, num_rows)])

    def locate_places(self, places: Sequence[Place]) -> np.ndarray:
        """int64[n, 2], source and sequence number of all rows of `places` (step, first row, rows, ...), in order."""
        return self._locator.locate(places)

    # ---- rows -> spans

    def plan(
        self, rows: np.ndarray, sizes: Sequence[int] | None = None, spare: PlanResult | None = None
    ) -> list[PlannedRows]:
        """Find the tokens of located rows without reading them. Those at a URL are requested.

        Args:
            rows: int64[n, 2], source and sequence number; source -1 is a row of padding.
            sizes: rows per microbatch, in total all rows; None: one microbatch.
            spare: a result that nobody needs any more, whose memory can be used.
        """
        return self._requested(self._plan(len(rows), rows, spare), sizes or [len(rows)])

    def plan_places(self, places: Sequence[Place], table: int, spare: PlanResult | None = None) -> list[PlannedRows]:
        """Locate and plan the microbatches of `places`: all of them, or only the first ones if later steps have other tables.

        Args:
            places: (step, first row, number of rows, ...) of each.
            table: address of the places as int64[n, columns].
            spare: see `plan`.
        """
        tables, count = self._locator.tables_of(places)
        block = self.block
        block[words.PLACES], block[words.NUM_PLACES] = table, count
        block[words.PLACE_COLUMNS], block[words.STEPS] = len(places[0]), tables.address
        sizes = [place[2] for place in places[:count]]
        return self._requested(self._plan(sum(sizes), None, spare), sizes)

    def _requested(self, plan: PlanResult, sizes: Sequence[int]) -> list[PlannedRows]:
        """The microbatches of a result. What they need from URLs is requested."""
        planned = plan.microbatches(sizes)
        if self.remote is not None:
            for each in planned:
                if (coming := self.remote.request(each.spans, each.span_numbers)) is not None:
                    plan.coming[each.first] = coming
        return planned

    def _plan(self, num_rows: int, rows: np.ndarray | None, spare: PlanResult | None = None) -> PlanResult:
        """Plan `rows`, or those of the places in the block if it is None. Without requests."""
        self._clock += 1
        if num_rows > self._room:
            self._make_scratch(num_rows)
        block = self.block
        while True:
            room = num_rows * self._spans_per_row + 1
            plan = spare
            if plan is None or plan.num_rows != num_rows or plan.room < room:
                plan = PlanResult(num_rows, room)
            plan.clock, plan.coming = self._clock, {}
            if rows is not None:
                plan.rows[:], block[words.PLACES] = rows, 0
            block[words.STARTS], block[words.SPANS], block[words.SPAN_ROOM] = plan.starts_at, plan.spans_at, room
            if self._run_planner(plan_spans, plan.rows, plan.rows_at):
                return plan
            self._spans_per_row = min(2 * self._spans_per_row, self._order.sequence_length + 1)

    def _make_scratch(self, num_rows: int) -> None:
        """Allocate for this many rows, in the worst case with a document per token. Only what is used takes memory."""
        columns = num_rows * (self._order.sequence_length + 1) + 1 if self._order.packed else num_rows
        self._room = 0  # an allocation below may fail
        self._work = sparse_array((WORK_ROWS, columns), np.int64)
        self._keys = sparse_array((KEY_ROWS, columns), np.uint64)
        block = self.block
        block[words.WORK], block[words.KEYS] = self._work.ctypes.data, self._keys.ctypes.data
        block[words.NUM_COLUMNS] = columns
        self._room = num_rows

    def _run_planner(self, kernel: Callable[[int], None], rows: np.ndarray, rows_at: int) -> bool:
        """Call a kernel, and call it again whenever it requests that a file is mapped or an epoch packed.

        rows: int64[n, 2], at the address `rows_at`.

        Returns: False if there is no room for the spans.
        """
        if self._tables.pace.is_due():
            self._look_at_files()
        block, num_rows = self.block, len(rows)
        while True:
            packings = self._packings.table
            if packings is not self._packing_table:  # the first call, or it has grown
                block[words.PACKINGS], block[words.NUM_PACKINGS] = packings.ctypes.data, len(packings)
                self._packing_table = packings  # last, as an interrupt may occur before
            block[words.ROWS], block[words.NUM_ROWS], block[words.CLOCK] = rows_at, num_rows, self._clock
            kernel(self._address)
            if block[REPORT] == NO_ROOM:
                return False
            if self._is_done(rows):
                return True

    def costs(self, rows: np.ndarray) -> np.ndarray:
        """int64[n], the cost of each located row (ORD-19). Without balance, the integers are a = 1, b = 0.

        rows: int64[n, 2]. It reads packings, or the boundaries of documents under `concat`, but no tokens.
        """
        self._clock += 1
        attention, linear = self._order.balance or (1, 0)
        squares, block = np.empty(len(rows), np.int64), self.block
        # The scratch of the planner has a column for every token of a row, which is far too large for all rows of a step
        work, keys = np.empty((WORK_ROWS, len(rows)), np.int64), np.empty((KEY_ROWS, len(rows)), np.uint64)
        before = block[words.WORK], block[words.KEYS], block[words.NUM_COLUMNS]
        try:
            block[words.WORK], block[words.KEYS], block[words.NUM_COLUMNS] = (
                work.ctypes.data,
                keys.ctypes.data,
                len(rows),
            )
            block[words.COSTS] = squares.ctypes.data
            rows = np.ascontiguousarray(rows)
            self._run_planner(row_squares, rows, rows.ctypes.data)
        finally:
            block[words.WORK], block[words.KEYS], block[words.NUM_COLUMNS] = before
        return attention * squares + linear * self._order.sequence_length

    def _look_at_files(self) -> None:
        """Refuse stores that were replaced. Done only now and then, because it costs a system call per file."""
        self._guard.install()
        self.block[words.ZEROS] = self._guard.zeros
        self._tables.check_files()

    def _is_done(self, rows: np.ndarray) -> bool:
        """Whether a kernel finished. If not, what it requested is available now."""
        if cut := self._guard.take_replaced():  # before the report, which may be due to the zeros
            self._tables.refuse_cut_file(cut, self._clock)
            return False
        report = self._report
        if report[0] == NOT_PACKED:
            source = int(report[1])
            self._packings.add_missing(source, rows[rows[:, 0] == source, 1], self._clock)
        elif report[0] not in (OK, ZEROS_READ):
            self._tables.resolve(report, self._clock)
        return bool(report[0] == OK)

    # ---- spans -> arrays

    def copy(self, planned: PlannedRows, coming: PlannedRows | None) -> None:
        """Copy a microbatch to the arrays whose addresses are in `block`.

        Args:
            planned: what to copy.
            coming: what will be copied next; it is prefetched.
        """
        block, tables = self.block, self._tables
        if tables.pace.is_due():
            self._look_at_files()
        while True:
            plan, first, num_rows = planned
            if plan.clock <= tables.lost or (plan.coming and not self._has_arrived(plan.coming.get(first))):
                (planned,) = self.plan(planned.rows)  # its maps may be released, or the cache is full or was removed
                continue
            block[NUM_ROWS], block[STARTS], block[SPANS] = num_rows, plan.starts_at + 8 * first, plan.spans_at
            block[NEXT_ROWS] = 0
            if coming is not None:
                following, first_coming, block[NEXT_ROWS] = coming
                block[NEXT_STARTS], block[NEXT_SPANS] = following.starts_at + 8 * first_coming, following.spans_at
            gather(self._address)
            if block[REPORT] == OK:
                if plan.coming:
                    plan.coming.pop(first, None)  # frees its memory
                return
            self._is_done(planned.rows)

    def _has_arrived(self, coming: Coming | None) -> bool:
        """Wait for rows at URLs. False if they must be requested again."""
        return self.remote is None or coming is None or self.remote.wait(coming)

    def fill(self, rows: np.ndarray, ids: np.ndarray, targets: np.ndarray) -> None:
        """Fill `ids` and `targets`, int64[B, L] each, with the tokens and targets of B located rows."""
        (planned,) = self.plan(rows)
        self.block[words.IDS], self.block[words.TARGETS] = ids.ctypes.data, targets.ctypes.data
        self.copy(planned, None)

    def spans(self, rows: np.ndarray) -> list[np.ndarray]:
        """The spans of each located row, int64[n, SPAN_COLUMNS], without the token after the row."""
        block = self.block
        block[words.CROSS] = False
        try:
            return self._plan(len(rows), rows).microbatches([len(rows)])[0].row_spans()
        finally:
            block[words.CROSS] = self._order.cross_document_targets

    def set_format(
        self, ignored_target: int = IGNORE, flat: bool = False, id_bytes: int = 8, extra_ids: int = 0
    ) -> None:
        """Set how the arrays are written.

        Args:
            ignored_target: the target and label of a token that is not in the loss.
            flat: whether the rows of a microbatch form one row. In one row, the first token of each row would be predicted
                from the last token of the row before, so it has no label.
            id_bytes: bytes per token id: 8, 4 or 2. Every id of the vocabulary must fit.
            extra_ids: 1 if rows of token ids have one element more, for the token after the row. Otherwise 0.
        """
        block = self.block
        block[words.IGNORED_TARGET], block[words.FLAT_LABELS] = ignored_target, flat
        block[words.ID_BYTES], block[words.EXTRA_IDS] = id_bytes, extra_ids

    def want_borders(self, num_rows: int) -> None:
        """Make `copy` record the borders of pieces, in microbatches of at most `num_rows` rows."""
        size = num_rows * self._order.sequence_length + 1
        if size > len(self._borders):
            self._borders = np.empty(size, np.int32)
            self.block[words.BORDERS] = self._borders.ctypes.data
            if self._order.align:
                self._piece_tokens = np.empty(size, np.int32)
                self.block[words.PIECE_TOKENS] = self._piece_tokens.ctypes.data

    @property
    def borders(self) -> np.ndarray:
        """int32[n + 1], where each piece of the last microbatch begins in its concatenated rows, and the end.

        A view, which the next call overwrites.
        """
        return self._borders[: self.block[words.NUM_BORDERS] + 1]

    @property
    def piece_tokens(self) -> np.ndarray | None:
        """int32[n], with alignment, the tokens of the piece at each border but the last, without its padding.

        A view, which the next call overwrites. None without alignment.
        """
        return self._piece_tokens[: self.block[words.NUM_BORDERS]] if self._order.align else None

    @property
    def longest(self) -> int:
        """Number of tokens of the longest piece in the last microbatch."""
        return self.block[words.LONGEST]

    def ranges(self, planned: PlannedRows, first_row: int = 0) -> list[tuple[int, int]]:
        """(address, bytes) of the tokens of a microbatch's rows from `first_row` on.

        Empty if the maps of the microbatch may have been released.
        """
        return planned.ranges(self._token_bytes, first_row) if planned.clock > self._tables.lost else []
