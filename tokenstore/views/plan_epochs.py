"""How many steps of a plan a number of epochs takes, by arithmetic."""

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
    """How many steps a number of epochs of a source takes.

    Attributes:
        source: name of the source.
        epochs: number of epochs.
        steps: the fewest steps that contain these epochs; None if the plan never contains them.
        num_steps: steps of the plan; None if it is endless.
        epochs_at_end: epochs of the source at the end of the plan; None if it is endless.
        steps_if_endless: `steps` of the same plan without num_steps and max_epochs, which continues with its last
            weights; None if those do not include the source.
    """

    source: str
    epochs: float
    steps: int | None
    num_steps: int | None
    epochs_at_end: float | None
    steps_if_endless: int | None


def steps_of_epochs(plan: Plan, source: str, epochs: Decimal) -> EpochSteps:
    """How many steps a number of epochs of a source takes. `epochs` may be any number above 0. Skipped steps count as used.

    Raises: ConfigError: the plan has no such source, or the number is not above 0.

    Example:
        >>> steps_of_epochs(plan, "code", Decimal("1.5")).steps
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
        return Plan(replace(plan.config, **changes), plan.allow_links, plan.remote)
