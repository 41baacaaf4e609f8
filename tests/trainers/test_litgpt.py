"""TokenData of litgpt: slices of a batch, and the position."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.trainers.microbatches import LENGTH, microbatches, same, small_store
from tokenstore import Plan
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.trainers.litgpt import TokenData


@pytest.fixture
def data(make_store: Any, tmp_path: Path) -> TokenData:
    sources = {"a": {"path": str(small_store(make_store))}}
    plan = {"sequence_length": LENGTH, "global_batch_size": 8, "num_steps": 7, "packing": "concat", "sources": sources}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    made = TokenData(str(tmp_path / "plan.yaml"), str(tmp_path / "plan.yaml"))
    made.connect(batch_size=4, max_seq_length=LENGTH)
    return made


@pytest.fixture
def plan(data: TokenData) -> Plan:
    return data.plan


def test_slices_are_the_tokens_and_the_targets_of_the_plan(data: TokenData, plan: Plan) -> None:
    batches = list(data.train_dataloader())
    assert same([each[:, 0:LENGTH] for each in batches], microbatches(plan, range(7), size=4))
    assert same([each[:, 1 : LENGTH + 1] for each in batches], microbatches(plan, range(7), size=4, field="targets"))
    with pytest.raises(IndexError, match=r"expected \[:, 0:8\] or \[:, 1:9\]"):
        _ = batches[0][:, 0:3]


def test_a_batch_that_was_fetched_and_not_used_is_no_part_of_the_position(data: TokenData, plan: Plan) -> None:
    """P1: litgpt fetches one at its end, before it saves."""
    loader = data.train_dataloader()
    batches = iter(loader)
    for _ in range(4):
        _ = next(batches)[:, 0:LENGTH]
    next(batches)
    resumed = data.train_dataloader()
    resumed.load_state_dict(loader.state_dict())
    assert same([each[:, 0:LENGTH] for each in resumed], microbatches(plan, range(2, 7), size=4))


def test_a_forged_position_is_refused(data: TokenData) -> None:
    """The number of updates must be that of the plan's state."""
    loader = data.train_dataloader()
    loader.load_state_dict({})
    for state in (None, {"plan": data.plan.state(2)}, {"plan": data.plan.state(2), "updates": 3}):
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)


def test_evaluation_begins_at_the_start_each_time(data: TokenData, plan: Plan) -> None:
    loader = data.val_dataloader()
    for _ in range(2):
        first = next(iter(loader))[:, 0:LENGTH]
        assert same([first], microbatches(plan, [0], size=4)[:1])


def test_another_length_is_refused(data: TokenData) -> None:
    with pytest.raises(ConfigError, match=f"max_seq_length: expected {LENGTH}"):
        data.connect(batch_size=4, max_seq_length=LENGTH + 1)
