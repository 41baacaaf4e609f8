"""MicrobatchSource, SequenceSource and MicrobatchDataset under the real Grain: order, slices, states, threads, workers."""

import copy
import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.trainers.grain import MicrobatchDataset, MicrobatchSource, SequenceSource

WORLDS = [(1, 2), (2, 2), (4, 1), (2, None), (8, None)]


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return small_plan(small_store(make_store))


def ids(batches: Any) -> list[np.ndarray]:
    return [batch["input_ids"] for batch in batches]


def data_loader(source: MicrobatchSource, workers: int = 0) -> grain.DataLoader:
    sampler = grain.samplers.SequentialSampler(len(source), shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)


@pytest.mark.parametrize(("world_size", "size"), WORLDS)
def test_records_are_the_microbatches_of_a_rank(plan: Plan, world_size: int, size: int | None) -> None:
    """P2: record n is the n-th microbatch, read in any order, through a MapDataset and a DataLoader."""
    for rank in range(world_size):
        source = MicrobatchSource(plan, rank=rank, world_size=world_size, microbatch_size=size)
        wanted = microbatches(plan, GIVEN, rank, world_size, size)
        assert same(ids(grain.MapDataset.source(source)), wanted)
        assert same(ids(data_loader(source)), wanted)
        assert same(ids(source[n] for n in reversed(range(len(source)))), wanted[::-1])


@pytest.mark.parametrize(("world_size", "size"), WORLDS)
def test_batched_sequences_divide_among_ranks(plan: Plan, world_size: int, size: int | None) -> None:
    """P2: .batch(b)[r::w] yields the microbatches of rank r of w, with targets."""
    rows = grain.MapDataset.source(SequenceSource(plan))
    assert len(rows) == 5 * 8
    for rank in range(world_size):
        mine = rows.batch(size or 8 // world_size)[rank::world_size]
        assert same(ids(mine), microbatches(plan, GIVEN, rank, world_size, size))
        wanted = microbatches(plan, GIVEN, rank, world_size, size, "targets")
        assert same([batch["targets"] for batch in mine], wanted)


@pytest.mark.parametrize("step", range(8))
def test_a_run_continues_at_a_step_in_any_world(plan: Plan, step: int) -> None:
    """P1, P2: index_at is the first record of a step for any world size; step_at is its inverse."""
    rest = [k for k in GIVEN if k >= step]
    for world_size, size in WORLDS:
        source = MicrobatchSource(plan, rank=0, world_size=world_size, microbatch_size=size)
        start = source.index_at(step)
        assert same(ids(grain.MapDataset.source(source)[start:]), microbatches(plan, rest, 0, world_size, size))
        assert source.step_at(start) == (rest[0] if rest else 7)


@pytest.mark.parametrize("given", [0, 1, 7, 10])
def test_the_state_of_a_grain_iterator(plan: Plan, given: int) -> None:
    """P1: saved after some records, with prefetching threads, a new iterator continues at the next record."""
    wanted = microbatches(plan, GIVEN, 1, 2, 2)
    source = MicrobatchSource(plan, rank=1, world_size=2, microbatch_size=2)
    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=4)
    pipelines: list[Callable[[], Any]] = [
        lambda: grain.MapDataset.source(source).to_iter_dataset(options),
        lambda: data_loader(MicrobatchSource(plan, rank=1, world_size=2, microbatch_size=2)),
    ]
    for pipeline in pipelines:
        iterator = iter(pipeline())
        assert same(ids(islice(iterator, given)), wanted[:given])
        again = iter(pipeline())
        again.set_state(iterator.get_state())
        assert same(ids(again), wanted[given:])


def test_a_grain_state_converts_to_a_step(plan: Plan) -> None:
    """P2: the number of records, converted to a step, resumes with any number of ranks."""
    source = MicrobatchSource(plan, rank=0, world_size=2, microbatch_size=2)
    iterator = iter(grain.MapDataset.source(source).to_iter_dataset())
    assert len(list(islice(iterator, 6))) == 6
    step = source.step_at(iterator.get_state()["next_index"])
    assert step == 5
    for rank in range(4):
        other = MicrobatchSource(plan, rank=rank, world_size=4, microbatch_size=1)
        rest = grain.MapDataset.source(other)[other.index_at(step) :]
        assert same(ids(rest), microbatches(plan, (5, 6), rank, 4, 1))


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_microbatch_dataset_resumes_in_any_world(plan: Plan, ahead: int) -> None:
    """P1, P2, P10: the checkpoint of Grain is a state of the plan, also with prefetching threads."""

    def pipeline(plan: Plan, **options: Any) -> Any:
        dataset = MicrobatchDataset(plan, inside_step="continue", **options)
        return iter(grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=ahead))

    first = pipeline(plan, rank=1, world_size=2, microbatch_size=2)
    wanted = microbatches(plan, GIVEN, 1, 2, 2)
    assert same(ids(islice(first, 3)), wanted[:3])
    inside = first.get_state()
    assert same(ids(islice(first, 1)), wanted[3:4])
    state = json.loads(json.dumps(first.get_state()))
    again = pipeline(plan, rank=1, world_size=2, microbatch_size=2)
    again.set_state(inside)
    assert same(ids(again), wanted[3:])
    for rank in range(4):
        other = pipeline(plan, rank=rank, world_size=4)
        other.set_state(state)
        assert same(ids(other), microbatches(plan, GIVEN[2:], rank, 4))
    with pytest.raises(StateMismatchError, match="seed was 0, is 1"):
        pipeline(small_plan(plan.stores["a"].path, seed=1)).set_state(state)


@pytest.mark.deep
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_order(plan: Plan, workers: int) -> None:
    """P1, P2: also when resuming from a state."""
    source = MicrobatchSource(plan, rank=0, world_size=2, microbatch_size=2)
    wanted = microbatches(plan, GIVEN, 0, 2, 2)
    ahead = grain.MultiprocessingOptions(num_workers=workers)
    for pipeline in (
        data_loader(source, workers),
        grain.MapDataset.source(source).to_iter_dataset().mp_prefetch(ahead),
    ):
        iterator = iter(pipeline)
        assert same(ids(islice(iterator, 3)), wanted[:3])
        again = iter(pipeline)
        again.set_state(iterator.get_state())
        assert same(ids(again), wanted[3:])


def test_stages_change_the_records_per_step(make_store: Callable[..., Path]) -> None:
    """Every record is right across stages and skipped steps."""
    stages = [{"from_step": 3, "weights": {"a": 1}, "global_batch_size": 24}]
    plan = small_plan(small_store(make_store), weights={"a": 1}, stages=stages, skip_steps=[(0, 1), (2, 5)])
    given = (1, 5, 6)
    for size in (4, None):
        source = MicrobatchSource(plan, rank=1, world_size=2, microbatch_size=size)
        assert same(ids(source[n] for n in range(len(source))), microbatches(plan, given, 1, 2, size))
        assert [source.step_at(source.index_at(k)) for k in range(8)] == [1, 1, 5, 5, 5, 5, 6, 7]
    rows = SequenceSource(plan)
    wanted = np.concatenate([plan.batch(k)["input_ids"] for k in given])
    assert (np.stack(ids(rows[n] for n in range(len(rows)))) == wanted).all()


@pytest.mark.parametrize(("format", "leaf"), [("hf", "labels"), ("torchtitan_flat", 1), ("torch", "input_ids")])
def test_every_format_as_numpy_arrays(plan: Plan, format: str, leaf: Any) -> None:
    """Tuples included."""
    record = MicrobatchSource(plan, format=format)[0]
    assert isinstance(record[leaf], np.ndarray)
    assert record[leaf].dtype == np.int64
    assert record[leaf].size == 64


def test_endless_plans_and_wrong_indices_are_refused(make_store: Callable[..., Path], plan: Plan) -> None:
    """Grain needs a length; an index out of range is an IndexError."""
    endless = small_plan(plan.stores["a"].path, num_steps=None)
    with pytest.raises(ConfigError, match="plan: the plan is endless"):
        MicrobatchSource(endless)
    source = SequenceSource(plan)
    for index in (-1, 40):
        with pytest.raises(IndexError, match=f"record: expected 0 to 39, found {index}"):
            source[index]


def test_sources_pickle_as_their_configuration(plan: Plan) -> None:
    """The pickle has no tokens; the copy yields the same record; the repr identifies the data."""
    source = MicrobatchSource(plan, rank=0, world_size=2)
    wanted = source[3]["input_ids"]
    data = pickle.dumps(source)
    assert len(data) < 65536
    for again in (pickle.loads(data), copy.deepcopy(source)):
        assert (again[3]["input_ids"] == wanted).all()
        assert repr(again) == repr(source)
    others = (SequenceSource(plan), MicrobatchSource(plan, rank=1, world_size=2), MicrobatchSource(plan))
    assert len({repr(each) for each in (source, *others)}) == 4
