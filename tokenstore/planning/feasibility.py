"""Computes the schedule of a configuration over opened stores, or rejects an infeasible plan with what would be feasible."""

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from tokenstore.batches.sources import Source, SourceMember
from tokenstore.errors import ConfigError, TokenStoreError
from tokenstore.order.schedule import (
    DROP,
    ERROR,
    MOST_SEQUENCES,
    STOP,
    Schedule,
    Stage,
    cursor_of,
    lay_out,
    merged_ranges,
)
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.source_config import SourceConfig
from tokenstore.planning.stages import stages_of
from tokenstore.store import RemoteOptions, Store, open_store
from tokenstore.store.remote import is_url

_MOST_OPENED = 16  # stores at URLs that are opened at the same time
_MOST_ROOM = 2  # positions per token of a source; above this the sequence length is too large for the source
MANY_EPOCHS = 4  # beyond about four passes repeated text adds little (Muennighoff et al., 2023)


class ManyEpochsWarning(UserWarning):
    """A plan repeats a source more than MANY_EPOCHS times."""


def open_stores(
    config: PlanConfig, allow_links: str | Path | None = None, remote: RemoteOptions | None = None
) -> dict[str, Store]:
    """The stores of all sources that have a path, by name, in the requested versions. Those at URLs are opened side by side."""
    sources = {name: source for name, source in sorted(config.sources.items()) if source.path is not None}
    is_packed = config.packing != "concat"
    if not any(is_url(source.path) for source in sources.values()):
        return {name: _open(name, source, is_packed, allow_links, remote) for name, source in sources.items()}
    context = copy_context()  # of who shows the progress of downloads
    with ThreadPoolExecutor(_MOST_OPENED) as pool:
        stores = {
            name: pool.submit(context.copy().run, _open, name, source, is_packed, allow_links, remote)
            for name, source in sources.items()
        }
        return {name: store.result() for name, store in stores.items()}


def _open(
    name: str,
    source: SourceConfig,
    is_packed: bool,
    allow_links: str | Path | None,
    remote: RemoteOptions | None,
) -> Store:
    try:
        store = open_store(source.path or "", version=source.version, allow_links=allow_links, remote=remote)
        if store.url is not None:  # fetch what every batch needs
            store.boundaries()
            if is_packed and store.has_length_index:
                store.length_index()
        return store
    except TokenStoreError as error:
        raise type(error)(f"source {name}: {error}") from None  # the message and the type are those of the error


def check_stores(stores: Mapping[str, Store]) -> None:
    """ConfigError if the stores have different tokenizers."""
    identities: dict[tuple[str, str | None, int], str] = {}
    for name, store in stores.items():
        tokenizer = store.manifest.tokenizer
        identities.setdefault((tokenizer.kind, tokenizer.sha256, store.vocab_size), name)
    if len(identities) > 1:
        rows = ", ".join(
            f"{name}: {kind}{f' {sha[:12]}' if sha else ''} with {size:,} ids"
            for (kind, sha, size), name in identities.items()
        )
        raise ConfigError(
            f"sources: expected stores of one tokenizer, found {len(identities)} ({rows}); build or adopt them with the same tokenizer"
        )


def warn_of_shared_documents(sources: Sequence[Source]) -> None:
    """Warn if two sources use the same documents. Disjoint slices of one store do not."""
    earlier: dict[str, list[SourceMember]] = {}
    for member in sorted((member for source in sources for member in source.members), key=lambda member: member.name):
        others = earlier.setdefault(member.store.digest, [])
        if other := next((each for each in others if each.chosen.overlaps(member.chosen)), None):
            sliced = member.is_sliced or other.is_sliced
            what = "use overlapping slices of the same store" if sliced else "are the same store"
            hint = "; disjoint ones are, for example, take: 0/2 and take: 1/2" if sliced else ""
            warnings.warn(
                f"sources {other.name} and {member.name} {what} ({member.store.digest[:12]}...){hint}", stacklevel=3
            )
        others.append(member)


def pad_id(sources: Sequence[Source], schedule: Schedule) -> int:
    """The token id that fills the unused end of a row: one integer per plan, and part of its history (ORD-11).

    It is the pad token of the first source, by name, with weight at step 0 (of a pool: of its first member); if that store has
    none, its end-of-text token; otherwise 0. So a source that only a later stage uses cannot change the rows before that stage.
    """
    first = next(source for source in sources if schedule.stages[0].shares.get(source.name))
    tokenizer = first.members[0].store.manifest.tokenizer
    return next((id for id in (tokenizer.pad_id, tokenizer.eos_id) if id is not None), 0)


def lay_out_plan(config: PlanConfig, num_sequences: Mapping[str, int]) -> Schedule:
    """The schedule of a configuration.

    Args:
        config: the configuration.
        num_sequences: sequences per epoch of each source, by name.

    Raises:
        ConfigError: a source would run out, or there is not a single step.
    """
    stages = stages_of(config, num_sequences)
    word = config.num_steps if isinstance(config.num_steps, str) else None
    on_exhausted = {"first_exhausted": STOP, "all_exhausted": DROP}.get(word or "", config.on_exhausted or ERROR)
    epochs = {name: config.sources[name].max_epochs or (1 if word else None) for name in num_sequences}
    limits = {name: limit * num_sequences[name] for name, limit in epochs.items() if limit}
    num_steps = None if isinstance(config.num_steps, str) else config.num_steps
    last = max([stage.from_step for stage in stages] + ([num_steps] if num_steps else []))
    if cursor_of(stages, last) > MOST_SEQUENCES:
        raise ConfigError(
            f"plan: expected at most 2**62 sequences in total, found {cursor_of(stages, last)}; use fewer steps"
        )
    skipped = merged_ranges(config.skip_steps)  # the same steps are the same plan, however they are written
    schedule = lay_out(stages, limits, on_exhausted, num_steps, skipped, config.pads_last_batch)
    if schedule.exhausted is not None:
        _refuse(config, num_sequences, stages, schedule, num_steps)
    if schedule.num_steps == 0:
        raise ConfigError(
            f"plan: expected at least one step of {stages[0].global_batch_size} sequences,"
            f" found {schedule.end} sequences in total; use a smaller global_batch_size or more epochs"
        )
    return schedule


def _refuse(
    config: PlanConfig,
    num_sequences: Mapping[str, int],
    stages: Sequence[Stage],
    schedule: Schedule,
    num_steps: int | None,
) -> None:
    """ConfigError that says which source runs out and when, how many epochs the plan needs, and what would be feasible."""
    cursor, name = schedule.exhausted or (0, "")
    allowed = config.sources[name].max_epochs
    if num_steps is None:
        need = "endless plan"
    else:
        free = lay_out(stages, {}, ERROR, num_steps)
        needed = free.counts(cursor_of(stages, num_steps)).get(name, 0) / num_sequences[name]
        need = f"{num_steps} steps need {needed:.2f} epochs"
    longest = schedule.step_of(cursor)
    works = f"set num_steps to {longest}, " if longest else ""
    raise ConfigError(
        f"source {name}: runs out at step {longest} ({need}; max_epochs is {allowed}, {num_sequences[name]} sequences per"
        f" epoch); {works}raise max_epochs, lower its weight, or set on_exhausted: drop or stop"
    )


def warn_of_padding(sources: Sequence[Source], length: int) -> None:
    """Warn about sources whose sequences are mostly padding, because sequence_length or align is too large for them."""
    for source in sources:
        room = source.num_sequences * length
        if source.packing == "best_fit" and room > _MOST_ROOM * source.num_tokens:
            epoch = "1 sequence" if source.num_sequences == 1 else f"{source.num_sequences:,} sequences"
            field = "align" if 2 * source.classes.padding > room - source.num_tokens else "sequence_length"
            warnings.warn(
                f"source {source.name}: {float(100 * (1 - source.num_tokens / room)):.3g} % padding: an epoch is {epoch} of"
                f" {length:,} tokens, but the source has {int(source.num_tokens):,}; use a smaller {field}",
                stacklevel=3,
            )


def warn_if_suspicious(config: PlanConfig, num_sequences: Mapping[str, int], schedule: Schedule) -> None:
    """Warn if a source is repeated many times, or the plan ends before the requested step. Both are allowed."""
    if schedule.end is None or schedule.num_steps is None:
        return
    target = max([schedule.stages[-1].from_step, *([config.num_steps] if isinstance(config.num_steps, int) else [])])
    if schedule.num_steps < target:
        warnings.warn(
            f"this plan ends after {schedule.num_steps} steps, when its sources run out, not after {target};"
            " raise max_epochs or add data",
            stacklevel=3,
        )
    for name, count in schedule.counts(schedule.end).items():
        epochs = count / num_sequences[name]
        if epochs > MANY_EPOCHS and config.sources[name].max_epochs is None:
            warnings.warn(
                f"source {name} is repeated {epochs:.1f} times in this plan; lower its weight or set max_epochs",
                ManyEpochsWarning,
                stacklevel=3,
            )
