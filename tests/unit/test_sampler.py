"""After interrupts, forks and full memory a sampler still gives the right rows, or says it cannot."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents
from tokenstore import Plan
from tokenstore.batches import packings
from tokenstore.order.schedule import Schedule


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    """Some epochs, with few sequences per step."""
    return Plan.of(make_store("s", random_documents(1, 40, 30), length_index=True), 16, 64)


def test_an_interrupt_while_packing_leaves_no_freed_memory(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: the epochs at hand are still there, and are read again, after a packing that never came to its end."""
    expected = [plan.batch(step)["input_ids"] for step in range(6)]
    fresh = Plan(plan.config)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    for step in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(packings, "pack", interrupted)
            for other in (50, 60):
                with pytest.raises(KeyboardInterrupt):
                    fresh.batch(other)
        assert (fresh.batch(step)["input_ids"] == expected[step]).all()


def test_an_interrupt_between_tables_is_no_wrong_batch(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: what is asked for after an interrupt is what would have come without."""
    expected = plan.batch(3)["input_ids"]
    fresh = Plan(plan.config)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "segments_in", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fresh.batch(3)
    assert (fresh.batch(3)["input_ids"] == expected).all()


def test_no_room_for_scratch_is_reported_again(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: after a MemoryError the rows do not go into the small scratch of before."""
    sampler = plan.sampler()
    rows = np.concatenate([sampler.locate(step, 0, 64) for step in range(4)])

    def full(shape: tuple[int, ...], *arguments: object) -> np.ndarray:
        assert max(shape) > 256 * 17
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("tokenstore.batches.sampler.sparse_array", full)
        for _ in range(2):
            with pytest.raises(MemoryError):
                sampler.spans(rows)
    assert len(sampler.spans(rows)) == 256


def _ask(plan: Plan, out: multiprocessing.SimpleQueue) -> None:
    out.put(plan.batch(2)["input_ids"].tolist())


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_a_thread_is_at_work_is_not_locked_out(plan: Plan) -> None:
    """A lock held at the fork would never be free in the child."""
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    with plan._lock:  # as a thread in plan.batch has it
        child = context.Process(target=_ask, args=(plan, out))
        child.start()
        answer = out.get()
        child.join()
    assert answer == plan.batch(2)["input_ids"].tolist()


def test_one_batch_over_many_epochs_of_a_tiny_source(make_store: Callable[..., Path]) -> None:
    """All epochs of a batch are packed in one go, and the rows are those that single steps give."""
    path = make_store("s", [[1, 2, 3], [4, 5]], length_index=True)
    large, small = Plan.of(path, 4, 256, shuffle=True), Plan.of(path, 4, 1)
    batch = sorted(map(tuple, large.batch(0)["input_ids"].tolist()))
    assert batch == sorted(tuple(small.batch(step)["input_ids"][0].tolist()) for step in range(256))
