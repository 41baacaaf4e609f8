"""Loaders on real ranks over gloo: meshes, distributed checkpoints, and workers of a fork server."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from tests.conftest import random_documents
from tests.support.processes.ranks import PROCESSES, load, one_by_two, run_ranks, save, sent, two_by_one
from tests.support.trainers.microbatches import microbatches
from tokenstore import DataRank, Plan, TokenDataset, TokenLoader


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    path = make_store("a", random_documents(3, 200, 30), length_index=True)
    return Plan.of(path, sequence_length=16, global_batch_size=8, num_steps=5, skip_steps=[(2, 3)])


def rows_of(plan: Plan, first: int) -> list[list[list[int]]]:
    """Sequences of the run from number `first`, one per microbatch."""
    steps = [step for step in range(plan.num_steps) if not plan.schedule.is_skipped(step)]
    rows = list(chain.from_iterable(plan.batch(step)["input_ids"].tolist() for step in steps))
    return [[row] for row in rows[first:]]


@pytest.mark.deep
def test_two_ranks_in_a_mesh(plan: Plan, tmp_path: Path) -> None:
    """P2: data-parallel ranks divide every step; tensor-parallel ranks load the same rows."""
    (first, one), (second, other) = run_ranks(2, two_by_one, tmp_path, plan)
    assert (first, second) == (DataRank(0, 2), DataRank(1, 2))
    expected = [plan.batch(step)["input_ids"].tolist() for step in (0, 1, 3, 4)]
    assert [a + b for a, b in zip(one, other, strict=True)] == expected
    for place, batches in run_ranks(2, one_by_two, tmp_path, plan):
        assert place == DataRank(0, 1)
        assert batches == expected


@pytest.mark.deep
def test_a_checkpoint_of_two_ranks_resumes_on_any_number(plan: Plan, tmp_path: Path) -> None:
    """P1, P2: torch.distributed.checkpoint saves one state; 1 and 4 ranks resume from it, inside a step."""
    count = 6
    given = run_ranks(2, save, tmp_path, plan, tmp_path / "checkpoint", count)
    everything = rows_of(plan, 0)
    assert [row for rows in zip(*given, strict=True) for row in rows] == everything[: 2 * count]
    for world_size in (1, 4):
        rest = run_ranks(world_size, load, tmp_path, plan, tmp_path / "checkpoint")
        assert [row for rows in zip(*rest, strict=True) for row in rows] == everything[2 * count :]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_a_fork_server_do_not_change_the_order(plan: Plan) -> None:
    """P2: also if they persist for the next pass."""
    dataset = TokenDataset(plan, rank=0, world_size=1, microbatch_size=1)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=PROCESSES, persistent_workers=True
    )
    for _ in range(2):
        assert [batch["input_ids"].tolist() for batch in loader] == rows_of(plan, 0)


@pytest.mark.deep
def test_a_loader_from_a_driver_has_the_rank_of_its_process(plan: Plan, tmp_path: Path) -> None:
    """P2: as on a driver of Ray, for loaders and datasets; a spawned worker has the rank of its parent."""
    made = TokenLoader(plan, microbatch_size=2), TokenDataset(plan, microbatch_size=2)
    for rank, given in enumerate(run_ranks(2, sent, tmp_path, *made)):
        wanted = [batch.tolist() for batch in microbatches(plan, (0, 1, 3, 4), rank, 2, 2)]
        assert given == [wanted, wanted]
