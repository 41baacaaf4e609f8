"""The first step at which two plans differ, and what differs: their histories (P10), compared by bisection.

`balance` is not part of a history: it decides which rank gets which row of a step, not what the step contains.
"""

import json
from dataclasses import dataclass
from typing import Any

from tokenstore.format.differences import differences
from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class FieldDifference:
    """A field that differs, with its value in the first and in the second plan; None if it is missing.

    Examples of field names: `sources.web.digest`, `stages.from 8000.weights.web`. A weight is a share such as 3/5.
    """

    field: str
    first: Any
    second: Any


@dataclass(frozen=True)
class PlanDifference:
    """A comparison of two plans.

    Attributes:
        same: whether all steps have the same content, including the end of the plan.
        first_step: the first step that may differ; None if all steps that both plans have are equal.
        common_steps: steps [0, common_steps) are equal; None: all steps of two endless plans.
        fields: what differs in the histories at that step; if only the ends differ, that difference.
        num_steps: steps of the first and of the second plan; None for an endless plan.
        fingerprints: of the first and of the second plan.
        balance: what a row costs when each plan deals the rows of a step to ranks, as (attention, linear); None without
            `balance`. If these are unequal, ranks get other rows of the same steps.
    """

    same: bool
    first_step: int | None
    common_steps: int | None
    fields: tuple[FieldDifference, ...]
    num_steps: tuple[int | None, int | None]
    fingerprints: tuple[str, str]
    balance: tuple[tuple[int, int] | None, tuple[int, int] | None]


def compare_plans(first: Plan, second: Plan) -> PlanDifference:
    """Compare two plans. Computes O(log(steps)) histories of each and replays no step.

    Example:
        >>> compare_plans(Plan("a.yaml"), Plan("b.yaml")).first_step
    """
    ends = (first.num_steps, second.num_steps)
    prints = (first.fingerprint, second.fingerprint)
    more = (ends, prints, (first.config.row_costs, second.config.row_costs))
    common = min((end for end in ends if end is not None), default=None)
    last = max(_last_change(first), _last_change(second)) if common is None else common
    if first.history(last) == second.history(last):
        fields = () if prints[0] == prints[1] else _fields(first.history(None), second.history(None))
        return PlanDifference(prints[0] == prints[1], None, common, fields, *more)
    same, other = -1, last  # histories of `same` steps are equal, of `other` steps they differ
    while other - same > 1:
        middle = (same + other) // 2
        same, other = (middle, other) if first.history(middle) == second.history(middle) else (same, middle)
    step = max(other - 1, 0)
    return PlanDifference(False, step, step, _fields(first.history(other), second.history(other)), *more)


def _last_change(plan: Plan) -> int:
    """A step after which the history of an endless plan no longer changes."""
    schedule = plan.schedule
    starts = [stage.from_step for stage in schedule.stages] + [stop for _, stop in schedule.skip_steps]
    return max([*starts, *(schedule.step_of(cursor) for cursor, _ in schedule.drops)]) + 1


def _fields(first: str, second: str) -> tuple[FieldDifference, ...]:
    return tuple(FieldDifference(*row) for row in differences(_readable(first), _readable(second)))


def _readable(history: str) -> dict[str, Any]:
    """A history with stages as a dict by first step, and weights as shares such as 3/5."""
    fields = json.loads(history)
    stages = {}
    for stage in fields["stages"]:
        row = stages[f"from {stage['from_step']}"] = {"global_batch_size": stage["global_batch_size"]}
        if "shares" in stage:
            total = sum(stage["shares"].values())
            row["weights"] = {name: f"{share}/{total}" for name, share in stage["shares"].items()}
    return {**fields, "stages": stages}
