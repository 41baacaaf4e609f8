"""engine_loader of DeepSpeed: settings of an engine that are not those of the plan. Runs with a real engine are in the matrix."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.errors import ConfigError
from tokenstore.trainers.deepspeed import engine_loader


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


def engine(rank: int = 0, ranks: int = 1, micro: int = 4, accumulation: int = 2, updates: int = 0) -> SimpleNamespace:
    """What engine_loader reads of an engine."""
    mpu = SimpleNamespace(get_data_parallel_rank=lambda: rank, get_data_parallel_world_size=lambda: ranks)
    return SimpleNamespace(
        mpu=mpu,
        device="cpu",
        dp_world_size=ranks,
        global_steps=updates,
        train_micro_batch_size_per_gpu=lambda: micro,
        gradient_accumulation_steps=lambda: accumulation,
        train_batch_size=lambda: micro * accumulation * ranks,
    )


def test_the_updates_of_the_engine_are_the_position(plan: Plan) -> None:
    for rank in range(2):
        loader = engine_loader(engine(rank, 2, 2, updates=2), plan)
        assert same([each["input_ids"] for each in loader], microbatches(plan, GIVEN[2:], rank, 2, 2))


def test_other_settings_are_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="gradient_accumulation_steps: expected 2"):
        engine_loader(engine(accumulation=1), plan)
