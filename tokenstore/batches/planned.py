"""The result of the planner: which tokens the rows of microbatches consist of, before any token is read."""

from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

import numpy as np

from tokenstore.batches.coming import Coming
from tokenstore.batches.spans import CONTINUES, LENGTH, MEMORY, SPAN_COLUMNS


class PlanResult:
    """The result of one call of the planner, for one or more microbatches. Its memory can be used again.

    Attributes:
        num_rows, room: number of rows, and how many spans there is room for.
        rows: int64[n, 2], source and sequence number; source -1 is a row of padding.
        rows_at, starts_at, spans_at: addresses of `rows`, `starts` and `spans`.
        clock: number of the call. Maps that the spans use may have been released since then.
        coming: what must arrive from URLs before a microbatch is copied, by its first row.
    """

    __slots__ = ("_memory", "clock", "coming", "num_rows", "room", "rows", "rows_at", "spans_at", "starts_at")

    def __init__(self, num_rows: int, room: int):
        self.num_rows, self.room, self.clock = num_rows, room, 0
        self._memory = np.empty(3 * num_rows + 1 + room * SPAN_COLUMNS, np.int64)
        self.rows = self._memory[: 2 * num_rows].reshape(-1, 2)
        self.rows_at = self._memory.ctypes.data  # numpy takes 0.9 us for an address
        self.starts_at = self.rows_at + 16 * num_rows
        self.spans_at = self.starts_at + 8 * (num_rows + 1)
        self.coming: dict[int, Coming] = {}

    @property
    def starts(self) -> np.ndarray:
        """int64[n + 1], index of each row's first span, and the number of spans."""
        return self._memory[2 * self.num_rows : 3 * self.num_rows + 1]

    @property
    def spans(self) -> np.ndarray:
        """int64[room, SPAN_COLUMNS], of which the first starts[n] are used."""
        return self._memory[3 * self.num_rows + 1 :].reshape(-1, SPAN_COLUMNS)

    def microbatches(self, sizes: Sequence[int]) -> "list[PlannedRows]":
        """Its microbatches, of which `sizes` are the rows."""
        parts = zip(repeat(self), accumulate(sizes, initial=0), sizes, strict=False)
        return list(map(PlannedRows._make, parts))


class PlannedRows(NamedTuple):
    """A planned microbatch: the addresses of its tokens are known, and the tokens have not been read.

    Attributes:
        plan: the result that it is a part of.
        first: number of its first row in the result.
        num_rows: number of rows.
    """

    plan: PlanResult
    first: int
    num_rows: int

    @property
    def clock(self) -> int:
        """See `PlanResult`."""
        return self.plan.clock

    @property
    def rows(self) -> np.ndarray:
        """int64[num_rows, 2], source and sequence number of each row; source -1 is a row of padding."""
        return self.plan.rows[self.first : self.first + self.num_rows]

    @property
    def spans(self) -> np.ndarray:
        """The spans of all rows, int64[n, SPAN_COLUMNS]."""
        first, stop = self.plan.starts[[self.first, self.first + self.num_rows]].tolist()
        return self.plan.spans[first:stop]

    def span_numbers(self) -> np.ndarray:
        """int64[n], the sequence number of the row that each of `spans` belongs to."""
        return np.repeat(self.rows[:, 1], np.diff(self._starts()))

    def row_spans(self) -> list[np.ndarray]:
        """The spans of each row, int64[n, SPAN_COLUMNS]; see `spans` for the columns."""
        spans = self.plan.spans
        return [spans[first:stop] for first, stop in pairwise(self._starts().tolist())]

    def ranges(self, token_bytes: int, first_row: int = 0) -> list[tuple[int, int]]:
        """(address, number of bytes) of every span of the rows from `first_row` on."""
        first, stop = self.plan.starts[[self.first + first_row, self.first + self.num_rows]].tolist()
        spans = self.plan.spans[first:stop]
        sizes = (spans[:, LENGTH] + spans[:, CONTINUES]) * token_bytes
        return list(zip(spans[:, MEMORY].tolist(), sizes.tolist(), strict=True))

    def _starts(self) -> np.ndarray:
        return self.plan.starts[self.first : self.first + self.num_rows + 1]
