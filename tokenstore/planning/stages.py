"""Configuration -> the stages of a schedule: weights as shares, and batch sizes with ramps (ORD-3, ORD-5, ORD-17)."""

from collections.abc import Mapping
from math import gcd
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.order.ramps import ramp_sizes
from tokenstore.order.schedule import Stage
from tokenstore.order.weights import integer_shares, tempered
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.stage_config import BatchRamp

_MOST_SIZES = 1000  # of a ramp; each is a stage in the history, which every state contains


def first_weights(config: PlanConfig, num_sequences: Mapping[str, int]) -> dict[str, Any]:
    """The weights at step 0 of the sources that have one above 0, by name.

    Without weights, they are in proportion to the sequences per epoch, so that all epochs end together.

    Args:
        config: the configuration.
        num_sequences: sequences per epoch of each source, by name.
    """
    if given := {name: source.weight for name, source in config.sources.items() if source.weight}:
        return given
    return dict(tempered(num_sequences, config.temperature) if config.temperature else num_sequences)


def stages_of(config: PlanConfig, num_sequences: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of a configuration, by rising step. Arguments as in `first_weights`.

    Raises:
        ConfigError: a batch ramp or weights are not feasible.
    """
    sizes = _batch_sizes(config)
    weights = {0: first_weights(config, num_sequences)}
    weights |= {stage.from_step: stage.weights for stage in config.stages if stage.weights is not None}
    stages: list[Stage] = []
    size, in_ramp = 0, False
    for step in sorted({*sizes, *weights}):
        size, in_ramp = sizes.get(step, (size, False))
        if step in weights:
            stages.append(Stage(step, size, _shares(weights[step])))
        elif size != stages[-1].global_batch_size:  # otherwise it changes nothing, and is not part of the history
            stages.append(Stage(step, size, stages[-1].shares, continues=True, in_ramp=in_ramp))
    return tuple(stages)


def _shares(weights: Mapping[str, Any]) -> dict[str, int]:
    try:
        return integer_shares(weights)
    except ValueError as error:
        raise ConfigError(f"plan: {error}; write other weights") from error


def _batch_sizes(config: PlanConfig) -> dict[int, tuple[int, bool]]:
    """{step: (sequences per step from there on, whether a ramp changes them there)}, by rising step."""
    settings = [("batch_ramp", 0, config.global_batch_size, config.batch_ramp)]
    for i, stage in enumerate(config.stages):
        if stage.global_batch_size or stage.batch_ramp:
            settings.append(
                (f"stages[{i}].batch_ramp", stage.from_step, stage.global_batch_size or 0, stage.batch_ramp)
            )
    sizes: dict[int, tuple[int, bool]] = {}
    for place, first, given, ramp in settings:
        before = {step: size for step, size in sizes.items() if step <= first}  # a later setting ends an earlier ramp
        size = given or before[max(before)][0]
        sizes = {step: each for step, each in before.items() if step < first} | {first: (size, False)}
        if ramp is not None:
            changes = _changes(place, size, ramp)
            sizes |= {first + k: (each, True) for k, each in changes[1:]}
    return sizes


def _changes(place: str, size: int, ramp: BatchRamp) -> list[tuple[int, int]]:
    """`ramp_sizes` of a ramp from `size` on. ConfigError, with the ramp's `place`, if it is not feasible."""
    multiple = ramp.multiple_of
    if ramp.to == size:
        raise ConfigError(f"plan: {place}: the batch size is {size} already; set `to` to another size")
    if size % multiple or ramp.to % multiple:
        raise ConfigError(
            f"plan: {place}: expected sizes that are multiples of {multiple}, found {size} to {ramp.to}; set multiple_of to a"
            f" divisor of {gcd(size, ramp.to)}"
        )
    if abs(ramp.to - size) // multiple > _MOST_SIZES:
        raise ConfigError(
            f"plan: {place}: expected at most {_MOST_SIZES:,} sizes, found {abs(ramp.to - size) // multiple:,} from {size} to"
            f" {ramp.to} in multiples of {multiple}; use a greater multiple_of"
        )
    return ramp_sizes(size, ramp.to, ramp.steps, multiple)
