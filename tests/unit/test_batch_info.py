"""`batch_info`: which step, microbatch and rows the last returned batch is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents
from tokenstore import Plan, SequenceDataset, TokenDataset, TokenLoader


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    """Steps of 12 and then 24 sequences, one of them skipped; the last step has empty rows. About two epochs."""
    path = make_store("a", random_documents(3, 50, 12), length_index=True)
    stages = [{"from_step": 2, "global_batch_size": 24}]
    plan = Plan.of(
        path, 16, 12, num_steps="all_exhausted", last_batch="pad", packing="none", stages=stages, skip_steps=[(1, 2)]
    )
    assert plan.num_steps == 4
    return plan


def check(plan: Plan, batch: dict[str, Any], info: Any, rank: int, world: int) -> None:
    """The batch has the rows of the step, and the sequences of the run, that `info` names."""
    ids = batch["input_ids"].numpy()
    assert np.array_equal(plan.batch(info.step)["input_ids"][list(info.rows)], ids)
    dataset = SequenceDataset(plan)
    assert np.array_equal(np.stack([dataset[n]["input_ids"].numpy() for n in info.sequences]), ids)
    assert info.rows[0] == (info.microbatch * world + rank) * len(ids)


@pytest.mark.parametrize(("world", "size"), [(1, None), (2, 3), (3, 2)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_info_names_the_rows_of_the_batch(plan: Plan, world: int, size: int | None, prefetch: int) -> None:
    """On every rank, past stages and skipped steps, and with batches made ahead."""
    for rank in range(world):
        loader = TokenLoader(plan, rank=rank, world_size=world, microbatch_size=size, prefetch=prefetch)
        assert loader.batch_info is None
        seen = []
        for batch in loader:
            info = loader.batch_info
            assert info is not None
            check(plan, batch, info, rank, world)
            assert info.microbatch == loader.microbatches_per_step - 1 or not loader.step_ended
            seen.append((info.step, info.microbatch))
        rows = (size or 12 // world) * world
        if size:
            assert seen == [(step, n) for step in (0, 2, 3) for n in range(plan.global_batch_size(step) // rows)]


def test_empty_microbatches_are_not_counted(plan: Plan) -> None:
    """With `skip_empty`, microbatches are numbered as they come."""
    loader = TokenLoader(plan, microbatch_size=1, skip_empty=True)
    infos = [loader.batch_info for _ in loader]
    last = [info for info in infos if info and info.step == 3]
    assert [info.microbatch for info in last] == list(range(len(last)))
    assert len(last) == loader.microbatches_per_step < 24
    assert [info.rows[0] for info in last] != list(range(len(last)))


def test_info_follows_a_state_from_inside_a_step(plan: Plan) -> None:
    """Resumed with another number of ranks, the rest of the step is numbered from the rows that were returned."""
    loader = TokenLoader(plan, microbatch_size=4)
    for _ in range(4):
        next(loader)
    other = TokenLoader(plan, rank=1, world_size=2, microbatch_size=2, inside_step="continue")
    other.load_state_dict(loader.state_dict())
    assert other.batch_info is None
    check(plan, next(other), other.batch_info, 1, 2)
    assert other.batch_info is not None
    assert (other.batch_info.step, other.batch_info.microbatch) == (2, 1)


def test_info_is_that_of_the_batch_after_a_restart(plan: Plan) -> None:
    """A new loop begins without one, and then names its own batches."""
    loader = TokenLoader(plan, restart=True)
    for _ in range(2):
        steps = []
        for _ in loader:
            assert loader.batch_info is not None
            steps.append(loader.batch_info.step)
        assert steps == [0, 2, 3]
    assert iter(loader).batch_info is None


def test_the_iterators_of_a_dataset_have_it(plan: Plan) -> None:
    batches = iter(TokenDataset(plan, rank=1, world_size=2, microbatch_size=3))
    assert batches.batch_info is None
    for batch in batches:
        check(plan, batch, batches.batch_info, 1, 2)
