"""Datasets over random plans: however a run is split among workers and interrupted, the same microbatches come."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import _utils

from tests.support.twins.packed_plans import Stores, cases, plan_of
from tokenstore import DataRank, Plan, SequenceDataset, TokenDataset, TokenLoader

ALL = ("best_fit", "concat", "none")


@contextmanager
def worker(number: int, count: int) -> Iterator[None]:
    """Be one of DataLoader's workers, in this process."""
    _utils.worker._worker_info = _utils.worker.WorkerInfo(id=number, num_workers=count, seed=0, dataset=None)
    try:
        yield
    finally:
        _utils.worker._worker_info = None


def in_turn(dataset: TokenDataset, count: int, stops: list[int]) -> list[list[list[int]]]:
    """What DataLoader makes of `count` workers, each made again from its state after `stops` more microbatches."""
    iterators, given = [], []
    for number in range(count):
        with worker(number, count):
            iterators.append(iter(dataset))
    while True:
        if len(given) in stops:
            for number in range(count):
                state = iterators[number].state_dict()
                with worker(number, count):
                    iterators[number] = iter(dataset)
                iterators[number].load_state_dict(state)
        try:
            given.append(next(iterators[len(given) % count])["input_ids"].tolist())
        except StopIteration:
            break
    assert all(next(iterator, None) is None for iterator in iterators)
    return given


@given(data=st.data(), case=cases(packings=ALL))
def test_workers_and_stops_change_nothing(stores: Stores, data: st.DataObject, case: dict) -> None:
    """P1, P2: any number of workers, stopped and restored anywhere, gives what TokenLoader gives, and len() of it."""
    plan, _ = plan_of(stores, case)
    world_size = data.draw(st.sampled_from([1, 2, 3]))
    place = DataRank(data.draw(st.integers(0, world_size - 1)), world_size)
    options = {"rank": place, "microbatch_size": data.draw(st.sampled_from([None, 1, 2]))}
    options["step"] = data.draw(st.integers(0, plan.num_steps))
    expected = [batch["input_ids"].tolist() for batch in TokenLoader(plan, **options)]
    dataset = TokenDataset(plan, inside_step="continue", **options)
    assert len(dataset) == len(expected)
    stops = data.draw(st.lists(st.integers(0, len(expected)), max_size=3))
    assert in_turn(dataset, data.draw(st.integers(1, 4)), stops) == expected


@given(data=st.data(), case=cases(packings=ALL))
def test_every_sequence_has_its_number(stores: Stores, data: st.DataObject, case: dict) -> None:
    """P2: sequence n of the run, asked for with any others, is the row of plan.batch that is n-th over all steps."""
    plan, _ = plan_of(stores, case)
    dataset = SequenceDataset(plan, fields=("input_ids", "targets", "source_ids"))
    numbers = data.draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1, max_size=20))
    for number, row in zip(numbers, dataset.__getitems__(numbers), strict=True):
        expected = row_of(plan, number % len(dataset))
        if expected is not None:
            assert (row["input_ids"].numpy() == expected[0]).all()
            assert (row["targets"].numpy() == expected[1]).all()
        assert all(torch.equal(value, dataset[number][name]) for name, value in row.items())


def row_of(plan: Plan, number: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Ids and targets of the row with that number, counted step by step; None in a skipped step."""
    for step in range(plan.num_steps):
        size = plan.global_batch_size(step)
        if number < size:
            if plan.schedule.is_skipped(step):
                return None
            batch = plan.batch(step)
            return batch["input_ids"][number], batch["targets"][number]
        number -= size
    pytest.fail("a number beyond the plan")
