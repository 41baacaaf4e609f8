"""Accelerate on two real ranks: every rank is given its rows of the plan, or a refusal that says what to do."""

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
def found(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks were given, by the name of the use."""
    return run_ranks(2, outcomes, tmp_path_factory.mktemp("accelerate"), plan)


@pytest.mark.parametrize("dispatch", [True, False])
def test_one_process_finds_out_what_two_would_do(plan: Plan, dispatch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before the first batch; without Accelerate the same dataset may be used afterwards."""
    monkeypatch.setitem(PartialState(cpu=True).__dict__, "num_processes", 2)
    own, every = TokenDataset(plan, rank=1, world_size=2), TokenDataset(plan, rank=0, world_size=1)
    loaders = [
        prepare_data_loader(
            DataLoader(dataset), num_processes=2, process_index=1, dispatch_batches=dispatch, put_on_device=True
        )
        for dataset in (own, every)
    ]
    with pytest.raises(ConfigError, match=r"gives rank 1 of 2 its own rows already.* TokenDataset\(plan, rank=0"):
        next(iter(loaders[0]))
    with pytest.raises(ConfigError, match="deals out 2 batches at a time, and a step from step 0 on has 1"):
        next(iter(loaders[1]))
    assert len(list(own)) == 3


@pytest.mark.deep
@pytest.mark.parametrize("use", ["loader", "all 0", "all 2", "all sharded", "unprepared", "in order"])
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_is_given_its_rows(found: list[dict[str, Any]], plan: Plan, use: str, rank: int) -> None:
    """P2: a loader as it is, all rows dealt out by Accelerate, rows in the order of their numbers."""
    assert found[rank][use] == [batch.tolist() for batch in microbatches(plan, STEPS, rank, 2, 2)]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("use", "text"),
    [
        ("own 0", "gives rank {rank} of 2 its own rows already"),
        ("own 2", "gives rank {rank} of 2 its own rows already"),
        ("own sharded", "gives rank {rank} of 2 its own rows already"),
        ("whole steps", "deals out 2 batches at a time, and a step from step 0 on has 1"),
        ("shuffled", "a RandomSampler would shuffle"),
    ],
)
def test_what_would_be_wrong_is_refused_on_both_ranks(found: list[dict[str, Any]], use: str, text: str) -> None:
    """No rank waits for the other, and the message names what to use."""
    for rank in (0, 1):
        assert text.format(rank=rank) in found[rank][use]
        assert "TokenLoader" in found[rank][use]
        assert "TokenTrainerMixin" in found[rank][use]
