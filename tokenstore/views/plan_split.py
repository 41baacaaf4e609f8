"""What world size and microbatch size change: who is given which rows, never what a step holds."""

from dataclasses import dataclass
from math import gcd

from tokenstore.errors import ConfigError
from tokenstore.order.rank_rows import divisors
from tokenstore.planning.plan import Plan

_MOST_BATCH = 1 << 20  # of a batch above it the divisors are not worth listing


@dataclass(frozen=True)
class BatchSplit:
    """A global batch size of the plan over ranks and microbatches.

    Attributes:
        global_batch_size: sequences a step; from_steps: the stages that have it.
        sequences_per_rank: None where it does not divide by the world size.
        microbatches_per_step: on a rank; None where it does not divide.
    """

    global_batch_size: int
    from_steps: tuple[int, ...]
    sequences_per_rank: int | None
    microbatches_per_step: int | None


@dataclass(frozen=True)
class PlanSplit:
    """The batches of a plan for a world size and a microbatch size.

    Attributes:
        world_size, microbatch_size: as asked; a microbatch size of None is a rank's whole share.
        divides: whether every batch of the plan can be given so.
        batches: one for each global batch size.
        world_sizes: those that every batch divides by, the microbatch size as it is.
        microbatch_sizes: those that do at this world size; [] where the world size itself does not.
    """

    world_size: int
    microbatch_size: int | None
    divides: bool
    batches: tuple[BatchSplit, ...]
    world_sizes: tuple[int, ...]
    microbatch_sizes: tuple[int, ...]


def split_plan(plan: Plan, world_size: int = 1, microbatch_size: int | None = None) -> PlanSplit:
    """What each rank is given. Raises: ConfigError: sizes below 1."""
    for name, size in (("world_size", world_size), ("microbatch_size", microbatch_size)):
        if size is not None and size < 1:
            raise ConfigError(f"{name}: expected 1 or more, found {size}")
    froms: dict[int, list[int]] = {}
    for stage in plan.schedule.stages:
        froms.setdefault(stage.global_batch_size, []).append(stage.from_step)
    batches = tuple(_split(size, tuple(steps), world_size, microbatch_size) for size, steps in froms.items())
    common = gcd(*froms)
    micro = microbatch_size or 1
    return PlanSplit(
        world_size,
        microbatch_size,
        all(batch.microbatches_per_step is not None for batch in batches),
        batches,
        _divisors(common // micro) if common % micro == 0 else (),
        _divisors(common // world_size) if common % world_size == 0 else (),
    )


def _split(size: int, steps: tuple[int, ...], world_size: int, microbatch_size: int | None) -> BatchSplit:
    share, rest = divmod(size, world_size)
    if rest:
        return BatchSplit(size, steps, None, None)
    fits = microbatch_size is None or share % microbatch_size == 0
    return BatchSplit(size, steps, share, share // (microbatch_size or share) if fits else None)


def _divisors(value: int) -> tuple[int, ...]:
    return tuple(divisors(value)) if value <= _MOST_BATCH else ()
