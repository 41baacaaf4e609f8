"""PlanDataLoader of OLMo-core: fields, sizes, state."""

from typing import Any

import pytest
import torch
from olmo_core.data.utils import get_cumulative_document_lengths

from tests.conftest import random_documents
from tests.support.trainers.microbatches import BATCH, LENGTH, microbatches, same, small_plan, small_store
from tokenstore import Plan, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.trainers.olmo_core import PlanDataLoader


@pytest.fixture
def plan(make_store: Any) -> Plan:
    path = make_store("p", random_documents(5, 60, 14, vocab_size=64), vocab_size=64, length_index=True)
    return Plan.of(path, sequence_length=LENGTH, global_batch_size=BATCH, num_steps=4)


def loader_of(plan: Plan, **options: Any) -> PlanDataLoader:
    loader = PlanDataLoader(plan, work_dir="work", **options)
    loader.reshuffle(1)
    return loader


def test_batches_have_the_targets_of_the_plan_as_labels(plan: Plan) -> None:
    batches = list(loader_of(plan))
    assert same([each["input_ids"] for each in batches], microbatches(plan, range(4)))
    assert same([each["labels"] for each in batches], microbatches(plan, range(4), field="targets"))


def test_document_lengths_give_the_borders_of_the_plan(plan: Plan) -> None:
    """OLMo-core computes cu_seqlens from doc_lens; they are those of a TokenLoader."""
    borders = [
        batch["cu_seqlens"] for batch in TokenLoader(plan, rank=0, world_size=1, fields=("input_ids", "cu_seqlens"))
    ]
    for batch, wanted in zip(loader_of(plan, doc_lens=True), borders, strict=True):
        assert torch.equal(get_cumulative_document_lengths(batch["doc_lens"]), wanted)
        assert batch["doc_lens"].sum(1).tolist() == [LENGTH] * BATCH
        assert batch["max_doc_lens"] == batch["doc_lens"].max(1).values.tolist()


def test_sizes_are_in_tokens(plan: Plan) -> None:
    loader = loader_of(plan)
    assert (loader.global_batch_size, loader.rank_batch_size, loader.total_batches) == (64, 64, 4)
    assert loader.global_num_tokens_in_batch({}) == 64
    assert loader.get_mock_batch()["input_ids"].shape == (BATCH, LENGTH)


def test_a_state_continues_and_that_of_another_run_is_refused(plan: Plan, make_store: Any) -> None:
    first = loader_of(plan)
    batches = iter(first)
    next(batches), next(batches)
    second = loader_of(plan)
    second.load_state_dict(first.state_dict())
    assert same([each["input_ids"] for each in second], microbatches(plan, (2, 3)))
    other = loader_of(small_plan(small_store(make_store, "b")))
    with pytest.raises(StateMismatchError):
        other.load_state_dict(first.state_dict())


def test_a_forged_position_is_refused(plan: Plan) -> None:
    """The number of batches must be that of the plan's state."""
    loader = loader_of(plan)
    with pytest.raises(StateMismatchError, match="expected as batches_processed a number of updates"):
        loader.load_state_dict({**loader.state_dict(), "batches_processed": 3})


def test_stages_of_several_sizes_are_refused(make_store: Any) -> None:
    stages = [{"from_step": 2, "global_batch_size": 4}]
    plan = Plan.of(small_store(make_store), LENGTH, 8, num_steps=4, packing="concat", stages=stages)
    with pytest.raises(ConfigError, match="OLMo-core has one for the whole run"):
        loader_of(plan)
