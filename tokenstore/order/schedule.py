"""Steps, stages, segments, exhaustion and skips (ORD-5): which source is at which cursor, in O(1) from small tables.

Plain Python integers, because this is called once per step and not once per token. Only interleave tables are arrays.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tokenstore.order.interleave import Interleave, interleave

MOST_SEQUENCES = 1 << 62  # ORD-10
DROP, STOP, ERROR = "drop", "stop", "error"

_cached_interleave = lru_cache(maxsize=2)(interleave)  # this segment's table and the next one's, at most 12 MB each


@dataclass(frozen=True)
class Stage:
    """From `from_step` on: sequences per step, and integer shares by source name.

    A stage that `continues` has the shares of the stage before it, and belongs to the same segment.
    """

    from_step: int
    global_batch_size: int
    shares: Mapping[str, int]
    continues: bool = False


@dataclass(frozen=True)
class Segment:
    """A run [start, end) of the cursor with one set of shares; `base` counts each source's sequences before it."""

    start: int
    end: int | None
    shares: Mapping[str, int]
    base: Mapping[str, int]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(sorted(self.shares)))

    @property
    def table(self) -> Interleave:
        """The slots of a period of this segment."""
        return _cached_interleave(tuple(self.shares[name] for name in self.names))

    def at(self, cursor: int) -> tuple[str, int]:
        """The source of sequence `cursor` of the run, and the number of sequences of that source before it."""
        periods, slot = divmod(cursor - self.start, self.table.period)
        name = self.names[self.table.source[slot]]
        return name, self.base.get(name, 0) + periods * self.shares[name] + int(self.table.earlier[slot])

    def count(self, name: str, cursor: int) -> int:
        """Sequences of `name` in [start, cursor)."""
        return self.table.count(self.names.index(name), cursor - self.start) if name in self.shares else 0

    def place(self, name: str, number: int) -> int:
        """Cursor of the source's sequence `number`, counted from this segment's start, as if the segment were endless."""
        return self.start + self.table.place(self.names.index(name), number)


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run. `end` is the cursor of its end and `num_steps` its number of whole steps (None: endless).

    `drops` are the (cursor, source) at which sources ran out. `exhausted` is set if `on_exhausted` is `error` and a
    source runs out: (cursor, source) of the first missing sequence, at which the schedule ends. With `pads` the step in
    which the run ends is part of it (ORD-11).
    """

    stages: tuple[Stage, ...]
    segments: tuple[Segment, ...]
    drops: tuple[tuple[int, str], ...]
    skip_steps: tuple[tuple[int, int], ...]
    end: int | None
    exhausted: tuple[int, str] | None
    pads: bool = False
    num_steps: int | None = field(init=False)
    _steps: list[int] = field(init=False, repr=False)  # first step and first cursor of each stage
    _cursors: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steps", [stage.from_step for stage in self.stages])
        object.__setattr__(self, "_cursors", [cursor_of(self.stages, step) for step in self._steps])
        object.__setattr__(self, "num_steps", None if self.end is None else self._whole_steps(self.end))

    def _whole_steps(self, end: int) -> int:
        step = self.step_of(end)
        return step + (self.pads and self.cursor(step) < end)

    def stage(self, step: int) -> Stage:
        """The stage of a step."""
        return self.stages[bisect_right(self._steps, step) - 1]

    def stage_end(self, step: int) -> int:
        """The step in which the stage after that of `step` begins; MOST_SEQUENCES if there is none."""
        i = bisect_right(self._steps, step)
        return self._steps[i] if i < len(self._steps) else MOST_SEQUENCES

    def cursor(self, step: int) -> int:
        """Sequences of the run before `step`."""
        i = bisect_right(self._steps, step) - 1
        return self._cursors[i] + (step - self._steps[i]) * self.stages[i].global_batch_size

    def step_of(self, cursor: int) -> int:
        """The step that contains sequence `cursor`."""
        i = bisect_right(self._cursors, cursor) - 1
        return self._steps[i] + (cursor - self._cursors[i]) // self.stages[i].global_batch_size

    def is_skipped(self, step: int) -> bool:
        """Whether a step is in one of the skipped ranges."""
        return any(start <= step < stop for start, stop in self.skip_steps)

    def num_skipped(self, step: int) -> int:
        """Skipped steps before `step`."""
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
        """Sequences of each source in [0, cursor)."""
        cursor = cursor if self.end is None else min(cursor, self.end)
        if not self.segments or cursor <= 0:
            return {}
        segment = self.segments_in(cursor - 1, cursor)[-1]
        names = set(segment.base) | set(segment.names)
        return {name: segment.base.get(name, 0) + segment.count(name, cursor) for name in sorted(names)}

    def find(self, name: str, number: int) -> int | None:
        """Cursor of the source's sequence `number`, counted over the whole run; None if the run does not reach it."""
        after = [*(segment.base.get(name, 0) for segment in self.segments[1:]), None]
        for segment, behind in zip(self.segments, after, strict=True):
            if behind is not None and number >= behind:  # later: the segment's table is not needed
                continue
            if name not in segment.shares:
                return None
            cursor = segment.place(name, number - segment.base.get(name, 0))
            return cursor if segment.end is None or cursor < segment.end else None
        return None


def cursor_of(stages: Sequence[Stage], step: int) -> int:
    """Sequences before `step`: the stages' steps times their batch sizes."""
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
    """Compute the segments in order, in O(stages + drops).

    Args:
        stages: by increasing from_step. The first is at 0 and does not continue another.
        limits: maximum number of sequences, of each source that has a limit.
        on_exhausted: DROP, STOP or ERROR.
        num_steps: steps of the plan; None: endless, or until the sources run out.
        skip_steps: disjoint [start, stop) ranges, in increasing order.
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


class _Builder:
    """The segments so far, the sequences of each source before the next segment, and the sources that have run out."""

    def __init__(self, limits: Mapping[str, int], on_exhausted: str):
        self.limits, self.on_exhausted = limits, on_exhausted
        self.segments: list[Segment] = []
        self.drops: list[tuple[int, str]] = []
        self.exhausted: tuple[int, str] | None = None
        self.counts: dict[str, int] = {}

    def add_stage(self, start: int, border: int | None, shares: Mapping[str, int]) -> int | None:
        """Add the segments of one set of shares; return the cursor where the whole plan ends, if it ends inside."""
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
        """Where each limited source would run out if `segment` were endless."""
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
