"""prepare_plan: a loader for a loop with Accelerate."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import DataRank, Plan
from tokenstore.errors import ConfigError
from tokenstore.trainers.accelerate import data_rank, prepare_evaluation, prepare_plan
from tokenstore.trainers.common import step_after_sequences


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


def test_checkpoints_of_accelerate_continue_the_loader(plan: Plan, tmp_path: Path) -> None:
    """P1: save_state and load_state have the position."""
    first = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = prepare_plan(first, plan, microbatch_size=4)
    assert same([next(loader)["input_ids"] for _ in range(4)], microbatches(plan, GIVEN[:2], size=4))
    first.save_state(str(tmp_path / "checkpoint"))
    second = Accelerator(cpu=True, gradient_accumulation_steps=4)
    resumed = prepare_plan(second, plan, microbatch_size=2)
    second.load_state(str(tmp_path / "checkpoint"))
    assert same([each["input_ids"] for each in resumed], microbatches(plan, GIVEN[2:], size=2))


def test_evaluation_is_a_whole_pass(plan: Plan) -> None:
    evaluation = prepare_evaluation(Accelerator(cpu=True), plan, microbatch_size=4)
    assert same([each["input_ids"] for each in evaluation], microbatches(plan, GIVEN, size=4))


def test_another_accumulation_is_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="gradient_accumulation_steps: expected 4"):
        prepare_plan(Accelerator(cpu=True), plan, microbatch_size=2)


def test_model_parallel_ranks_are_one_data_rank() -> None:
    parallel = SimpleNamespace(tp_size=2, cp_size=2, sp_size=None)
    accelerator: Any = SimpleNamespace(parallelism_config=parallel, process_index=6, num_processes=8)
    assert data_rank(accelerator) == DataRank(1, 2)
    accelerator.parallelism_config = None
    assert data_rank(accelerator) == DataRank(6, 8)


def test_the_step_after_sequences_does_not_count_skipped_ones(plan: Plan) -> None:
    assert [step_after_sequences(plan, 8 * updates) for updates in range(4)] == [0, 1, 4, 5]
    with pytest.raises(ConfigError, match="9 sequences end inside step 1 of the plan"):
        step_after_sequences(plan, 9)
