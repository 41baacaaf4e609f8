"""Where one rank is in a plan, and the microbatches that follow (ORD-8)."""

from collections.abc import Iterator
from dataclasses import dataclass

from tokenstore.errors import ConfigError
from tokenstore.order.split import check_split, divisors
from tokenstore.sampling.plan import Plan
from tokenstore.torch_data.ranks import DataRank


@dataclass(frozen=True)
class Split:
    """A rank's part of every step: microbatches of `microbatch_size` rows; None: its whole share of a step."""

    plan: Plan
    place: DataRank
    microbatch_size: int | None

    def __post_init__(self) -> None:
        for stage in self.plan.schedule.stages:
            check_split(stage.global_batch_size, self.place.rank, self.place.world_size, self.microbatch_size)

    @property
    def microbatch_rows(self) -> int | None:
        """Rows that all ranks together are given at once; None: those of a whole step."""
        return None if self.microbatch_size is None else self.microbatch_size * self.place.world_size

    def rows_a_rank(self, step: int) -> int:
        """Rows of a microbatch in `step`."""
        return self.microbatch_size or self.plan.global_batch_size(step) // self.place.world_size

    def rows_a_microbatch(self, step: int) -> int:
        """Rows that all ranks together are given at once in `step`."""
        return self.rows_a_rank(step) * self.place.world_size

    def num_microbatches(self, start: int = 0) -> int | None:
        """Microbatches a rank is given from step `start` on; None when the plan is endless."""
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
        return total

    def check_inside(self, step: int, given: int) -> None:
        """Refuse to go on inside a step whose rest does not divide among the ranks."""
        rest, block = self.plan.global_batch_size(step) - given, self.rows_a_microbatch(step)
        if given and rest % block:
            raise ConfigError(
                f"state: expected the {rest} sequences left in step {step} to divide by world_size x microbatch_size ="
                f" {block}, found that they do not; use one of {divisors(rest)}, or start the step"
                f" again with step={step}"
            )

    def places(self, step: int, given: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(step, this rank's first row, its rows, next step, rows given there) of every microbatch from a position on."""
        schedule, end, place = self.plan.schedule, self.plan.last_start, self.place
        while True:
            if given == 0:
                step = schedule.next_step(step)
            if step >= end:
                return
            size = schedule.stage(step).global_batch_size
            rows = self.microbatch_size or size // place.world_size
            block = rows * place.world_size
            while given < size:
                first = given + place.rank * rows
                given += block
                yield (step, first, rows, step, given) if given < size else (step, first, rows, step + 1, 0)
            step, given = step + 1, 0
