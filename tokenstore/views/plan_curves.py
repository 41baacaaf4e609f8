"""Mixture and epochs over a run, at some of its steps: what a chart shows."""

from dataclasses import dataclass

from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class MixturePoint:
    """Steps up to `step` and since the point before: sequences of each source, share since then, epochs in all.

    Attributes:
        step: steps [0, step) have been given.
        sequences, epochs: by source, in all.
        shares: by source, of the sequences since the point before.
        token_shares: by source, of their tokens: those of an average sequence of the source for each.
        weights: by source, the target of the stage that ends here.
    """

    step: int
    sequences: dict[str, int]
    epochs: dict[str, float]
    shares: dict[str, float]
    token_shares: dict[str, float]
    weights: dict[str, float]


def mixture_over_steps(plan: Plan, steps: int, points: int = 100) -> tuple[MixturePoint, ...]:
    """At most about `points` even steps up to `steps`, and at the first step of every stage."""
    schedule = plan.schedule
    even = {steps * i // points for i in range(1, points + 1)}
    stages = {stage.from_step for stage in schedule.stages if 0 < stage.from_step < steps}
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
