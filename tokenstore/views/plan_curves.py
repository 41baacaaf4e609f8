"""Mixture and epochs at points of a run, for charts."""

from dataclasses import dataclass

from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class MixturePoint:
    """A run after steps [0, step). Every dict has the source names as keys.

    Attributes:
        step: the number of steps.
        sequences: sequences so far.
        epochs: epochs so far.
        shares: share of the sequences since the previous point.
        token_shares: share of their tokens, with the average tokens per sequence of each source.
        weights: target share in the stage of the last step.
    """

    step: int
    sequences: dict[str, int]
    epochs: dict[str, float]
    shares: dict[str, float]
    token_shares: dict[str, float]
    weights: dict[str, float]


def mixture_over_steps(plan: Plan, steps: int, points: int = 100) -> tuple[MixturePoint, ...]:
    """The mixture at about `points` evenly spaced steps up to `steps`, and at the first step of every stage.

    Example:
        >>> [point.shares["web"] for point in mixture_over_steps(plan, 1000, points=10)]
    """
    schedule = plan.schedule
    even = {steps * i // points for i in range(1, points + 1)}
    stages = {stage.from_step for stage in schedule.stages if 0 < stage.from_step < steps and not stage.in_ramp}
    rows, before = [], dict.fromkeys(plan.num_sequences, 0)
    length = {source.name: float(source.num_tokens / source.num_sequences) for source in plan.sources}
    for step in sorted((even | stages | {steps}) - {0}):
        counts = {**before, **schedule.counts(schedule.cursor(step))}
        new = {name: count - before[name] for name, count in counts.items()}
        given, tokens = max(sum(new.values()), 1), sum(length[name] * number for name, number in new.items())
        shares = schedule.stage(step - 1).shares
        rows.append(
            MixturePoint(
                step,
                counts,
                {name: count / plan.num_sequences[name] for name, count in counts.items()},
                {name: number / given for name, number in new.items()},
                {name: length[name] * number / (tokens or 1) for name, number in new.items()},
                {name: shares.get(name, 0) / sum(shares.values()) for name in counts},
            )
        )
        before = counts
    return tuple(rows)
