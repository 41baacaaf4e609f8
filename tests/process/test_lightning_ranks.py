"""TokenDataModule on two real ranks of Lightning's DDP over gloo, resumed from one rank and on one rank."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.launched import left, run_ranks
from tests.support.trainers.lightning_model import Recorder, quiet_trainer
from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan
from tokenstore import Plan
from tokenstore.trainers.lightning import TokenDataModule

pytestmark = [
    pytest.mark.deep,  # two processes that import Lightning
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores, the checkpoints of one rank, and the results of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    write_store(folder / "a", random_documents(3, 60, 30, vocab_size=64), vocab_size=64, length_index=True)
    write_store(folder / "v", random_documents(4, 10, 8, vocab_size=64), vocab_size=64, length_index=True)
    train_alone(folder, None)
    run_ranks("tests.support.trainers.lightning_ranks", 2, folder)
    return folder


def train_alone(folder: Path, ckpt_path: Path | None) -> Recorder:
    """Train on one rank, in this process."""
    model = Recorder(total_steps=True)
    every = 1 if ckpt_path is None else None
    trainer = quiet_trainer(folder / "one", every=every, max_epochs=1, accumulate_grad_batches=2)
    trainer.fit(model, datamodule=TokenDataModule(small_plan(folder / "a"), microbatch_size=4), ckpt_path=ckpt_path)
    return model


def rank_of(folder: Path, name: str, rank: int) -> dict[str, Any]:
    return left(folder, name, 2)[rank]


@pytest.mark.parametrize(("name", "after"), [("whole", 0), ("again", 2), ("from_one", 3), ("loader", 0)])
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_trains_its_part_of_every_step(folder: Path, name: str, after: int, rank: int) -> None:
    """P1, P2, P5: complete, resumed, and resumed from a checkpoint of one rank with other microbatches."""
    plan = small_plan(folder / "a")
    trained = rank_of(folder, name, rank)["trained"]
    assert [update for update, _ in trained] == [update for update in range(after, 5) for _ in range(2)]
    assert same([ids for _, ids in trained], microbatches(plan, GIVEN[after:], rank, 2, 2))


def test_one_rank_resumes_from_two(folder: Path) -> None:
    """P2: the weight equals that of every other run."""
    model = train_alone(folder, folder / "whole" / "step=2.ckpt")
    assert same(model.ids, microbatches(small_plan(folder / "a"), GIVEN[2:], size=4))
    weights = [left(folder, name, 2)[rank]["weight"] for name in ("whole", "again", "from_one") for rank in (0, 1)]
    assert np.allclose(weights, model.weight.item(), atol=0, rtol=1e-6)


def test_every_rank_validates_equally_often(folder: Path) -> None:
    """Two batches in the sanity check, then all of them: every sequence once, over both ranks."""
    val_plan = Plan.of(folder / "v", 8, 4, num_steps="all_exhausted", packing="none")
    evaluated = [rank_of(folder, "whole", rank)["evaluated"] for rank in (0, 1)]
    assert [len(run) for run in evaluated[0]] == [len(run) for run in evaluated[1]] == [2, 5]
    rows = [np.asarray(row).tolist() for runs in evaluated for batch in runs[1] for row in batch]
    wanted = [row.tolist() for step in range(val_plan.num_steps) for row in val_plan.batch(step)["input_ids"]]
    assert sorted(rows) == sorted(row for row in wanted if any(row))
