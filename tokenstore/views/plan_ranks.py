"""How the batches of a plan divide among ranks and microbatches. The content of a step does not depend on this."""

from dataclasses import dataclass
from math import gcd

from tokenstore.errors import ConfigError
from tokenstore.order.rank_rows import divisors
from tokenstore.planning.plan import Plan

_MOST_BATCH = 1 << 20  # the divisors of a larger batch are not listed


@dataclass(frozen=True)
class RankBatch:
    """A global batch size of the plan, divided among ranks and microbatches.

    Attributes:
        global_batch_size: sequences per step.
        from_steps: first steps of the stages with this size.
        sequences_per_rank: None if the world size does not divide the batch.
        microbatches_per_step: per rank; None if the batch does not divide evenly.
    """

    global_batch_size: int
    from_steps: tuple[int, ...]
    sequences_per_rank: int | None
    microbatches_per_step: int | None


@dataclass(frozen=True)
class PlanRanks:
    """The batches of a plan for a world size and a microbatch size.

    Attributes:
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; None: a rank's whole share of a step.
        divides: whether every batch of the plan divides evenly.
        batches: one for each global batch size.
        world_sizes: world sizes that divide every batch, with this microbatch size.
        microbatch_sizes: microbatch sizes that divide every batch, with this world size; empty if none does.
    """

    world_size: int
    microbatch_size: int | None
    divides: bool
    batches: tuple[RankBatch, ...]
    world_sizes: tuple[int, ...]
    microbatch_sizes: tuple[int, ...]


def ranks_of_plan(plan: Plan, world_size: int = 1, microbatch_size: int | None = None) -> PlanRanks:
    """Divide the batches of a plan. Raises: ConfigError: a size is below 1."""
    for name, size in (("world_size", world_size), ("microbatch_size", microbatch_size)):
        if size is not None and size < 1:
            raise ConfigError(f"{name}: expected 1 or more, found {size}")
    from_steps: dict[int, list[int]] = {}
    for stage in plan.schedule.stages:
        from_steps.setdefault(stage.global_batch_size, []).append(stage.from_step)
    batches = tuple(_divide(size, tuple(steps), world_size, microbatch_size) for size, steps in from_steps.items())
    common = gcd(*from_steps)
    return PlanRanks(
        world_size,
        microbatch_size,
        all(batch.microbatches_per_step is not None for batch in batches),
        batches,
        world_sizes=_quotients(common, microbatch_size or 1),
        microbatch_sizes=_quotients(common, world_size),
    )


def _divide(size: int, steps: tuple[int, ...], world_size: int, microbatch_size: int | None) -> RankBatch:
    share, rest = divmod(size, world_size)
    if rest:
        return RankBatch(size, steps, None, None)
    fits = microbatch_size is None or share % microbatch_size == 0
    return RankBatch(size, steps, share, share // (microbatch_size or share) if fits else None)


def _quotients(size: int, factor: int) -> tuple[int, ...]:
    """Every number whose product with `factor` divides `size`."""
    share, rest = divmod(size, factor)
    return () if rest or share > _MOST_BATCH else tuple(divisors(share))
