"""Iterators for Megatron: the position, the dense mask, and arguments that are refused."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from tests.conftest import random_documents
from tests.support.trainers.microbatches import BATCH, GIVEN, LENGTH, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.errors import ConfigError
from tokenstore.trainers.megatron import datasets_provider
from tokenstore.trainers.megatron import microbatches as iterator_of


@pytest.fixture(autouse=True)
def _groups() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    given = {"micro_batch_size": 4, "global_batch_size": BATCH, "seq_length": LENGTH, "consumed_train_samples": 0}
    args = SimpleNamespace(dataloader_type="external", **given)
    training: Any = ModuleType("megatron.training")
    training.get_args = lambda: args
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    return args


def test_consumed_samples_are_the_position(plan: Plan, arguments: SimpleNamespace) -> None:
    """P1: skipped steps are no consumed samples."""
    for updates in 0, 1, 2, 4:
        arguments.consumed_train_samples = updates * BATCH
        iterator, none, _ = datasets_provider(plan)((0, 0, 0))
        wanted = microbatches(plan, GIVEN[updates:], size=4)
        assert same([next(iterator)["tokens"] for _ in wanted], wanted)
        assert none is None


def test_the_dense_mask_hides_later_tokens_and_other_documents(make_store: Any) -> None:
    path = make_store("p", random_documents(5, 60, 14, vocab_size=64), vocab_size=64, length_index=True)
    packed = Plan.of(path, sequence_length=LENGTH, global_batch_size=BATCH, num_steps=4)
    for batch in iterator_of(packed, attention_mask=True):
        assert set(batch) == {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"}
        mask, positions = batch["attention_mask"], batch["position_ids"]
        assert mask.shape == (BATCH, 1, LENGTH, LENGTH)
        for row in range(BATCH):
            for q in range(LENGTH):
                start = q - int(positions[row, q])
                assert (~mask[row, 0, q]).nonzero().flatten().tolist() == list(range(start, q + 1))


def test_evaluations_are_whole_passes(plan: Plan, arguments: SimpleNamespace) -> None:
    """As an iterator they begin again; as an iterable, for --full-validation, each loop is a pass."""
    _, evaluation, _ = datasets_provider(plan, plan)()
    wanted = microbatches(plan, GIVEN, size=4)
    assert len(evaluation) == len(wanted)
    assert same([next(evaluation)["tokens"] for _ in range(2 * len(wanted))], wanted * 2)
    assert same([batch["tokens"] for batch in evaluation], wanted)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dataloader_type", "single", "--dataloader-type: expected external, found single"),
        ("seq_length", 16, f"--seq-length: expected {LENGTH}"),
        ("global_batch_size", 4, f"--global-batch-size: expected {BATCH}, that of step 0"),
        ("consumed_train_samples", 5, "5 sequences end inside step 0"),
    ],
)
def test_arguments_that_are_not_those_of_the_plan_are_refused(
    plan: Plan, arguments: SimpleNamespace, name: str, value: Any, message: str
) -> None:
    setattr(arguments, name, value)
    with pytest.raises(ConfigError, match=message):
        datasets_provider(plan)()


def test_labels_are_not_negative(plan: Plan) -> None:
    for batch in iterator_of(plan, microbatch_size=8):
        assert batch["labels"].min() >= 0
        assert batch["loss_mask"].dtype == torch.float32
