"""From which step on two plans differ, and in what: their pasts (P10), compared where they part."""

import json
from dataclasses import dataclass
from typing import Any

from tokenstore.format.differences import differences
from tokenstore.planning.plan import Plan


@dataclass(frozen=True)
class FieldDifference:
    """A field: what it is in the first plan and in the second; None: not there.

    Named as `sources.web.digest` or `stages.from 8000.weights.web`, a weight being a share such as 3/5.
    """

    field: str
    first: Any
    second: Any


@dataclass(frozen=True)
class PlanDifference:
    """Two plans beside one another.

    Attributes:
        same: whether they are one plan, their ends included.
        first_step: the first step that is not known to hold the same in both; None where no step that both have differs.
        common_steps: steps [0, common_steps) are the same in both; None: all of two endless plans.
        fields: in what their pasts differ there; of plans that differ in their end only, in that.
        num_steps, fingerprints: of the first and of the second.
    """

    same: bool
    first_step: int | None
    common_steps: int | None
    fields: tuple[FieldDifference, ...]
    num_steps: tuple[int | None, int | None]
    fingerprints: tuple[str, str]


def compare_plans(first: Plan, second: Plan) -> PlanDifference:
    """Without replay: O(log(steps)) pasts of each."""
    ends = (first.num_steps, second.num_steps)
    prints = (first.fingerprint, second.fingerprint)
    common = min((end for end in ends if end is not None), default=None)
    last = max(_settled(first), _settled(second)) if common is None else common
    if first.history(last) == second.history(last):
        fields = () if prints[0] == prints[1] else _fields(first.history(None), second.history(None))
        return PlanDifference(prints[0] == prints[1], None, common, fields, ends, prints)
    same, other = -1, last  # pasts of `same` steps are equal, of `other` they are not
    while other - same > 1:
        middle = (same + other) // 2
        same, other = (middle, other) if first.history(middle) == second.history(middle) else (same, middle)
    step = max(other - 1, 0)
    return PlanDifference(False, step, step, _fields(first.history(other), second.history(other)), ends, prints)


def _settled(plan: Plan) -> int:
    """A step behind which nothing new comes into the history of an endless plan."""
    schedule = plan.schedule
    starts = [stage.from_step for stage in schedule.stages] + [stop for _, stop in schedule.skip_steps]
    return max([*starts, *(schedule.step_of(cursor) for cursor, _ in schedule.drops)]) + 1


def _fields(first: str, second: str) -> tuple[FieldDifference, ...]:
    return tuple(FieldDifference(*row) for row in differences(_readable(first), _readable(second)))


def _readable(history: str) -> dict[str, Any]:
    """A history with its stages by their first step, and weights as shares such as 3/5 in place of integers."""
    fields = json.loads(history)
    stages = {}
    for stage in fields["stages"]:
        row = stages[f"from {stage['from_step']}"] = {"global_batch_size": stage["global_batch_size"]}
        if "shares" in stage:
            total = sum(stage["shares"].values())
            row["weights"] = {name: f"{share}/{total}" for name, share in stage["shares"].items()}
    return {**fields, "stages": stages}
