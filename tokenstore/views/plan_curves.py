"""Mixture and epochs over a run, at some of its steps: what a chart shows."""

from dataclasses import dataclass

from tokenstore.sampling.plan import Plan


@dataclass(frozen=True)
class MixturePoint:
    """Steps up to `step` and since the point before: sequences of each source, share since then, epochs in all.

    Attributes:
        step: steps [0, step) have been given.
        sequences, epochs: by source, in all.
        shares: by source, of the sequences since the point before.
        weights: by source, asked for in the stage that ends here.
    """

    step: int
    sequences: dict[str, int]
    epochs: dict[str, float]
    shares: dict[str, float]
    weights: dict[str, float]


def mixture_over_steps(plan: Plan, steps: int, points: int = 100) -> tuple[MixturePoint, ...]:
    """At most about `points` even steps up to `steps`, and at the first step of every stage."""
    schedule = plan.schedule
    even = {steps * i // points for i in range(1, points + 1)}
    stages = {stage.from_step for stage in schedule.stages if 0 < stage.from_step < steps}
    rows, before = [], dict.fromkeys(plan.num_sequences, 0)
    for step in sorted((even | stages | {steps}) - {0}):
        counts = {**before, **schedule.counts(schedule.cursor(step))}
        given = max(sum(counts.values()) - sum(before.values()), 1)
        shares = schedule.stage(step - 1).shares
        rows.append(
            MixturePoint(
                step,
                counts,
                {name: count / plan.num_sequences[name] for name, count in counts.items()},
                {name: (count - before[name]) / given for name, count in counts.items()},
                {name: shares.get(name, 0) / sum(shares.values()) for name in counts},
            )
        )
        before = counts
    return tuple(rows)
