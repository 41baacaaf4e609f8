"""A plan up to a step: its sources, its stages, and warnings to read before a run."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, islice
from pathlib import Path

from tokenstore.errors import ConfigError
from tokenstore.order.schedule import Stage
from tokenstore.planning import PlanConfig
from tokenstore.planning.feasibility import MANY_EPOCHS, ManyEpochsWarning
from tokenstore.planning.plan import Plan
from tokenstore.planning.progress import SourceProgress
from tokenstore.store import RemoteOptions

ENDLESS_STEPS = 10_000  # steps of an endless plan that are summarized by default


@dataclass(frozen=True)
class EpochStart:
    """An epoch of a source, from 0, and the step in which it begins."""

    epoch: int
    step: int


@dataclass(frozen=True)
class SourceRow:
    """A source of a plan after some steps. Skipped steps count as used.

    Attributes:
        name: its name in the plan. A pool is one source.
        stores: its stores, as path@version.
        progress: sequences, tokens, epochs and padding after these steps.
        weight_target: target share of the sequences of all these steps. The actual share is progress.realised_weight.
        token_share: actual share of the tokens of all these steps.
        max_epochs: None: no limit.
        num_epoch_starts: number of epochs that begin, including the first.
        epoch_starts: the first of them.
    """

    name: str
    stores: tuple[str, ...]
    progress: SourceProgress
    weight_target: float
    token_share: float
    max_epochs: int | None
    num_epoch_starts: int
    epoch_starts: tuple[EpochStart, ...]


@dataclass(frozen=True)
class SliceRow:
    """The documents that a source, or a member of a pool, uses of its store.

    Attributes:
        source: its name in the plan.
        slice: the slice as in the plan, such as "take 0/4, fraction 1/16".
        num_documents, num_tokens: of the slice.
        store_documents, store_tokens: of the whole store.
    """

    source: str
    slice: str
    num_documents: int
    num_tokens: int
    store_documents: int
    store_tokens: int


@dataclass(frozen=True)
class StageRow:
    """Steps [first_step, stop_step) with one set of weights, as shares.

    Attributes:
        first_step: first step.
        stop_step: first step after the stage; None if it never ends.
        global_batch_size: sequences per step; of a batch ramp, in its first step.
        last_global_batch_size: sequences per step in the last steps; another number only in a batch ramp.
        weights: share of each source, by name.
    """

    first_step: int
    stop_step: int | None
    global_batch_size: int
    last_global_batch_size: int
    weights: dict[str, float]


@dataclass(frozen=True)
class Dropped:
    """A source that runs out in `step`; the others continue without it."""

    source: str
    step: int


@dataclass(frozen=True)
class PlanSummary:
    """Steps [0, steps) of a plan.

    Attributes:
        config: the plan's configuration.
        fingerprint: identity of the plan, hex.
        num_steps: steps of the plan; None: endless.
        steps: number of steps in this summary.
        sequences: sequences of these steps, over all sources.
        tokens: tokens of these sequences.
        padding: share of their positions that hold no token.
        alignment: share of their positions that are padding because of `align`; a part of `padding`.
        skipped_steps: number of these steps that no rank receives.
        skip_steps: all ranges of skipped steps of the plan, as [start, stop).
        sources: by name.
        slices: sources and members of pools that use a part of their store, by name.
        stages: stages that begin in these steps.
        dropped: sources that run out in these steps.
        warnings: likely mistakes.
        notes: informational, nothing to fix.
    """

    config: PlanConfig
    fingerprint: str
    num_steps: int | None
    steps: int
    sequences: int
    tokens: int
    padding: float
    alignment: float
    skipped_steps: int
    skip_steps: tuple[tuple[int, int], ...]
    sources: tuple[SourceRow, ...]
    slices: tuple[SliceRow, ...]
    stages: tuple[StageRow, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def load_plan(
    path: Path, allow_links: Path | None = None, remote: RemoteOptions | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """Load a plan from a file. Return it with its warnings, except those on repeats, which a summary counts itself.

    `allow_links` and `remote` are those of `open_store`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = Plan(PlanConfig.load(path), allow_links, remote)
    return plan, tuple(str(each.message) for each in caught if each.category is not ManyEpochsWarning)


def summarize_plan(
    plan: Plan, steps: int | None = None, warned: tuple[str, ...] = (), most_epochs: int = 8
) -> PlanSummary:
    """Summarize steps [0, steps) by arithmetic, without replaying a step or reading a token.

    Args:
        plan: a plan.
        steps: at least 1; default: all, or 10,000 of an endless plan.
        warned: the warnings that `load_plan` returned.
        most_epochs: number of epochs per source whose first steps are listed.
    Raises: ConfigError: `steps` is below 1, or above the plan's steps.

    Example:
        >>> {row.name: row.progress.epochs for row in summarize_plan(plan, 1000).sources}
    """
    steps = (ENDLESS_STEPS if plan.num_steps is None else plan.num_steps) if steps is None else steps
    if steps < 1 or (plan.num_steps is not None and steps > plan.num_steps):
        most = "1 or more" if plan.num_steps is None else f"1 to {plan.num_steps:,}, the steps of the plan"
        raise ConfigError(f"steps: expected {most}, found {steps}")
    try:
        progress = plan.progress(steps)
    except ValueError as error:  # more steps of an endless plan than can be counted
        raise ConfigError(str(error)) from error
    stages = tuple(_stages(plan, steps))
    sources = tuple(_sources(plan, progress, steps, stages, most_epochs))
    schedule = plan.schedule
    sequences = sum(row.sequences for row in progress.values())
    tokens = sum(row.tokens for row in progress.values())
    return PlanSummary(
        config=plan.config,
        fingerprint=plan.fingerprint,
        num_steps=plan.num_steps,
        steps=steps,
        sequences=sequences,
        tokens=tokens,
        padding=max(1 - tokens / (sequences * plan.config.sequence_length), 0.0),
        alignment=sum(row.sequences * row.alignment for row in progress.values()) / sequences,
        skipped_steps=schedule.num_skipped(steps),
        skip_steps=schedule.skip_steps,
        sources=sources,
        slices=tuple(_slices(plan)),
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
    """The stages that begin in steps [0, steps). The sizes of a batch ramp are one row, and its last size is another."""
    stages = [stage for stage in plan.schedule.stages if stage.from_step < steps]
    later = [stage.from_step for stage in plan.schedule.stages if stage.from_step >= steps]
    rows: list[list[Stage]] = []
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        if stage.in_ramp and rows[-1][-1].in_ramp and after is not None and after.in_ramp:
            rows[-1].append(stage)
        else:
            rows.append([stage])
    ends = [*(row[0].from_step for row in rows[1:]), later[0] if later else plan.num_steps]
    for row, end in zip(rows, ends, strict=True):
        first, last = row[0], row[-1]
        total = sum(first.shares.values())
        stop = end if end is None or plan.num_steps is None else min(end, plan.num_steps)
        weights = {name: share / total for name, share in sorted(first.shares.items())}
        yield StageRow(first.from_step, stop, first.global_batch_size, last.global_batch_size, weights)


def _sources(
    plan: Plan, progress: Mapping[str, SourceProgress], steps: int, stages: tuple[StageRow, ...], most_epochs: int
) -> Iterator[SourceRow]:
    cursor = plan.schedule.cursor
    sizes = [cursor(min(stage.stop_step or steps, steps)) - cursor(stage.first_step) for stage in stages]
    tokens = max(sum(row.tokens for row in progress.values()), 1)
    for source in plan.sources:
        row = progress[source.name]
        target = sum(size * stage.weights.get(source.name, 0) for size, stage in zip(sizes, stages, strict=True))
        yield SourceRow(
            name=source.name,
            stores=tuple(f"{member.store.place}@{member.store.version}" for member in source.members),
            progress=row,
            weight_target=target / sum(sizes),
            token_share=row.tokens / tokens,
            max_epochs=plan.config.sources[source.name].max_epochs,
            num_epoch_starts=-(-row.sequences // row.sequences_per_epoch),
            epoch_starts=tuple(islice(epoch_starts(plan, source.name, steps), most_epochs)),
        )


def _slices(plan: Plan) -> Iterator[SliceRow]:
    members = [member for source in plan.sources for member in source.members if member.is_sliced]
    for member in sorted(members, key=lambda member: member.name):
        text, store = plan.config.sources[member.name].slice_text, member.store
        number = member.chosen.num_documents
        yield SliceRow(member.name, text, number, member.num_tokens, len(store), store.num_tokens)


def epoch_starts(plan: Plan, source: str, steps: int) -> Iterator[EpochStart]:
    """Yield every epoch of a source that begins in steps [0, steps)."""
    for epoch in count():
        step = plan.epoch_start(source, epoch)
        if step is None or step >= steps:
            return
        yield EpochStart(epoch, step)


def _warnings(plan: Plan, sources: tuple[SourceRow, ...], steps: int) -> Iterator[str]:
    for row in sources:
        epochs = row.progress.epochs
        if not epochs:
            yield f"source {row.name} does not appear in these {steps:,} steps; give it a weight or remove it"
        if epochs > MANY_EPOCHS:
            yield f"source {row.name} is repeated {epochs:.1f} times; lower its weight, use fewer steps, or set max_epochs"
    without_eos = [name for name, store in plan.stores.items() if not store.manifest.ends_with_eos]
    if without_eos:
        yield (
            f"documents of {', '.join(without_eos)} do not end with an end-of-text token, so a model cannot learn to stop;"
            " build them without --no-eos"
        )


def _notes(plan: Plan) -> Iterator[str]:
    config = plan.config
    weights = {name: source.weight for name, source in config.sources.items() if source.weight is not None}
    for place, given in [("sources", weights)] + [
        (f"stage from step {stage.from_step:,}", stage.weights or {}) for stage in config.stages
    ]:
        total = sum(given.values(), Decimal(0))
        if given and total != 1:
            yield f"{place}: the weights add up to {total.normalize():f}, not 1; each source gets its share of that sum"
    if not weights and config.temperature in (None, 1):
        yield "sources: no weights are set, so sources are weighted by size and end their epochs together"
    if not config.shuffle:
        yield "shuffle is off: every epoch has the same order"
    losses = {name: source.loss_weight for name, source in config.sources.items() if source.loss_weight is not None}
    if losses:
        text = ", ".join(f"{name} {weight:f}" for name, weight in losses.items())
        yield f"weights in the loss: {text}; they are in the batch field loss_weights, which a training loop applies"
    if plan.schedule.skip_steps:
        yield "skipped steps count as used: no other step changes"
