"""Epochs of a source against steps of a plan, by arithmetic."""

import warnings
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class EpochSteps:
    """How many steps some epochs of a source are.

    Attributes:
        source, epochs: what was asked; epochs as a number.
        steps: the fewest steps after which so many have been given; None where this plan ends before.
        num_steps, epochs_at_end: of the plan; None where it is endless.
        steps_if_endless: the same in a plan that goes on with its last weights and has no max_epochs; None where the
            source is not given for ever.
    """

    source: str
    epochs: float
    steps: int | None
    num_steps: int | None
    epochs_at_end: float | None
    steps_if_endless: int | None


def steps_of_epochs(plan: Plan, source: str, epochs: Decimal) -> EpochSteps:
    """Steps of `epochs` passes, any number above 0, over a source; skipped steps count as used.

    Raises: ConfigError: no such source, or no such number.
    """
    if source not in plan.num_sequences:
        raise ConfigError(f"source: expected one of {', '.join(plan.num_sequences)}, found {source!r}")
    if not epochs.is_finite() or not 0 < epochs < 1 << 40:
        raise ConfigError(f"epochs: expected a number above 0, found {epochs}")
    steps = _steps(plan, source, epochs)
    at_end = None if plan.num_steps is None else plan.progress(plan.num_steps)[source].epochs
    endless = steps if steps is not None else _steps(_endless(plan), source, epochs)
    return EpochSteps(source, float(epochs), steps, plan.num_steps, at_end, endless)


def _steps(plan: Plan, source: str, epochs: Decimal) -> int | None:
    last = ceil(Fraction(epochs) * plan.num_sequences[source]) - 1
    cursor = plan.schedule.find(source, last)
    if cursor is None:
        return None
    steps = plan.schedule.step_of(cursor) + 1
    return steps if plan.num_steps is None or steps <= plan.num_steps else None


def _endless(plan: Plan) -> Plan:
    sources = {name: replace(source, max_epochs=None) for name, source in plan.config.sources.items()}
    changes: dict[str, Any] = {"num_steps": None, "on_exhausted": None, "skip_steps": (), "sources": sources}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Plan(replace(plan.config, **changes), plan.allow_links)
