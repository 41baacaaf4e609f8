"""Accelerate on two real ranks: every rank loads its rows of the plan, or gets an error that says what to use."""

from typing import Any

import pytest
from accelerate import PartialState
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from tests.conftest import random_documents, write_store
from tests.support.processes.ranks import run_ranks
from tests.support.trainers.accelerate_ranks import outcomes
from tests.support.trainers.microbatches import microbatches, small_plan
from tokenstore import Plan, TokenDataset
from tokenstore.errors import ConfigError

STEPS = range(3)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("stores") / "a"
    write_store(path, random_documents(3, 60, 30, vocab_size=64), vocab_size=64, length_index=True)
    return small_plan(path, num_steps=3, skip_steps=[])


@pytest.fixture(scope="module")
def results(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks loaded, by the name of the use."""
    return run_ranks(2, outcomes, tmp_path_factory.mktemp("accelerate"), plan)


@pytest.mark.parametrize("dispatch", [True, False])
def test_the_error_precedes_the_first_batch(plan: Plan, dispatch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Accelerate the same dataset can still be used."""
    monkeypatch.setitem(PartialState(cpu=True).__dict__, "num_processes", 2)
    own, every = TokenDataset(plan, rank=1, world_size=2), TokenDataset(plan, rank=0, world_size=1)
    loaders = [
        prepare_data_loader(
            DataLoader(dataset), num_processes=2, process_index=1, dispatch_batches=dispatch, put_on_device=True
        )
        for dataset in (own, every)
    ]
    with pytest.raises(ConfigError, match=r"has only the rows of rank 1 of 2.* TokenDataset\(plan, rank=0"):
        next(iter(loaders[0]))
    with pytest.raises(ConfigError, match="distributes 2 batches at a time, but steps from step 0 have 1"):
        next(iter(loaders[1]))
    assert len(list(own)) == 3


@pytest.mark.deep
@pytest.mark.parametrize("use", ["loader", "all 0", "all 2", "all sharded", "unprepared", "in order"])
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_loads_its_rows(results: list[dict[str, Any]], plan: Plan, use: str, rank: int) -> None:
    """P2: a prepared loader; all rows distributed by Accelerate; rows in the order of their numbers."""
    assert results[rank][use] == [batch.tolist() for batch in microbatches(plan, STEPS, rank, 2, 2)]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("use", "text"),
    [
        ("own 0", "has only the rows of rank {rank} of 2"),
        ("own 2", "has only the rows of rank {rank} of 2"),
        ("own sharded", "has only the rows of rank {rank} of 2"),
        ("whole steps", "distributes 2 batches at a time, but steps from step 0 have 1"),
        ("shuffled", "a RandomSampler would shuffle"),
    ],
)
def test_wrong_uses_are_refused_on_both_ranks(results: list[dict[str, Any]], use: str, text: str) -> None:
    """No rank waits for the other, and the message names an alternative."""
    for rank in (0, 1):
        assert text.format(rank=rank) in results[rank][use]
        assert "TokenLoader" in results[rank][use]
        assert "TokenTrainerMixin" in results[rank][use]
