"""PlanDataLoader of torchtitan, in the contract of the installed version."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support.trainers.microbatches import (
    GIVEN,
    LENGTH,
    SKIPPED,
    STEPS,
    microbatches,
    same,
    small_plan,
    small_store,
)
from tokenstore.errors import ConfigError
from tokenstore.trainers.torchtitan import FLAT, PlanDataLoader


@pytest.fixture
def path(make_store: Any, tmp_path: Path) -> str:
    plan = {
        "sequence_length": LENGTH,
        "global_batch_size": 8,
        "num_steps": STEPS,
        "skip_steps": [list(SKIPPED)],
        "packing": "concat",
        "sources": {"a": {"path": str(small_store(make_store))}},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    return str(tmp_path / "plan.yaml")


def build(
    path: str, rank: int = 0, ranks: int = 1, rows: int = 2, length: int = LENGTH, **config: Any
) -> PlanDataLoader:
    sizes = (
        {"max_context_length": length, "num_tokens_per_batch": rows * LENGTH}
        if FLAT
        else {"seq_len": length, "local_batch_size": rows}
    )
    return PlanDataLoader.Config(plan=path, **config).build(dp_rank=rank, dp_world_size=ranks, tokenizer=None, **sizes)


def ids(batches: Any) -> list[Any]:
    return [inputs["input"].reshape(-1, LENGTH) for inputs, _ in batches]


def test_batches_follow_the_plan_on_every_rank(path: str, tmp_path: Path) -> None:
    plan = small_plan(tmp_path / "a")
    for rank in range(2):
        assert same(ids(build(path, rank, 2)), microbatches(plan, GIVEN, rank, 2, 2))
    inputs, labels = next(iter(build(path)))
    assert set(inputs) == {"input", "positions"}
    assert labels.shape == inputs["input"].shape == ((2 * LENGTH,) if FLAT else (2, LENGTH))
    assert labels.dtype == torch.int64


def test_a_state_continues_with_another_degree(path: str, tmp_path: Path) -> None:
    first = build(path, 0, 2)
    batches = iter(first)
    next(batches), next(batches)
    second = build(path, rows=4)
    second.load_state_dict(first.state_dict())
    assert same(ids(second), microbatches(small_plan(tmp_path / "a"), GIVEN[1:], size=4))
    second.load_state_dict({})


def test_validation_begins_at_the_start_each_time(path: str) -> None:
    loader = build(path, infinite=False)
    first = ids([next(iter(loader))])
    assert same(first, ids([next(iter(loader))]))


def test_sizes_and_states_that_are_not_those_of_the_plan_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=f"expected {LENGTH}, the sequence_length of the plan, found 16"):
        build(path, length=16)
    loader = build(path)
    next(iter(loader))
    with pytest.raises(ConfigError, match="a step of torchtitan ended inside step 0 of the plan; expected 8 sequences"):
        loader.state_dict()
    loader.close()
