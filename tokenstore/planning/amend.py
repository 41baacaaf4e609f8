"""Amendments: the configuration of a run whose first steps stay as they are, and whose later steps change (P10)."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, TypedDict

from tokenstore.errors import ConfigError
from tokenstore.order.schedule import merged_ranges
from tokenstore.planning.checks import expected, is_list
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.source_config import Number, SourceConfig, SourceFields
from tokenstore.planning.stage_config import BatchRamp, RampFields, StageConfig
from tokenstore.planning.stages import first_weights


class Changes(TypedDict, total=False):
    """What an amendment changes, from its first step on.

    Attributes:
        weights: weights of all sources that take part, by name. They replace all earlier ones.
        global_batch_size: sequences per step. It ends a batch ramp.
        batch_ramp: `{"to", "steps", "multiple_of"}`: changes the batch size gradually.
        sources: new sources by name, without weights; `weights` has theirs.
        skip_steps: [start, stop) ranges that are skipped too.
        num_steps: the new end: a number, `first_exhausted`, `all_exhausted` or `endless`.
    """

    weights: Mapping[str, Number] | None
    global_batch_size: int | None
    batch_ramp: BatchRamp | RampFields | None
    sources: Mapping[str, SourceConfig | SourceFields] | None
    skip_steps: Sequence[tuple[int, int]] | None
    num_steps: int | Literal["first_exhausted", "all_exhausted", "endless"] | None


def amended_config(
    config: PlanConfig, num_sequences: Mapping[str, int], from_step: int, changes: Changes
) -> PlanConfig:
    """The configuration with changes from `from_step` on. Stages after that step stay.

    Args:
        config: the configuration of the run.
        num_sequences: sequences per epoch of each source, by name.
        from_step: the first step that may change.
        changes: what changes.

    Raises:
        ConfigError: nothing changes, a change is invalid, or it concerns steps before `from_step`.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if unknown := sorted(set(given) - set(Changes.__annotations__)):
        raise ConfigError(f"amend: expected some of {', '.join(Changes.__annotations__)}, found {unknown}")
    if not given:
        raise ConfigError(f"amend: nothing changes; give some of {', '.join(Changes.__annotations__)}")
    if from_step < 1:
        raise ConfigError(f"amend: expected a step above 0, found {from_step}; before step 0, change the plan itself")
    _check_types(given)
    if changes.get("weights") is not None:
        config = _with_weights(config, num_sequences)
    if new := changes.get("sources"):
        config = _with_sources(config, new, changes.get("weights"))
    config = _with_stage(config, from_step, changes)
    if ranges := changes.get("skip_steps"):
        config = replace(config, skip_steps=_with_skips(config.skip_steps, ranges, from_step))
    if (end := changes.get("num_steps")) is not None:
        if isinstance(end, int) and end < from_step:
            raise ConfigError(f"amend: num_steps: expected {from_step} or more, the amended step, found {end}")
        config = replace(config, num_steps=None if end == "endless" else end)
    return config


def _check_types(given: Mapping[str, Any]) -> None:
    """Refuse values that an amendment cannot read. What they contain is checked with the plan."""
    weights, sources, ranges = (given.get(name, ()) for name in ("weights", "sources", "skip_steps"))
    if weights != () and not isinstance(weights, Mapping):
        raise ConfigError("amend: weights: " + expected("weights by source, such as {'web': 0.5}", weights))
    if sources != () and not _are_sources(sources):
        raise ConfigError("amend: sources: " + expected("fields by source, such as {'web': {'path': 'web'}}", sources))
    if not is_list(ranges) or not all(is_list(each) and len(each) == 2 for each in ranges):
        raise ConfigError("amend: skip_steps: " + expected("ranges [start, stop), such as [[410, 420]]", ranges))
    if not all(hasattr(step, "__index__") for each in ranges for step in each):
        raise ConfigError("amend: skip_steps: " + expected("whole numbers of steps, such as [[410, 420]]", ranges))


def _are_sources(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, SourceConfig | Mapping) for each in value.values())


def _with_weights(config: PlanConfig, num_sequences: Mapping[str, int]) -> PlanConfig:
    """The same plan with explicit weights: a stage may only set weights if the sources have some (ORD-3)."""
    if any(source.weight is not None for source in config.sources.values()):
        return config
    weights = first_weights(config, num_sequences)
    sources = {
        name: replace(source, weight=Decimal(weights[name])) if name in weights else source
        for name, source in config.sources.items()
    }
    return replace(config, sources=sources, temperature=None)


def _with_sources(config: PlanConfig, new: Mapping[str, Any], weights: Mapping[str, Any] | None) -> PlanConfig:
    if twice := sorted(set(new) & set(config.sources)):
        raise ConfigError(f"amend: sources: the plan already has {', '.join(twice)}; use other names for new sources")
    made = {name: each if isinstance(each, SourceConfig) else SourceConfig(**each) for name, each in new.items()}
    members = {name for source in made.values() for name in source.repeats}
    for name, source in made.items():
        if source.weight is not None:
            raise ConfigError(f"amend: sources.{name}: set the weight of a new source in weights, with all others")
        if name not in members:
            if name not in (weights or {}):
                raise ConfigError(
                    f"amend: sources.{name}: has no weight; give weights for all sources, this one included"
                )
            made[name] = replace(source, weight=Decimal(0))
    return replace(config, sources={**config.sources, **made})


def _with_stage(config: PlanConfig, from_step: int, changes: Changes) -> PlanConfig:
    """With a stage at `from_step`, changed if there is one."""
    fields: dict[str, Any] = {}
    if (weights := changes.get("weights")) is not None:
        fields["weights"] = dict(weights)
    size, ramp = changes.get("global_batch_size"), changes.get("batch_ramp")
    if size is not None:
        fields["global_batch_size"] = size
    if size is not None or ramp is not None:
        fields["batch_ramp"] = ramp  # a ramp without a size begins at that of the stage
    if not fields:
        return config
    stages = {stage.from_step: stage for stage in config.stages}
    old = stages.get(from_step)
    stages[from_step] = StageConfig(from_step=from_step, **fields) if old is None else replace(old, **fields)
    return replace(config, stages=tuple(stages[step] for step in sorted(stages)))


def _with_skips(
    old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]], from_step: int
) -> tuple[tuple[int, int], ...]:
    """All ranges, those that overlap or touch as one."""
    ranges = [(operator.index(start), operator.index(stop)) for start, stop in new]
    for start, stop in ranges:
        if not from_step <= start < stop:
            raise ConfigError(
                f"amend: skip_steps: expected ranges [start, stop) from step {from_step} on, found [{start}, {stop}]"
            )
    return merged_ranges([*old, *ranges])
