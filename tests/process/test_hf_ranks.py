"""TokenTrainerMixin on two real ranks over gloo, resumed from one rank and on one rank; and Accelerate on both."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.launched import left, run_ranks
from tests.support.trainers.hf_model import TokenTrainer, quiet_arguments, tiny_model
from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan
from tokenstore import Plan

pytestmark = pytest.mark.deep  # two processes that import transformers
RUNS = {"whole": (0, 2), "again": (2, 4), "from_one": (3, 1)}  # updates before it, sequences per microbatch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores, the checkpoints of one rank, and the results of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    write_store(folder / "a", random_documents(3, 60, 30, vocab_size=64), vocab_size=64, length_index=True)
    write_store(folder / "v", random_documents(4, 60, 30, vocab_size=64), vocab_size=64, length_index=True)
    train_alone(folder, None)
    run_ranks("tests.support.trainers.hf_ranks", 2, folder)
    return folder


def train_alone(folder: Path, after: Path | None) -> TokenTrainer:
    """Train on one rank, in this process."""
    arguments = quiet_arguments(folder / "one", 4, 2, save_strategy="no" if after else "steps")
    trainer = TokenTrainer(tiny_model(), arguments, train_plan=small_plan(folder / "a"))
    trainer.train(resume_from_checkpoint=after and str(after))
    return trainer


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_trains_its_part_of_every_step(folder: Path, name: str, rank: int) -> None:
    """P1, P2, P5: complete, resumed with another accumulation, and resumed from a checkpoint of one rank."""
    after, size = RUNS[name]
    trained = left(folder, name, 2)[rank]["trained"]
    assert [update for update, _, _ in trained] == [update for update in range(after, 5) for _ in range(4 // size)]
    assert same([ids for _, ids, _ in trained], microbatches(small_plan(folder / "a"), GIVEN[after:], rank, 2, size))


def test_one_rank_resumes_from_two(folder: Path) -> None:
    """P2: the weights equal those of every other run, since the loss is a mean over the tokens of a step."""
    trainer = train_alone(folder, folder / "whole" / "checkpoint-2")
    assert same(trainer.ids, microbatches(small_plan(folder / "a"), GIVEN[2:], size=4))
    mine = trainer.model.lm_head.weight.detach().numpy()
    for name in RUNS:
        assert all(np.allclose(rank["weights"], mine, atol=1e-6) for rank in left(folder, name, 2))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_evaluates_its_part(folder: Path, rank: int) -> None:
    """P5: the whole plan each time, with equally many microbatches per rank."""
    wanted = microbatches(Plan.of(folder / "v", 8, 4, num_steps=3), range(3), rank, 2, 1)
    evaluated = left(folder, "whole", 2)[rank]["evaluated"]
    assert len(evaluated) == 2
    assert all(same(run, wanted) for run in evaluated)


@pytest.mark.parametrize("rank", [0, 1])
def test_accelerate_does_not_divide_a_loader(folder: Path, rank: int) -> None:
    """A prepared loader is the loader."""
    is_the_loader, ids = left(folder, "prepared", 2)[rank]
    assert is_the_loader
    assert same(ids, microbatches(small_plan(folder / "a"), GIVEN, rank, 2, 2))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_plain_trainer_follows_the_plan_or_refuses(folder: Path, rank: int) -> None:
    """P2: datasets that it would distribute or shuffle again are refused on every rank; others yield its rows."""
    plan = small_plan(folder / "a", num_steps=3, skip_steps=[])
    for name in ("all", "sequential"):
        assert same(left(folder, name, 2)[rank], microbatches(plan, range(3), rank, 2, 2))
    assert f"has only the rows of rank {rank} of 2" in left(folder, "own", 2)[rank]
    assert "RandomSampler would shuffle" in left(folder, "shuffled", 2)[rank]
