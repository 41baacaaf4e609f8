"""The positions in states of the adapters, which are as untrusted as the states of loaders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenstore import Plan
from tokenstore.errors import StateMismatchError
from tokenstore.trainers.common import PlacedLoader, check_updates, state_after

KEYS = ("plan", "updates")


@pytest.fixture
def store(make_store: Any) -> Path:
    path: Path = make_store("s", [[1, 2, 3, 4]] * 9)
    return path


@pytest.fixture
def plan(store: Path) -> Plan:
    return Plan.of(store, 4, 2, num_steps=4, packing="concat")


def test_a_number_of_updates_is_that_of_the_plans_state(plan: Plan) -> None:
    """Inside a pass, at its end, and in the pass after it."""
    for updates, step in ((0, 0), (3, 3), (4, 4), (5, 1)):
        state = {"plan": state_after(plan, updates), "updates": updates}
        assert (check_updates(plan, state, KEYS, "updates"), state["plan"]["step"]) == (updates, step)


def test_a_run_of_a_whole_pass_continues_with_more_steps(plan: Plan, store: Path) -> None:
    """The state at the end of a pass is that of the end of the plan, so the history of all its steps is compared."""
    state = {"plan": state_after(plan, 4), "updates": 4}
    longer = Plan.of(store, 4, 2, num_steps=9, packing="concat")
    assert check_updates(longer, state, KEYS, "updates") == 4
    other = Plan.of(store, 4, 2, num_steps=9, packing="concat", seed=1)
    with pytest.raises(StateMismatchError, match="seed"):
        check_updates(other, state, KEYS, "updates")


@pytest.mark.parametrize("value", [2, -1, 1 << 70, True, 3.0, "3", None, torch.zeros(2)], ids=str)
def test_another_number_of_updates_is_refused(plan: Plan, value: object) -> None:
    """A run would continue at another step than that whose history was compared."""
    with pytest.raises(StateMismatchError, match="expected as updates a number of updates"):
        check_updates(plan, {"plan": plan.state(3), "updates": value}, KEYS, "updates")


@pytest.mark.parametrize("state", [None, [], {"updates": 3}, {"plan": None, "updates": 3}], ids=str)
def test_what_is_no_state_is_refused(plan: Plan, state: Any) -> None:
    with pytest.raises(StateMismatchError):
        check_updates(plan, state, KEYS, "updates")
    if not isinstance(state, Mapping):  # {} is a new run
        with pytest.raises(StateMismatchError):
            PlacedLoader(plan, lambda: 0, rank=0, world_size=1).load_state_dict(state)
