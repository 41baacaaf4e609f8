"""Steps, stages, segments, exhausted sources and skipped steps (ORD-5).

Finds the source at a cursor in O(1) from small tables. It runs once per step at most, so everything but the interleave
tables is plain Python integers.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tokenstore.order.interleave import Interleave, interleave

MOST_SEQUENCES = 1 << 62  # ORD-10
DROP, STOP, ERROR = "drop", "stop", "error"

_cached_interleave = lru_cache(maxsize=2)(interleave)  # of the current segment and the next one, at most 12 MB each


@dataclass(frozen=True)
class Stage:
    """Batch size and shares from a step on.

    Attributes:
        from_step: first step of the stage.
        global_batch_size: sequences per step over all ranks.
        shares: integer share of each source, by name.
        continues: whether the stage keeps the shares of the stage before it. It then continues the same segment.
        in_ramp: whether a batch ramp begins the stage (ORD-17).
    """

    from_step: int
    global_batch_size: int
    shares: Mapping[str, int]
    continues: bool = False
    in_ramp: bool = False


@dataclass(frozen=True)
class Segment:
    """A range of cursors with one set of shares.

    Attributes:
        start, end: the cursors [start, end); end is None for a segment without end.
        shares: integer share of each source, by name.
        base: number of sequences of each source before the segment.
        names: names of the sources, sorted.
    """

    start: int
    end: int | None
    shares: Mapping[str, int]
    base: Mapping[str, int]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(sorted(self.shares)))

    @property
    def table(self) -> Interleave:
        """One period of the interleave of this segment."""
        return _cached_interleave(tuple(self.shares[name] for name in self.names))

    def at(self, cursor: int) -> tuple[str, int]:
        """The source at `cursor`, and the number of earlier sequences of that source in the run."""
        periods, slot = divmod(cursor - self.start, self.table.period)
        name = self.names[self.table.source[slot]]
        return name, self.base.get(name, 0) + periods * self.shares[name] + int(self.table.earlier[slot])

    def count(self, name: str, cursor: int) -> int:
        """Number of sequences of source `name` in [start, cursor)."""
        return self.table.count(self.names.index(name), cursor - self.start) if name in self.shares else 0

    def place(self, name: str, number: int) -> int:
        """Cursor of sequence `number` of a source, counted from the start of this segment, and ignoring its end."""
        return self.start + self.table.place(self.names.index(name), number)

    def places(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """`place` of many sequences of a source: int64[n] -> int64[n]."""
        return self.start + self.table.place_each(self.names.index(name), numbers)


@dataclass(frozen=True)
class Schedule:
    """All segments of a run.

    Attributes:
        stages, segments: sorted by their beginning.
        drops: (cursor, source) of each source that runs out and is dropped.
        skip_steps: ranges [start, stop) of skipped steps.
        end: cursor at which the run ends; None if it does not end.
        exhausted: under `on_exhausted: error`, the first (cursor, source) at which a source has no sequence left. The
            schedule ends there. Otherwise None.
        pads: whether the step in which the run ends is part of the run, with padding (ORD-11).
        num_steps: number of steps; None if the run does not end.
    """

    stages: tuple[Stage, ...]
    segments: tuple[Segment, ...]
    drops: tuple[tuple[int, str], ...]
    skip_steps: tuple[tuple[int, int], ...]
    end: int | None
    exhausted: tuple[int, str] | None
    pads: bool = False
    num_steps: int | None = field(init=False)
    _steps: list[int] = field(init=False, repr=False)  # first step of each stage; _cursors: its first cursor
    _cursors: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steps", [stage.from_step for stage in self.stages])
        object.__setattr__(self, "_cursors", [cursor_of(self.stages, step) for step in self._steps])
        object.__setattr__(self, "num_steps", None if self.end is None else self._whole_steps(self.end))

    def _whole_steps(self, end: int) -> int:
        step = self.step_of(end)
        return step + (self.pads and self.cursor(step) < end)

    def stage(self, step: int) -> Stage:
        """The stage that contains `step`."""
        return self.stages[bisect_right(self._steps, step) - 1]

    def stage_end(self, step: int) -> int:
        """First step of the stage after the one that contains `step`; MOST_SEQUENCES if that is the last stage."""
        i = bisect_right(self._steps, step)
        return self._steps[i] if i < len(self._steps) else MOST_SEQUENCES

    def cursor(self, step: int) -> int:
        """Number of sequences of the run before `step`."""
        i = bisect_right(self._steps, step) - 1
        return self._cursors[i] + (step - self._steps[i]) * self.stages[i].global_batch_size

    def step_of(self, cursor: int) -> int:
        """The step that contains sequence `cursor`."""
        i = bisect_right(self._cursors, cursor) - 1
        return self._steps[i] + (cursor - self._cursors[i]) // self.stages[i].global_batch_size

    def is_skipped(self, step: int) -> bool:
        """Whether `step` is skipped."""
        return any(start <= step < stop for start, stop in self.skip_steps)

    def num_skipped(self, step: int) -> int:
        """Number of skipped steps before `step`."""
        return sum(min(stop, step) - start for start, stop in self.skip_steps if start < step)

    def next_step(self, step: int) -> int:
        """The first step at or after `step` that is not skipped."""
        for start, stop in self.skip_steps:
            step = stop if start <= step < stop else step
        return step

    def segments_in(self, start: int, stop: int) -> tuple[Segment, ...]:
        """The segments that overlap the cursors [start, stop)."""
        first = max(bisect_right(self.segments, start, key=lambda segment: segment.start) - 1, 0)
        last = bisect_right(self.segments, stop - 1, key=lambda segment: segment.start)
        return self.segments[first:last]

    def counts(self, cursor: int) -> dict[str, int]:
        """Number of sequences of each source in [0, cursor), by name."""
        cursor = cursor if self.end is None else min(cursor, self.end)
        if not self.segments or cursor <= 0:
            return {}
        segment = self.segments_in(cursor - 1, cursor)[-1]
        names = set(segment.base) | set(segment.names)
        return {name: segment.base.get(name, 0) + segment.count(name, cursor) for name in sorted(names)}

    def find(self, name: str, number: int) -> int | None:
        """Cursor of sequence `number` of a source, counted over the whole run; None if the run does not contain it."""
        after = [*(segment.base.get(name, 0) for segment in self.segments[1:]), None]
        for segment, base_after in zip(self.segments, after, strict=True):
            if base_after is not None and number >= base_after:  # in a later segment
                continue
            if name not in segment.shares:
                return None
            cursor = segment.place(name, number - segment.base.get(name, 0))
            return cursor if segment.end is None or cursor < segment.end else None
        return None


def cursor_of(stages: Sequence[Stage], step: int) -> int:
    """Number of sequences before `step`: the sum of the batch sizes of all earlier steps."""
    stops = [stage.from_step for stage in stages[1:]] + [step]
    return sum(
        max(min(stop, step) - stage.from_step, 0) * stage.global_batch_size
        for stage, stop in zip(stages, stops, strict=True)
    )


def lay_out(
    stages: Sequence[Stage],
    limits: Mapping[str, int],
    on_exhausted: str,
    num_steps: int | None,
    skip_steps: Sequence[tuple[int, int]] = (),
    pads: bool = False,
) -> Schedule:
    """Compute the segments of a run from its stages, from first to last, in O(stages + drops).

    Args:
        stages: by rising `from_step`. The first begins at step 0 and does not continue another.
        limits: maximum number of sequences of each source that has a limit.
        on_exhausted: DROP, STOP or ERROR.
        num_steps: steps of the plan; None for no end, or until the sources run out.
        skip_steps: disjoint ranges [start, stop), rising.
        pads: whether a last step that is not full is part of the plan.
    """
    builder = _Builder(limits, on_exhausted)
    last = None if num_steps is None else cursor_of(stages, num_steps)
    end = last
    restarts = [stage for stage in stages if not stage.continues]
    for i, stage in enumerate(restarts):
        border = cursor_of(stages, restarts[i + 1].from_step) if i + 1 < len(restarts) else None
        stops = [x for x in (border, last) if x is not None]
        stopped = builder.add_stage(cursor_of(stages, stage.from_step), min(stops, default=None), stage.shares)
        if stopped is not None:
            end = stopped
            break
    return Schedule(
        tuple(stages), tuple(builder.segments), tuple(builder.drops), tuple(skip_steps), end, builder.exhausted, pads
    )


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The numbers in some ranges [start, stop), as disjoint ranges in rising order that do not touch."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            start, stop = merged[-1][0], max(stop, merged.pop()[1])
        merged.append((start, stop))
    return tuple(merged)


class _Builder:
    """Collects segments, counts the sequences of each source so far, and records the sources that ran out."""

    def __init__(self, limits: Mapping[str, int], on_exhausted: str):
        self.limits, self.on_exhausted = limits, on_exhausted
        self.segments: list[Segment] = []
        self.drops: list[tuple[int, str]] = []
        self.exhausted: tuple[int, str] | None = None
        self.counts: dict[str, int] = {}

    def add_stage(self, start: int, border: int | None, shares: Mapping[str, int]) -> int | None:
        """Add the segments of a stage. Returns the cursor at which the run ends; None if it continues."""
        gone = {name for _, name in self.drops}
        while border is None or start < border:
            shares = {name: share for name, share in shares.items() if name not in gone}
            if not shares:
                return start
            segment = Segment(start, border, shares, dict(self.counts))
            at, name = min(self._ends(segment), default=(None, ""))
            if at is None or (border is not None and at >= border):
                self._append(segment)
                return None
            self._append(Segment(start, at, shares, segment.base))
            if self.on_exhausted != DROP:
                self.exhausted = (at, name) if self.on_exhausted == ERROR else None
                return at
            self.drops.append((at, name))
            gone.add(name)
            start = at
        return None

    def _ends(self, segment: Segment) -> list[tuple[int, str]]:
        """The (cursor, source) at which each limited source runs out. Ignores the end of `segment`."""
        ends = []
        for name in segment.names:
            if name in self.limits:
                left = self.limits[name] - self.counts.get(name, 0)
                if self.on_exhausted == DROP:
                    ends.append((segment.place(name, left - 1) + 1 if left else segment.start, name))
                else:
                    ends.append((segment.place(name, left), name))
        return ends

    def _append(self, segment: Segment) -> None:
        if segment.end is not None and segment.end <= segment.start:
            return
        self.segments.append(segment)
        if segment.end is not None:
            for name in segment.names:
                self.counts[name] = self.counts.get(name, 0) + segment.count(name, segment.end)
