"""The result of the planner: which tokens the rows of a microbatch consist of, before any token is read."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenstore.batches.coming import Coming
from tokenstore.batches.spans import CONTINUES, LENGTH, MEMORY


class PlanResult(NamedTuple):
    """The result of one call of the planner.

    Attributes:
        rows: int64[n, 2], source and sequence number.
        starts: int64[n + 1], index of each row's first span, and the number of spans.
        spans: int64[starts[n], SPAN_COLUMNS].
        starts_at, spans_at: addresses of `starts` and `spans`.
        clock: number of the call. Maps that the spans use may have been released since then.
    """

    rows: np.ndarray
    starts: np.ndarray
    spans: np.ndarray
    starts_at: int
    spans_at: int
    clock: int


class PlannedRows:
    """A planned microbatch: the addresses of its tokens are known, and the tokens have not been read.

    Attributes:
        num_rows: number of rows.
        starts_at: address of the first row's entry of `starts`.
        spans_at: address of `spans`, those of all microbatches of the call.
        clock: see `PlanResult`.
        coming: what must arrive from a URL before it is copied; None if nothing must.
    """

    __slots__ = ("_first", "_plan", "clock", "coming", "num_rows", "spans_at", "starts_at")

    def __init__(self, plan: PlanResult, first: int, num_rows: int):
        self._plan, self._first, self.num_rows = plan, first, num_rows
        _, _, _, starts_at, self.spans_at, self.clock = plan
        self.starts_at = starts_at + 8 * first
        self.coming: Coming | None = None

    @property
    def rows(self) -> np.ndarray:
        """int64[num_rows, 2], source and sequence number of each row; source -1 is a row of padding."""
        return self._plan.rows[self._first : self._first + self.num_rows]

    @property
    def spans(self) -> np.ndarray:
        """The spans of all rows, int64[n, SPAN_COLUMNS]."""
        first, stop = self._plan.starts[[self._first, self._first + self.num_rows]].tolist()
        return self._plan.spans[first:stop]

    def span_numbers(self) -> np.ndarray:
        """int64[n], the sequence number of the row that each of `spans` belongs to."""
        starts = self._plan.starts[self._first : self._first + self.num_rows + 1]
        return np.repeat(self.rows[:, 1], np.diff(starts))

    def row_spans(self) -> list[np.ndarray]:
        """The spans of each row, int64[n, SPAN_COLUMNS]; see `spans` for the columns."""
        starts = self._plan.starts[self._first : self._first + self.num_rows + 1].tolist()
        return [self._plan.spans[first:stop] for first, stop in pairwise(starts)]

    def ranges(self, token_bytes: int, first_row: int = 0) -> list[tuple[int, int]]:
        """(address, number of bytes) of every span of the rows from `first_row` on."""
        first, stop = self._plan.starts[[self._first + first_row, self._first + self.num_rows]].tolist()
        spans = self._plan.spans[first:stop]
        sizes = (spans[:, LENGTH] + spans[:, CONTINUES]) * token_bytes
        return list(zip(spans[:, MEMORY].tolist(), sizes.tolist(), strict=True))
