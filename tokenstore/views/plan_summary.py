"""A plan up to a step: what it gives of every source, its stages, and what is worth knowing before a run."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, islice
from pathlib import Path

from tokenstore.errors import ConfigError
from tokenstore.planning import PlanConfig
from tokenstore.planning.feasibility import MANY_EPOCHS, ManyEpochsWarning
from tokenstore.planning.plan import Plan
from tokenstore.planning.progress import PieceLengths, SourceProgress

ENDLESS_STEPS = 10_000  # what of an endless plan is looked at, if nothing else is asked


@dataclass(frozen=True)
class EpochStart:
    """The step in which a pass over a source begins; epochs count from 0."""

    epoch: int
    step: int


@dataclass(frozen=True)
class SourceRow:
    """A source after `steps` steps; of skipped steps too.

    Attributes:
        name: in the plan. A pool is one source.
        stores: paths of its stores, with their versions as path@version.
        weight_target, weight_actual: shares of the sequences of all these steps.
        token_share: share of the tokens of all these steps.
        sequences, tokens, tokens_exact, padding, epochs, sequences_per_epoch, steps_per_epoch, pieces: as
            `sampling.progress.SourceProgress`.
        max_epochs: None: no limit.
        num_epoch_starts, epoch_starts: how many passes begin, the first one included, and the first of them.
    """

    name: str
    stores: tuple[str, ...]
    weight_target: float
    weight_actual: float
    token_share: float
    sequences: int
    tokens: int
    tokens_exact: bool
    padding: float
    epochs: float
    sequences_per_epoch: int
    steps_per_epoch: float | None
    pieces: PieceLengths | None
    max_epochs: int | None
    num_epoch_starts: int
    epoch_starts: tuple[EpochStart, ...]


@dataclass(frozen=True)
class StageRow:
    """Steps [first_step, stop_step) of one set of weights, as shares; stop_step None: without end."""

    first_step: int
    stop_step: int | None
    global_batch_size: int
    weights: dict[str, float]


@dataclass(frozen=True)
class Dropped:
    """A source that runs out in `step`, the others going on without it."""

    source: str
    step: int


@dataclass(frozen=True)
class PlanSummary:
    """What a plan is.

    Attributes:
        fingerprint, sequence_length, packing, seed, shuffle: of the plan.
        num_steps: of the plan; None: endless.
        steps: how many are looked at: [0, steps).
        sequences, tokens, padding: of these steps, over all sources; share of positions without a token, of given rows.
        skipped_steps: how many of these are given to no rank; skip_steps: all that the plan has, as [start, stop).
        sources: by name.
        stages: that begin in these steps; dropped: sources that run out in them.
        warnings: likely mistakes; notes: what is as it should be, and good to know.
    """

    fingerprint: str
    sequence_length: int
    packing: str
    seed: int
    shuffle: bool
    num_steps: int | None
    steps: int
    sequences: int
    tokens: int
    padding: float
    skipped_steps: int
    skip_steps: tuple[tuple[int, int], ...]
    sources: tuple[SourceRow, ...]
    stages: tuple[StageRow, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def load_plan(path: Path, allow_links: Path | None = None) -> tuple[Plan, tuple[str, ...]]:
    """Load a plan from a file. Return it with its warnings, except those on repeats, which a summary counts itself.

    `allow_links` is that of `open_store`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = Plan(PlanConfig.load(path), allow_links)
    return plan, tuple(str(each.message) for each in caught if each.category is not ManyEpochsWarning)


def summarize_plan(
    plan: Plan, steps: int | None = None, warned: tuple[str, ...] = (), most_epochs: int = 8
) -> PlanSummary:
    """A summary of steps [0, steps); left out: of all, or of the first 10,000 of an endless plan.

    Args:
        plan: a plan.
        steps: at least 1.
        warned: what making the plan warned of.
        most_epochs: epochs of a source whose first steps are listed.
    Raises: ConfigError: more steps than the plan has, or none.
    """
    steps = (ENDLESS_STEPS if plan.num_steps is None else plan.num_steps) if steps is None else steps
    if steps < 1 or (plan.num_steps is not None and steps > plan.num_steps):
        most = "" if plan.num_steps is None else f"at most {plan.num_steps:,}, as the plan has, "
        raise ConfigError(f"steps: expected {most}and at least 1, found {steps}; change num_steps in the plan for more")
    try:
        progress = plan.progress(steps)
    except ValueError as error:  # of an endless plan, more steps than can be counted
        raise ConfigError(str(error)) from error
    stages = tuple(_stages(plan, steps))
    sources = tuple(_sources(plan, progress, steps, stages, most_epochs))
    schedule = plan.schedule
    sequences = sum(row.sequences for row in sources)
    tokens = sum(row.tokens for row in sources)
    return PlanSummary(
        fingerprint=plan.fingerprint,
        sequence_length=plan.config.sequence_length,
        packing=plan.config.packing,
        seed=plan.config.seed,
        shuffle=plan.config.shuffle,
        num_steps=plan.num_steps,
        steps=steps,
        sequences=sequences,
        tokens=tokens,
        padding=max(1 - tokens / (sequences * plan.config.sequence_length), 0.0),
        skipped_steps=schedule.num_skipped(steps),
        skip_steps=schedule.skip_steps,
        sources=sources,
        stages=stages,
        dropped=tuple(
            Dropped(name, schedule.step_of(cursor))
            for cursor, name in schedule.drops
            if cursor < schedule.cursor(steps)
        ),
        warnings=(*warned, *_warnings(plan, sources, steps)),
        notes=tuple(_notes(plan)),
    )


def _stages(plan: Plan, steps: int) -> Iterator[StageRow]:
    stages = plan.schedule.stages
    ends = [*(stage.from_step for stage in stages[1:]), plan.num_steps]
    for stage, end in zip(stages, ends, strict=True):
        if stage.from_step < steps:
            total = sum(stage.shares.values())
            stop = end if end is None or plan.num_steps is None else min(end, plan.num_steps)
            weights = {name: share / total for name, share in sorted(stage.shares.items())}
            yield StageRow(stage.from_step, stop, stage.global_batch_size, weights)


def _sources(
    plan: Plan, progress: Mapping[str, SourceProgress], steps: int, stages: tuple[StageRow, ...], most_epochs: int
) -> Iterator[SourceRow]:
    sizes = [(min(stage.stop_step or steps, steps) - stage.first_step) * stage.global_batch_size for stage in stages]
    total = max(sum(row.sequences for row in progress.values()), 1)
    tokens = max(sum(row.tokens for row in progress.values()), 1)
    for source in plan.sources:
        row = progress[source.name]
        asked = sum(size * stage.weights.get(source.name, 0) for size, stage in zip(sizes, stages, strict=True))
        yield SourceRow(
            name=source.name,
            stores=tuple(f"{member.store.path}@{member.store.version}" for member in source.members),
            weight_target=asked / sum(sizes),
            weight_actual=row.sequences / total,
            token_share=row.tokens / tokens,
            sequences=row.sequences,
            tokens=row.tokens,
            tokens_exact=row.tokens_exact,
            padding=row.padding,
            epochs=row.epochs,
            sequences_per_epoch=row.sequences_per_epoch,
            steps_per_epoch=row.steps_per_epoch,
            pieces=row.pieces,
            max_epochs=plan.config.sources[source.name].max_epochs,
            num_epoch_starts=-(-row.sequences // row.sequences_per_epoch),
            epoch_starts=tuple(islice(epoch_starts(plan, source.name, steps), most_epochs)),
        )


def epoch_starts(plan: Plan, source: str, steps: int) -> Iterator[EpochStart]:
    """Every pass over a source that begins in steps [0, steps), lazily."""
    for epoch in count():
        step = plan.epoch_start(source, epoch)
        if step is None or step >= steps:
            return
        yield EpochStart(epoch, step)


def _warnings(plan: Plan, sources: tuple[SourceRow, ...], steps: int) -> Iterator[str]:
    for row in sources:
        if not row.sequences:
            yield f"source {row.name} never appears in these {steps:,} steps; give it a weight, or leave it out"
        if row.epochs > MANY_EPOCHS:
            yield (
                f"source {row.name} is repeated {row.epochs:.1f} times; lower its weight, use fewer steps,"
                " or set max_epochs"
            )
    unended = [name for name, store in plan.stores.items() if not store.manifest.ends_with_eos]
    if unended:
        yield (
            f"documents of {', '.join(unended)} do not end with an end-of-text token, so a model cannot learn where"
            " a text ends"
        )


def _notes(plan: Plan) -> Iterator[str]:
    config = plan.config
    weights = {name: source.weight for name, source in config.sources.items() if source.weight is not None}
    for place, given in [("sources", weights)] + [
        (f"stage from step {stage.from_step:,}", stage.weights or {}) for stage in config.stages
    ]:
        total = sum(given.values(), Decimal(0))
        if given and total != 1:
            yield f"{place}: the weights add up to {total.normalize():f}, not 1; what counts is their share of that"
    if not weights:
        yield "sources: no weights are given, so all sources end their epochs together"
    if not config.shuffle:
        yield "shuffle is off: every epoch has the same order"
    if plan.schedule.skip_steps:
        yield "skipped steps count as used: no other step changes"
