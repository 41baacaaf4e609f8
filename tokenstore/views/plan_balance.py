"""How evenly the attention of a step divides among ranks, with and without `balance` (ORD-19)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.order.balance import dealt_places
from tokenstore.order.rank_rows import check_split
from tokenstore.planning.plan import Plan

_MOST_STEPS, _MOST_ROWS = 16, 16_384  # steps of a batch size that are measured, and their rows
_MOST_SIZES = 3


@dataclass(frozen=True)
class Uneven:
    """The cost of the busiest rank, divided by the mean over ranks. 1.0 is even.

    Attributes:
        in_step: over whole steps. It matters if ranks wait for each other once per step, as with DDP.
        in_microbatches: the busiest rank of each microbatch, summed. It matters if ranks wait for each other in every
            microbatch, as with FSDP and pipeline parallelism.
    """

    in_step: float
    in_microbatches: float


@dataclass(frozen=True)
class PlanBalance:
    """The steps of one batch size, divided among ranks.

    Attributes:
        global_batch_size: sequences per step.
        steps: number of steps that were measured, the first ones of this size.
        attention, linear: the integers of the costs. Without `balance` in the plan they are 1 and 0: only attention counts.
        in_order: without balance.
        balanced: with balance.
        is_balanced: whether the plan has `balance`.
        can_gain: False if each rank has one row per step, so that nothing can be exchanged.
    """

    global_batch_size: int
    steps: int
    attention: int
    linear: int
    in_order: Uneven
    balanced: Uneven
    is_balanced: bool
    can_gain: bool


def balance_of_plan(plan: Plan, world_size: int, microbatch_size: int | None = None) -> tuple[PlanBalance, ...]:
    """Measure a few steps of the first and the last batch sizes, if they divide evenly; none for a single rank.

    It computes what rows cost from packings, or from the boundaries of documents under `concat`. It reads no tokens.

    Args:
        plan: a plan.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; None: a rank's whole share of a step.
    """
    sizes = {stage.global_batch_size: stage.from_step for stage in reversed(plan.schedule.stages)}
    return tuple(_measured(plan, sizes, world_size, microbatch_size)) if world_size > 1 else ()


def _measured(
    plan: Plan, first_steps: dict[int, int], world_size: int, microbatch_size: int | None
) -> Iterator[PlanBalance]:
    sampler = plan.sampler()
    dealer = plan.dealer(sampler)
    sizes = sorted(first_steps, key=first_steps.__getitem__)
    for size in sizes if len(sizes) <= _MOST_SIZES else [sizes[0], *sizes[1 - _MOST_SIZES :]]:  # a ramp has many
        try:
            rows = check_split(size, 0, world_size, microbatch_size)
        except ConfigError:  # shown with the ranks
            continue
        most = max(1, min(_MOST_STEPS, _MOST_ROWS // size))
        steps = list(islice(_steps_of(plan, size, first_steps[size]), most))
        sums = np.zeros((2, 3))
        for step in steps:
            costs = sampler.costs(sampler.locate(step, 0, size))
            numbers = dealer.dealt(step, is_balanced=True).numbers[0]
            starts = range(0, size, world_size * rows)
            dealt = np.array([[dealt_places(s, r, world_size, rows) for r in range(world_size)] for s in starts])
            for row, places in enumerate((np.arange(size).reshape(-1, world_size, rows), numbers[dealt])):
                of_ranks = costs[places].sum(axis=2)  # [microbatches, ranks]
                sums[row] += of_ranks.sum(axis=0).max(), of_ranks.max(axis=1).sum(), of_ranks.sum() / world_size
        if steps:
            in_order, balanced = (Uneven(float(a / mean), float(b / mean)) for a, b, mean in np.maximum(sums, 1))
            attention, linear = plan.config.row_costs or (1, 0)
            yield PlanBalance(
                global_batch_size=size,
                steps=len(steps),
                attention=attention,
                linear=linear,
                in_order=in_order,
                balanced=balanced,
                is_balanced=plan.config.row_costs is not None,
                can_gain=size > world_size,
            )


def _steps_of(plan: Plan, size: int, step: int) -> Iterator[int]:
    """The steps of a batch size from `step` on that are not skipped."""
    last = plan.last_start
    while (step := plan.schedule.next_step(step)) < last and plan.global_batch_size(step) == size:
        yield step
        step += 1
