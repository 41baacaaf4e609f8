"""worker_loader of Ray Train: checkpoints with and without a position."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
from ray.train import Checkpoint

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.errors import StateMismatchError
from tokenstore.trainers import ray as adapter


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


def worker(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int, checkpoint: Checkpoint | None = None) -> None:
    """Stand in a worker of a run."""
    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: ranks)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: checkpoint)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: "cpu")


def test_a_worker_continues_at_the_checkpoint(plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker(monkeypatch, 1, 2)
    loader = adapter.worker_loader(plan, microbatch_size=2)
    next(loader), next(loader)
    (tmp_path / "c").mkdir()
    checkpoint = adapter.with_position(Checkpoint.from_directory(tmp_path / "c"), loader)
    worker(monkeypatch, 0, 1, checkpoint)
    resumed = adapter.worker_loader(plan)
    assert same([each["input_ids"] for each in resumed], microbatches(plan, GIVEN[1:]))


def test_a_checkpoint_without_a_position_is_refused(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker(monkeypatch, 0, 1, Checkpoint.from_directory(tmp_path))
    with pytest.raises(StateMismatchError, match="its metadata has no entry 'tokenstore'"):
        adapter.worker_loader(plan)
