"""TokenDataset in the StatefulDataLoader of torchdata: it resumes exactly, and refuses states that do not fit."""

import logging
import multiprocessing
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.conftest import random_documents
from tokenstore import Plan, TokenDataset, TokenLoader
from tokenstore.errors import StateMismatchError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # called by torchdata
]
TOTAL = 5 * 3  # steps x microbatches per step


@pytest.fixture
def path(make_store: Callable[..., Path]) -> Path:
    return make_store("a", random_documents(3, 200, 30), length_index=True)


@pytest.fixture
def plan(path: Path) -> Plan:
    return Plan.of(path, sequence_length=16, global_batch_size=12, num_steps=7, skip_steps=[(2, 4)])


def loader_of(plan: Plan, workers: int, **options: Any) -> StatefulDataLoader:
    """Rank 1 of 2 with three microbatches per step, so that most states are inside a step."""
    chosen = {"step": options.pop("step", 0), "inside_step": options.pop("inside_step", "continue")}
    dataset = TokenDataset(plan, rank=1, world_size=2, microbatch_size=2, **chosen)
    options |= {"multiprocessing_context": "fork"} if workers else {}
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **options)


def end_workers() -> None:
    """Terminate the workers: torchdata waits seconds for each, and torch would raise on SIGCHLD in another test."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()
    finally:
        signal.signal(signal.SIGCHLD, handler)


def ids(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.fixture
def expected(plan: Plan) -> list[list[list[int]]]:
    """The microbatches of an uninterrupted run."""
    return ids(TokenLoader(plan, rank=1, world_size=2, microbatch_size=2))


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.deep), 2, pytest.param(3, marks=pytest.mark.deep)]
)
def test_runs_resume_exactly(plan: Plan, expected: list, workers: int) -> None:
    """P1: stopped inside a step, resumed, stopped and resumed again: every microbatch once, in order."""
    seen, state = [], {}
    for count in (4, 3, TOTAL):
        loader = loader_of(plan, workers)
        loader.load_state_dict(state)
        seen += ids(islice(loader, count))
        state = loader.state_dict()
    assert seen == expected


@pytest.mark.parametrize("count", [2, 7])
def test_snapshots_every_few_steps_resume_exactly(plan: Plan, expected: list, count: int) -> None:
    """P1: with a snapshot every four batches, the batches after it are read again and skipped."""
    loader = loader_of(plan, 2, snapshot_every_n_steps=4)
    assert ids(islice(loader, count)) == expected[:count]
    again = loader_of(plan, 2, snapshot_every_n_steps=4)
    again.load_state_dict(loader.state_dict())
    assert ids(again) == expected[count:]


def test_persistent_workers_continue_with_whole_passes(plan: Plan, expected: list) -> None:
    """P1: the resumed pass ends, and the next passes are complete, in the same workers."""
    loader = loader_of(plan, 2, persistent_workers=True)
    next(iter(loader))
    again = loader_of(plan, 2, persistent_workers=True)
    again.load_state_dict(loader.state_dict())
    assert [ids(again) for _ in range(3)] == [expected[1:], expected, expected]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finished_pass_is_followed_by_a_new_one(plan: Plan, expected: list, workers: int) -> None:
    """P1: the state at the end of a pass starts the next one, at the dataset's first step."""
    loader = loader_of(plan, workers, step=1)
    assert ids(loader) == expected[3:]
    again = loader_of(plan, workers, step=1)
    again.load_state_dict(loader.state_dict())
    assert ids(again) == expected[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch_is_the_start(plan: Plan, expected: list, workers: int) -> None:
    """P1: it resumes at the beginning."""
    state = loader_of(plan, workers).state_dict()
    again = loader_of(plan, workers)
    again.load_state_dict(state)
    assert ids(islice(again, 2)) == expected[:2]


def test_resuming_reads_no_earlier_batch(plan: Plan, expected: list, caplog: pytest.LogCaptureFixture) -> None:
    """P1: resuming costs the same at any position."""
    loader = loader_of(plan, 0)
    list(islice(loader, 6))
    again = loader_of(plan, 0)
    with caplog.at_level(logging.WARNING):
        again.load_state_dict(loader.state_dict())
        assert ids(islice(again, 1)) == [expected[6]]
    assert "fast-forward" not in caplog.text


@pytest.mark.parametrize(("before", "after"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.deep), (3, 2)])
def test_another_number_of_workers_is_refused(plan: Plan, before: int, after: int) -> None:
    """P10: each worker has its own state. The message has the right number, and what accepts any number."""
    loader = loader_of(plan, before)
    list(islice(loader, 4))
    again = loader_of(plan, after)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(
        StateMismatchError, match=f"saved with {before}, found {after}; use num_workers={before}, or TokenLoader"
    ):
        next(iter(again))
    end_workers()


def test_other_microbatch_sizes_are_refused(plan: Plan) -> None:
    """P10: the position of a worker depends on the microbatch size."""
    loader = loader_of(plan, 0)
    list(islice(loader, 4))
    again = StatefulDataLoader(TokenDataset(plan, rank=0, world_size=1), batch_size=None)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match=r"was saved with 4, found a whole step; .* or use TokenLoader"):
        next(iter(again))


def test_another_history_is_refused(plan: Plan, path: Path) -> None:
    """P10: a state resumes only into a plan with the same history."""
    loader = loader_of(plan, 0)
    list(islice(loader, 4))
    other = Plan.of(path, sequence_length=16, global_batch_size=12, num_steps=7, skip_steps=[(2, 4)], seed=1)
    again = loader_of(other, 0)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match="seed was 0, is 1"):
        next(iter(again))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_loader_refuses_the_state_of_the_other(plan: Plan, workers: int) -> None:
    """P10: TokenLoader and the iterator of a TokenDataset each refuse the state of the other with a clear message."""
    loader = loader_of(plan, workers)
    next(iter(loader))
    own = TokenLoader(plan)
    with pytest.raises(
        StateMismatchError, match=r"expected that of a TokenLoader, found .* torchdata StatefulDataLoader"
    ):
        own.load_state_dict(loader.state_dict())
    iterator = iter(TokenDataset(plan))
    for state in (own.state_dict(), loader.state_dict()):
        with pytest.raises(StateMismatchError, match="load a state that the iterator of a TokenDataset saved"):
            iterator.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"found .* \(key 'worker'\)"):
        own.load_state_dict(iterator.state_dict())


def test_iterators_are_independent(plan: Plan) -> None:
    """P1: two iterators of one dataset, as torchdata makes when restoring, do not move each other; {} moves nothing."""
    dataset = TokenDataset(plan)
    first, second = iter(dataset), iter(dataset)
    next(first)
    second.load_state_dict(first.state_dict())
    first.load_state_dict({})
    assert torch.equal(next(first)["input_ids"], next(second)["input_ids"])
    assert torch.equal(next(iter(dataset))["input_ids"], next(iter(TokenLoader(plan)))["input_ids"])


def test_the_length_covers_one_pass(plan: Plan, path: Path) -> None:
    """P5: len() counts the batches of all workers from the first step; an endless plan has no length."""
    for step in range(8):
        dataset = TokenDataset(plan, microbatch_size=4, step=step)
        assert len(dataset) == len(list(dataset))
    with pytest.raises(TypeError, match="endless"):
        len(TokenDataset(Plan.of(path, sequence_length=16, global_batch_size=4)))
