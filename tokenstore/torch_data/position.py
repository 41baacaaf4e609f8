"""The position of one rank in a plan, and the microbatches from there on (ORD-8).

A position is a step and the number of its rows, over all ranks, that were already returned (`given`).
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat

import numpy as np

from tokenstore.batches.places import Place
from tokenstore.errors import ConfigError
from tokenstore.order.rank_rows import check_split, divisors
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.ranks import DataRank, ProcessRank


@dataclass(frozen=True)
class BatchInfo:
    """What a batch is.

    Attributes:
        step: its step in the plan.
        microbatch: its number in the step, from 0, among those that a rank gets.
        rows: numbers of its rows in the step, in their order, as in `plan.batch(step)`.
        sequences: numbers of its rows in the run, as in SequenceDataset.

    Example:
        >>> batch = next(loader)
        >>> rows = plan.batch(loader.batch_info.step)["input_ids"][list(loader.batch_info.rows)]  # equal to the batch
    """

    step: int
    microbatch: int
    rows: Sequence[int]
    sequences: Sequence[int]


@dataclass(frozen=True)
class Split:
    """The part of every step that one rank loads.

    Attributes:
        plan: the plan.
        place: the rank.
        microbatch_size: rows per microbatch and rank. None: the rank's whole share of a step.
        skip_empty: skip microbatches of the last step without a token on any rank. All ranks skip the same ones (P5).
    """

    plan: Plan
    place: DataRank
    microbatch_size: int | None
    skip_empty: bool = False

    def __post_init__(self) -> None:
        for stage in self.plan.schedule.stages:
            try:
                check_split(stage.global_batch_size, self.place.rank, self.place.world_size, self.microbatch_size)
            except ConfigError as error:
                if not stage.in_ramp:
                    raise
                block = self.place.world_size * (self.microbatch_size or 1)
                raise ConfigError(f"{error}, or set multiple_of of the batch ramp to a multiple of {block}") from None
        nodes, world_size = self.place.nodes, self.place.world_size
        if world_size % nodes and self.plan.has_lanes:
            warnings.warn(
                f"nodes: expected a divisor of world_size {world_size}, found {nodes}; all ranks read blocks of all lanes, as"
                f" with nodes=1. Choose one of {divisors(world_size)}",
                stacklevel=5,  # the caller of TokenLoader
            )

    def num_groups(self, step: int) -> int:
        """Node groups among which the rows of `step` are divided (ORD-21)."""
        return self.plan.num_groups(step, self.place.world_size, self.place.nodes)

    def state(self, step: int, given: int) -> dict[str, int | str]:
        """The state of a run at this position."""
        if not given:
            return self.plan.state(step)
        return self.plan.state(step, self.plan.schedule.cursor(step) + given, self.num_groups(step))

    @property
    def microbatch_rows(self) -> int | None:
        """Rows of a microbatch over all ranks; None: those of a whole step."""
        return None if self.microbatch_size is None else self.microbatch_size * self.place.world_size

    def rows_a_rank(self, step: int) -> int:
        """Rows of a microbatch of `step` on this rank."""
        return self.microbatch_size or self.plan.global_batch_size(step) // self.place.world_size

    def rows_a_microbatch(self, step: int) -> int:
        """Rows of a microbatch of `step` over all ranks."""
        return self.rows_a_rank(step) * self.place.world_size

    def microbatches_in(self, step: int) -> int:
        """Microbatches per rank in `step`."""
        size, block = self.plan.global_batch_size(step), self.rows_a_microbatch(step)
        if not self._may_skip(step):  # the fast case, as training loops call this for every microbatch
            return size // block
        return sum(self._after_empty(step, given) == given for given in range(0, size, block))

    def _may_skip(self, step: int) -> bool:
        """Whether microbatches of `step` may be skipped as empty."""
        return self.skip_empty and step + 1 == self.plan.num_steps

    def _after_empty(self, step: int, given: int) -> int:
        """The start of the first microbatch at or after row `given` of `step` that has a token on some rank."""
        if not self._may_skip(step):
            return given
        size, block = self.plan.global_batch_size(step), self.rows_a_microbatch(step)
        while given < size and self._empty_rows[given : given + block].all():
            given += block
        return given

    @cached_property
    def _empty_rows(self) -> np.ndarray:
        """bool[global_batch_size]: which rows of the last step are empty, in the order in which they are used.

        Any may be, as the rows of a step are shuffled.
        """
        dealer = self.plan.dealer(self.plan.sampler())
        last = (self.plan.num_steps or 0) - 1
        return dealer.rows_in_use_order(last, self.place.world_size, self.place.nodes)[:, 0] < 0

    def info(self, place: Place) -> BatchInfo:
        """What the batch of a place, one of `places`, is."""
        step, first, num_rows = place[:3]
        before, block = first - self.place.rank * num_rows, num_rows * self.place.world_size
        if self._may_skip(step):
            number = sum(self._after_empty(step, given) == given for given in range(before % block, before, block))
        else:
            number = before // block
        mine = self.place
        start, rows = (
            self.plan.schedule.cursor(step),
            self.plan.rows_of_place(place, mine.rank, mine.world_size, mine.nodes),
        )
        sequences: Sequence[int] = [start + row for row in rows]
        if isinstance(rows, range):
            sequences = range(start + rows.start, start + rows.stop)
        return BatchInfo(step, number, rows, sequences)

    def num_microbatches(self, start: int = 0) -> int | None:
        """Microbatches per rank from step `start` on; None if the plan is endless."""
        schedule = self.plan.schedule
        if schedule.num_steps is None:
            return None
        stops = [stage.from_step for stage in schedule.stages[1:]] + [schedule.num_steps]
        total = 0
        for stage, stop in zip(schedule.stages, stops, strict=True):
            stop = min(stop, schedule.num_steps)
            first = max(stage.from_step, start)
            steps = max(stop - first, 0)
            skipped = schedule.num_skipped(stop) - schedule.num_skipped(first) if steps else 0
            total += (steps - skipped) * (stage.global_batch_size // self.rows_a_microbatch(stage.from_step))
        last = schedule.num_steps - 1  # the only step that may have empty rows
        if self.skip_empty and start <= last and not schedule.is_skipped(last):
            total -= self.plan.global_batch_size(last) // self.rows_a_microbatch(last) - self.microbatches_in(last)
        return total

    def check_inside(self, step: int, given: int) -> None:
        """Raise ConfigError if the rest of `step` after `given` rows does not divide evenly among the ranks."""
        rest, block = self.plan.global_batch_size(step) - given, self.rows_a_microbatch(step)
        if given and rest % block:
            raise ConfigError(
                f"state: the {rest} sequences left in step {step} are not divisible by world_size x microbatch_size = {block};"
                f' choose a product of {divisors(rest)}, or start the step again with inside_step="rewind"'
            )

    def places(self, step: int, given: int) -> Iterator[Place]:
        """Iterate over the microbatches from a position on.

        Each is (step, this rank's first row, number of its rows, step of the next position, `given` of the next position).
        """
        schedule, end = self.plan.schedule, self.plan.last_start
        while True:
            if given == 0:
                step = schedule.next_step(step)
            if step >= end:
                return
            size, rows = schedule.stage(step).global_batch_size, self.rows_a_rank(step)
            block, first = rows * self.place.world_size, self.place.rank * rows
            if self._may_skip(step):
                yield from self._places_with_tokens(step, given)
                step, given = step + 1, 0
                continue
            stop = self._next_change(step)
            if size == block:  # without Python code per microbatch, which would take longer than the rest of listing it
                yield from zip(range(step, stop), repeat(first), repeat(rows), range(step + 1, stop + 1), repeat(0))
                step = stop
                continue
            last = size - block  # start of the step's last microbatch
            for now in range(step, stop):
                for before in range(given, last, block):
                    yield now, before + first, rows, now, before + block
                yield now, last + first, rows, now + 1, 0
                given = 0
            step = stop

    def _next_change(self, step: int) -> int:
        """The first step after `step` that may be split differently: a stage starts, steps are skipped, or the plan ends."""
        schedule, end = self.plan.schedule, self.plan.last_start
        skips = [start for start, _ in schedule.skip_steps if start > step]
        ends = [end - 1] if self.skip_empty and end - 1 > step else [end]
        return min([schedule.stage_end(step), *skips, *ends])

    def _places_with_tokens(self, step: int, given: int) -> Iterator[Place]:
        """`places` for one step, without the microbatches that have no token."""
        size, rows = self.plan.global_batch_size(step), self.rows_a_rank(step)
        block = rows * self.place.world_size
        given = self._after_empty(step, given)
        while given < size:
            first = given + self.place.rank * rows
            given = self._after_empty(step, given + block)
            yield (step, first, rows, step, given) if given < size else (step, first, rows, step + 1, 0)


class ProcessSplit:
    """The Split of the current process; see ProcessRank."""

    def __init__(
        self,
        plan: Plan,
        rank: int | DataRank | None,
        world_size: int | None,
        microbatch_size: int | None,
        skip_empty: bool = False,
        nodes: int | None = None,
    ):
        """Create the Split of the current rank, which may still change.

        Raises:
            ConfigError: a step does not divide evenly among the ranks.
        """
        self.rank = ProcessRank(rank, world_size, nodes)
        self.microbatch_size = microbatch_size
        self._split = Split(plan, self.rank.now(), microbatch_size, skip_empty)

    def now(self) -> Split:
        """The Split of this process. Raises: ConfigError: a step does not divide evenly among the ranks."""
        if (place := self.rank.now()) != self._split.place:
            self._split = replace(self._split, place=place)
        return self._split

    def of_plan(self, plan: Plan) -> "ProcessSplit":
        """The same split of another plan. Raises: ConfigError: a step of it does not divide evenly among the ranks."""
        made = copy.copy(self)
        made._split = replace(self.now(), plan=plan)
        return made

    def fix(self) -> Split:
        """The Split of this process, which is constant from now on."""
        self.rank.fix()
        return self.now()
