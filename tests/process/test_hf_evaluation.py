"""The losses of evaluations with the Trainer of transformers, by hand. test_hf_trainer.py has their batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents
from tests.support.trainers.hf_model import TokenTrainer, loss_by_hand, quiet_arguments, tiny_model
from tests.support.trainers.microbatches import small_store
from tokenstore import Plan


def test_each_source_has_a_loss(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """A plan of several sources: the loss of all, and of each, which equal those by hand."""
    other = make_store("w", random_documents(4, 20, 9, vocab_size=64), vocab_size=64, length_index=True)
    paths = {"v": small_store(make_store, "v"), "w": other}
    plans = [Plan.of(path, 8, 4, packing="none", num_steps="all_exhausted") for path in (paths, *paths.values())]
    model = tiny_model()
    arguments = quiet_arguments(tmp_path, 4, 1, per_device_eval_batch_size=3)
    metrics = TokenTrainer(model, arguments, train_plan=plans[0], eval_plan=plans[0]).evaluate()
    for name, plan in zip(("eval_loss", "eval_v_loss", "eval_w_loss"), plans, strict=True):
        assert np.isclose(metrics[name], loss_by_hand(model, plan), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 12])
def test_the_evaluation_loss_is_a_mean_over_targets(make_store: Callable[..., Path], tmp_path: Path, size: int) -> None:
    """Short and long documents, some without a target, empty rows at the end: each target counts equally."""
    documents = [*random_documents(5, 18, 9, vocab_size=64), [7]]
    path = make_store("v", documents, vocab_size=64, length_index=True)
    plan = Plan.of(path, 8, 12, packing="none", num_steps="all_exhausted")
    model = tiny_model()
    arguments = quiet_arguments(tmp_path, 4, 1, per_device_eval_batch_size=size)
    trainer = TokenTrainer(model, arguments, train_plan=plan, eval_plan=plan)
    assert np.isclose(trainer.evaluate()["eval_loss"], loss_by_hand(model, plan), rtol=1e-5)
