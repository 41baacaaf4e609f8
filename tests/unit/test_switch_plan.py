"""TokenLoader.switch_plan: another plan from a step on, in the middle of a loop."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.conftest import random_documents, write_store
from tokenstore import DataRank, Plan, PlanConfig, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

NEW = {"weights": {"a": "0.2", "b": "0.8"}, "global_batch_size": 16, "num_steps": 9}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("stores")
    sources = {
        name: {"path": str(write_store(folder / name, random_documents(n, 60, 70), length_index=True)), "weight": n + 1}
        for n, name in enumerate("ab")
    }
    return Plan(PlanConfig(sequence_length=32, global_batch_size=8, num_steps=7, sources=sources))


def rows_of(plan: Plan, steps: range) -> list[list[int]]:
    return [row for step in steps for row in plan.batch(step)["input_ids"].tolist()]


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"reuse": 2}, {"prefetch": 2, "reuse": 2}], ids=str)
def test_batches_after_the_switch_are_those_of_the_new_plan(plan: Plan, options: dict) -> None:
    """P1: nothing that was made ahead is returned, and the loop ends where the new plan does."""
    rows = []
    loader = TokenLoader(plan, rank=0, world_size=1, microbatch_size=4, **options)
    for batch in loader:
        rows += batch["input_ids"].tolist()
        if loader.step_ended and loader.step == 3:
            loader.switch_plan(plan.amended(3, **NEW))
    after = plan.amended(3, **NEW)
    assert rows == rows_of(plan, range(3)) + rows_of(after, range(3, 9))
    assert loader.plan.fingerprint == after.fingerprint
    assert len(loader) == 3 * 2 + 6 * 4


def test_a_state_after_the_switch_is_one_of_the_new_plan(plan: Plan) -> None:
    """P10: it resumes in the new plan, and the old plan refuses it."""
    loader = TokenLoader(plan, rank=0, world_size=1)
    for _ in range(3):
        next(loader)
    at_border = loader.state_dict()
    loader.switch_plan(plan.amended(3, **NEW))
    assert loader.state_dict() == at_border  # the switch changes no step before it
    expected = [next(loader)["input_ids"] for _ in range(2)]
    resumed = TokenLoader(plan.amended(3, **NEW), rank=0, world_size=1)
    resumed.load_state_dict(at_border)
    assert all(torch.equal(next(resumed)["input_ids"], ids) for ids in expected)
    with pytest.raises(StateMismatchError, match="stages"):
        TokenLoader(plan, rank=0, world_size=1).load_state_dict(loader.state_dict())


def test_a_finished_loader_continues_with_a_longer_plan(plan: Plan) -> None:
    """After its last step, a loader continues at that step of a plan with more steps."""
    loader = TokenLoader(plan, rank=0, world_size=1)
    assert len(list(loader)) == 7
    loader.switch_plan(plan.amended(7, num_steps=9))
    assert [row for batch in loader for row in batch["input_ids"].tolist()] == rows_of(
        plan.amended(7, num_steps=9), range(7, 9)
    )


def test_a_switch_inside_a_step_is_refused(plan: Plan) -> None:
    """The message says where the loader is; the loop goes on with its plan."""
    loader = TokenLoader(plan, rank=0, world_size=1, microbatch_size=2)
    first = next(loader)["input_ids"]
    with pytest.raises(ConfigError, match=r"found the loader inside step 0, after 2 of its 8 sequences; wait until"):
        loader.switch_plan(plan.amended(3, **NEW))
    assert (first.tolist() + next(loader)["input_ids"].tolist()) == rows_of(plan, range(1))[:4]


def test_another_history_is_refused(plan: Plan) -> None:
    """The message names the field and how to make such a plan; nothing changes."""
    loader = TokenLoader(plan, rank=0, world_size=1)
    next(loader), next(loader)
    with pytest.raises(
        StateMismatchError, match=r"switch_plan: the steps before 2 would change: .*plan\.amended\(2, \.\.\.\)"
    ):
        loader.switch_plan(plan.amended(1, **NEW))
    assert loader.plan is plan
    assert next(loader)["input_ids"].tolist() == rows_of(plan, range(2, 3))


def test_a_plan_that_does_not_divide_is_refused(plan: Plan) -> None:
    """P5: the loader keeps its plan."""
    loader = TokenLoader(plan, rank=1, world_size=4, microbatch_size=2)
    next(loader)
    with pytest.raises(ConfigError, match="microbatch_size: expected a divisor"):
        loader.switch_plan(plan.amended(1, global_batch_size=12))
    assert loader.plan is plan


def test_every_rank_switches_alike(plan: Plan) -> None:
    """P2: the rows of all ranks together are those of the new plan."""
    after = plan.amended(2, **NEW)
    loaders = [TokenLoader(plan, rank=DataRank(rank, 2), microbatch_size=4) for rank in range(2)]
    for loader in loaders:
        next(loader), next(loader)
        loader.switch_plan(after)
    rows = [row for batches in zip(*loaders, strict=True) for batch in batches for row in batch["input_ids"].tolist()]
    assert sorted(rows) == sorted(rows_of(after, range(2, 9)))


def test_a_dataset_refuses(plan: Plan) -> None:
    """A DataLoader has made batches ahead in its workers."""
    with pytest.raises(
        ConfigError, match=r"use TokenLoader, .* or make a new DataLoader over TokenDataset\(plan, step"
    ):
        TokenDataset(plan, rank=0, world_size=1).switch_plan(plan)


class _Switching(IterableDataset):
    def __init__(self, plan: Plan):
        self.plan = plan

    def __iter__(self):
        loader = TokenLoader(self.plan, rank=0, world_size=1)
        try:
            loader.switch_plan(self.plan)
        except ConfigError as error:
            yield str(error)


def test_a_worker_process_refuses(plan: Plan) -> None:
    """The message names both ways out."""
    (message,) = list(DataLoader(_Switching(plan), batch_size=None, num_workers=1))
    assert "use TokenLoader in the training process, or a new DataLoader over TokenDataset(plan, step=...)" in message


@pytest.mark.parametrize("other", [None, 3])
def test_only_plans_and_paths_are_accepted(plan: Plan, other: object) -> None:
    """The message says what a plan may be."""
    with pytest.raises(TypeError, match="expected a Plan or the path of a plan file"):
        TokenLoader(plan, rank=0, world_size=1).switch_plan(other)
