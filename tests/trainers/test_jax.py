"""ProcessLoader of JAX: dtypes, global arrays, state."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.trainers.jax import ProcessLoader


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


def test_batches_are_int32_arrays_of_the_plan(plan: Plan) -> None:
    batches = list(ProcessLoader(plan, microbatch_size=4))
    assert same([each["input_ids"] for each in batches], microbatches(plan, GIVEN, size=4))
    assert same([each["targets"] for each in batches], microbatches(plan, GIVEN, size=4, field="targets"))
    assert {each.dtype for batch in batches for each in batch.values()} == {np.dtype(np.int32)}


def test_other_ranks_may_be_given(plan: Plan) -> None:
    batches = ProcessLoader(plan, rank=1, world_size=2)
    assert same([each["input_ids"] for each in batches], microbatches(plan, GIVEN, 1, 2))


def test_a_sharding_makes_global_arrays(plan: Plan) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    batches = list(ProcessLoader(plan, sharding=sharding))
    assert all(isinstance(each, jax.Array) for batch in batches for each in batch.values())
    assert same([np.asarray(each["input_ids"]) for each in batches], microbatches(plan, GIVEN))


def test_a_state_continues(plan: Plan) -> None:
    first = ProcessLoader(plan, microbatch_size=2)
    for _ in range(4):
        next(first)
    assert (first.step, first.step_ended, len(first)) == (1, True, 20)
    second = ProcessLoader(plan)
    second.load_state_dict(first.state_dict())
    assert same([each["input_ids"] for each in second], microbatches(plan, GIVEN[1:]))
