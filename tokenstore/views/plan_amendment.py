"""A plan before and after an amendment: what its later steps were, and what they are."""

from dataclasses import dataclass

from tokenstore.planning.history import fingerprint_of
from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class SourceChange:
    """A source before and after an amendment. None: the source is not part of that plan, or that plan is endless.

    Attributes:
        name: its name.
        weight_before, weight_after: target share of the sequences in the first amended step.
        epochs: passes over the source at that step.
        end_before, end_after: passes at the end of each plan.
    """

    name: str
    weight_before: float | None
    weight_after: float | None
    epochs: float
    end_before: float | None
    end_after: float | None


@dataclass(frozen=True)
class PlanAmendment:
    """Two plans with the same steps [0, from_step). A pair has the value before and after.

    Attributes:
        from_step: the first step that may differ.
        history: sha256 of the history of the steps before it, hex, the same in both plans.
        num_steps: number of steps; None for an endless plan.
        batch_sizes: sequences in step `from_step`, and in the last stage.
        skip_steps: ranges of skipped steps.
        sources: all sources of both plans, by name.
    """

    from_step: int
    history: str
    num_steps: tuple[int | None, int | None]
    batch_sizes: tuple[tuple[int, int], tuple[int, int]]
    skip_steps: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    sources: tuple[SourceChange, ...]


def compare_amended(before: Plan, after: Plan, from_step: int) -> PlanAmendment:
    """Compare a plan with `before.amended(from_step, ...)`. No step is replayed.

    Example:
        >>> compare_amended(plan, plan.amended(1000, num_steps=4000), 1000).num_steps
        (2000, 4000)
    """
    now = before.progress(from_step)
    old, new = _weights(before, from_step), _weights(after, from_step)
    old_end, new_end = _epochs_at_end(before), _epochs_at_end(after)
    sources = [
        SourceChange(
            name,
            weight_before=old.get(name),
            weight_after=new.get(name),
            epochs=now[name].epochs if name in now else 0.0,
            end_before=old_end.get(name),
            end_after=new_end.get(name),
        )
        for name in sorted({*before.num_sequences, *after.num_sequences})
    ]
    return PlanAmendment(
        from_step,
        fingerprint_of(after.history(from_step)),
        (before.num_steps, after.num_steps),
        (_sizes(before, from_step), _sizes(after, from_step)),
        (before.schedule.skip_steps, after.schedule.skip_steps),
        tuple(sources),
    )


def _weights(plan: Plan, step: int) -> dict[str, float]:
    shares = plan.schedule.stage(step).shares
    return {name: shares.get(name, 0) / sum(shares.values()) for name in plan.num_sequences}


def _epochs_at_end(plan: Plan) -> dict[str, float]:
    ends = {} if plan.num_steps is None else plan.progress(plan.num_steps)
    return {name: progress.epochs for name, progress in ends.items()}


def _sizes(plan: Plan, step: int) -> tuple[int, int]:
    return plan.global_batch_size(step), plan.schedule.stages[-1].global_batch_size
