"""TokenLoader and TokenDataModule under the real Trainer of Lightning, in one process."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.callbacks import Callback

from tests.support.trainers.lightning_model import Broken, Recorder, quiet_trainer
from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.lightning import TokenDataModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
SIZES = {None: 1, 4: 2, 2: 4}  # sequences per microbatch -> microbatches per step of 8 sequences, on one rank


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return small_plan(small_store(make_store))


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Recorder]:
    """Train, from a checkpoint that an earlier call saved after `after` updates; return the trained batches."""

    def run(data: Any, after: int | None = None, model: Recorder | None = None, **options: Any) -> Recorder:
        model = model or Recorder()
        data = {"datamodule": data} if isinstance(data, TokenDataModule) else {"train_dataloaders": data}
        trainer = quiet_trainer(tmp_path / "kept", **{"max_epochs": 1, "every": 1, **options})
        trainer.fit(model, **data, ckpt_path=None if after is None else tmp_path / "kept" / f"step={after}.ckpt")
        return model

    return run


@pytest.fixture(params=["loader", "module"])
def data_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Make a TokenLoader or a TokenDataModule."""
    if request.param == "module":
        return lambda plan, size, **options: TokenDataModule(plan, microbatch_size=size, **options)
    return lambda plan, size: TokenLoader(plan, rank=0, world_size=1, microbatch_size=size)


@pytest.mark.parametrize("size", SIZES)
def test_a_run_resumes_exactly(plan: Plan, data_of: Callable, fit: Callable, size: int | None) -> None:
    """P1: an update is a step, with and without accumulation; each checkpoint resumes at the next one."""
    wanted = [k for k in GIVEN for _ in range(SIZES[size])]
    whole = fit(data_of(plan, size), accumulate_grad_batches=SIZES[size])
    assert same(whole.ids, microbatches(plan, GIVEN, size=size))
    assert [GIVEN[update] for update, _ in whole.trained] == wanted
    for after in range(1, 6):
        rest = fit(data_of(plan, size), after, every=None, accumulate_grad_batches=SIZES[size])
        assert same(rest.ids, microbatches(plan, GIVEN[after:], size=size))


@pytest.mark.parametrize(("size", "other"), [(4, 2), (2, 4), (4, None), (None, 2)])
def test_a_run_resumes_with_other_microbatches(plan: Plan, fit: Callable, size: int | None, other: int | None) -> None:
    """P2: the counts of Lightning are converted, so the epoch ends with the plan; also when resumed twice."""
    fit(TokenDataModule(plan, microbatch_size=size), accumulate_grad_batches=SIZES[size])
    for after in (1, 3, 4):
        rest = fit(TokenDataModule(plan, microbatch_size=other), after, accumulate_grad_batches=SIZES[other])
        assert same(rest.ids, microbatches(plan, GIVEN[after:], size=other))
        assert [update for update, _ in rest.trained[:: SIZES[other]]] == list(range(after, 5))


@pytest.mark.parametrize(("world_size", "nodes"), [(8, 2), (4, 1)])
def test_the_trainer_gives_the_number_of_nodes(plan: Plan, world_size: int, nodes: int) -> None:
    """P2: its num_nodes, if every process has a data-parallel rank of its own."""
    place = {"rank": 3, "num_replicas": world_size}
    module = TokenDataModule(plan)
    module.trainer = SimpleNamespace(distributed_sampler_kwargs=place, num_nodes=2, world_size=8)
    assert module.data_rank == DataRank(3, world_size, nodes)


@pytest.mark.parametrize("after", [1, 2, 4])
def test_estimated_stepping_batches_is_the_number_of_steps(plan: Plan, fit: Callable, after: int) -> None:
    """Reading it makes the loaders early, and does not lose the position."""
    module = TokenDataModule(plan, microbatch_size=2)
    model = fit(module, model=Recorder(total_steps=True), accumulate_grad_batches=4)
    assert model.trainer.estimated_stepping_batches == 5
    rest = fit(module, after, model=Recorder(total_steps=True), accumulate_grad_batches=4)
    assert same(rest.ids, microbatches(plan, GIVEN[after:], size=2))


@pytest.mark.parametrize("limit", [4, 0.4])
def test_limit_train_batches_divides_the_plan_into_epochs(plan: Plan, fit: Callable, limit: float) -> None:
    """An epoch continues where the previous one ended, also after a checkpoint; the end of the plan ends an epoch."""
    options = {"limit_train_batches": limit, "accumulate_grad_batches": 2, "max_epochs": 3}
    data = TokenDataModule(plan, microbatch_size=4)
    with pytest.warns(UserWarning, match="6 updates, but the plan has 5 steps"):
        assert same(fit(data, **options).ids, microbatches(plan, GIVEN, size=4))
    for after in (1, 2, 3, 4):
        rest = fit(data, after, **{**options, "max_steps": 5})
        assert same(rest.ids, microbatches(plan, GIVEN[after:], size=4))


def test_max_steps_ends_a_run(plan: Plan, data_of: Callable, fit: Callable) -> None:
    """Three updates, and the checkpoint at the end."""
    model = fit(data_of(plan, 4), max_steps=3, max_epochs=-1, accumulate_grad_batches=2)
    assert same(model.ids, microbatches(plan, GIVEN[:3], size=4))
    rest = fit(data_of(plan, 4), 3, accumulate_grad_batches=2)
    assert same(rest.ids, microbatches(plan, GIVEN[3:], size=4))


def test_an_endless_plan_loses_no_prefetched_batch(plan: Plan, fit: Callable) -> None:
    """Without a length, Lightning prefetches; a resumed run trains every batch."""
    endless = small_plan(plan.stores["a"].path, num_steps=None)
    fit(TokenDataModule(endless), max_steps=3, max_epochs=-1)
    rest = fit(TokenDataModule(endless, microbatch_size=4), 2, max_steps=4, max_epochs=-1, accumulate_grad_batches=2)
    assert same(rest.ids, microbatches(endless, GIVEN[2:4], size=4))


def test_epochs_of_an_endless_plan_lose_no_batch(plan: Plan, fit: Callable) -> None:
    """Batches prefetched at the end of an epoch are trained in the next."""
    endless = small_plan(plan.stores["a"].path, num_steps=None, skip_steps=[])
    options = {"accumulate_grad_batches": 2, "limit_train_batches": 6, "max_epochs": -1}
    model = fit(TokenDataModule(endless, microbatch_size=4), max_steps=8, **options)
    assert same(model.ids, microbatches(endless, range(8), size=4))
    for after in (2, 3, 5):
        rest = fit(TokenDataModule(endless, microbatch_size=2), after, max_steps=9, **{**options, "accumulate_grad_batches": 4, "limit_train_batches": 12})  # fmt: skip
        assert same(rest.ids, microbatches(endless, range(after, 9), size=2))


@pytest.mark.parametrize("stop_at", [2, 5, 7])
@pytest.mark.parametrize("other", [4, 2])
def test_an_interrupted_step_is_trained_again(
    plan: Plan, fit: Callable, tmp_path: Path, stop_at: int, other: int
) -> None:
    """A checkpoint made by an exception inside a step has no gradients, so the whole step is repeated."""

    class Keep(Callback):
        def on_exception(self, trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "kept" / f"step={trainer.global_step}.ckpt")

    model = Recorder(stop_at=stop_at)
    with pytest.raises(Broken):
        fit(TokenDataModule(plan, microbatch_size=4), model=model, callbacks=[Keep()], accumulate_grad_batches=2)
    after = stop_at // 2
    rest = fit(TokenDataModule(plan, microbatch_size=other), after, accumulate_grad_batches=SIZES[other])
    assert same(rest.ids, microbatches(plan, GIVEN[after:], size=other))
    assert rest.trainer.fit_loop.total_batch_idx == 5 * SIZES[other] - 1


def test_manual_optimization_resumes_by_steps(plan: Plan, fit: Callable) -> None:
    """A module that calls its optimizer itself gets the same batches."""
    data = TokenDataModule(plan, microbatch_size=4)
    fit(data, model=Recorder(manual=True))
    rest = fit(data, 4, model=Recorder(manual=True))
    assert same(rest.ids, microbatches(plan, GIVEN[2:], size=4))


def test_validation_covers_the_whole_plan(plan: Plan, fit: Callable, make_store: Callable[..., Path]) -> None:
    """The sanity check and a limit use the first batches, and do not affect later runs."""
    val = Plan.of(small_store(make_store, "v"), 8, 4, num_steps=3, packing="none")
    data = TokenDataModule(plan, val_plan=val, eval_microbatch_size=2)
    model = fit(data, num_sanity_val_steps=2, val_check_interval=2)
    wanted = microbatches(val, range(3), size=2)
    assert [len(run) for run in model.evaluated] == [2, 6, 6]
    assert all(same(run, wanted[: len(run)]) for run in model.evaluated)
    model = fit(data, 2, limit_val_batches=3, val_check_interval=1)
    assert all(same(run, wanted[:3]) for run in model.evaluated)
    assert len(model.evaluated) == 3
    assert same(model.ids, microbatches(plan, GIVEN[2:]))


class Validated(Recorder):
    """Sums a loss of its own in the validation: each target is its own loss."""

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.trainer.datamodule.evaluation.add(batch, batch["targets"].double())

    def on_validation_epoch_end(self) -> None:
        self.log("val_loss", self.trainer.datamodule.evaluation.result().loss)


def test_the_loss_of_a_validation_is_a_mean_over_targets(
    plan: Plan, fit: Callable, make_store: Callable[..., Path]
) -> None:
    """After a sanity check, whose sums do not count."""
    val = Plan.of(small_store(make_store, "v"), 8, 4, num_steps="all_exhausted", packing="none")
    data = TokenDataModule(plan, val_plan=val, eval_microbatch_size=3)
    model = fit(data, num_sanity_val_steps=2, model=Validated())
    targets = np.concatenate([val.batch(step)["targets"] for step in range(val.num_steps or 0)])
    assert model.trainer.callback_metrics["val_loss"].item() == pytest.approx(targets[targets != -100].mean())
    with pytest.raises(ConfigError, match="evaluation: the Trainer has not begun one"):
        _ = TokenDataModule(plan).evaluation


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"accumulate_grad_batches": 3}, "accumulate_grad_batches: expected 2, .*found 3"),
        (
            {"limit_train_batches": 3},
            "limit_train_batches: expected a multiple of 2, the microbatches per step, found 3",
        ),
        ({"overfit_batches": 2}, "overfit_batches: expected 0"),
    ],
)
def test_updates_must_be_steps(plan: Plan, fit: Callable, options: dict, text: str) -> None:
    """For every option that would change this."""
    with pytest.raises(ConfigError, match=text):
        fit(TokenDataModule(plan, microbatch_size=4), **{"accumulate_grad_batches": 2, **options})


def test_plans_that_do_not_fit_are_refused(plan: Plan, fit: Callable) -> None:
    """Stages with different numbers of microbatches, endless evaluation, a module without a Trainer."""
    path = plan.stores["a"].path
    stages = [{"from_step": 3, "weights": {"a": 1}, "global_batch_size": 16}]
    staged = small_plan(path, weights={"a": 1}, stages=stages)
    with pytest.raises(ConfigError, match=r"one number for all stages, .* \{0: 2, 3: 4\}"):
        fit(TokenDataModule(staged, microbatch_size=4), accumulate_grad_batches=2)
    assert same(fit(TokenDataModule(staged)).ids, microbatches(staged, GIVEN))
    with pytest.raises(ConfigError, match="evaluation plan: the plan is endless"):
        fit(TokenDataModule(plan, val_plan=small_plan(path, num_steps=None)))
    with pytest.raises(ConfigError, match="data module: it is not attached to a Trainer"):
        TokenDataModule(plan).train_dataloader()


def test_a_checkpoint_of_another_run_is_refused(plan: Plan, fit: Callable) -> None:
    """P10: another history, or a checkpoint without a plan."""
    fit(TokenDataModule(plan))
    with pytest.raises(StateMismatchError, match="seed was 0, is 1"):
        fit(TokenDataModule(small_plan(plan.stores["a"].path, seed=1)), 2)
    longer = small_plan(plan.stores["a"].path, num_steps=9)
    assert same(fit(TokenDataModule(longer), 5).ids, microbatches(longer, (7, 8)))


def test_a_checkpoint_without_a_plan_is_refused(plan: Plan, fit: Callable) -> None:
    """A checkpoint of a run with other data has no position in the plan."""
    fit(TokenLoader(plan))
    with pytest.raises(StateMismatchError, match="checkpoint: it has no state of TokenDataModule"):
        fit(TokenDataModule(plan), 2)


def test_a_resumed_run_has_equal_weights(plan: Plan, fit: Callable) -> None:
    """Two halves, also with other microbatches, train to the weight of one run."""
    whole = fit(TokenDataModule(plan, microbatch_size=2), accumulate_grad_batches=4)
    for size, count in SIZES.items():
        rest = fit(TokenDataModule(plan, microbatch_size=size), 2, every=None, accumulate_grad_batches=count)
        assert np.isclose(rest.weight.item(), whole.weight.item())
    assert whole.weight.item() != 0


def test_given_data_ranks_are_used(plan: Plan, fit: Callable) -> None:
    """They replace those of the Trainer."""
    data = TokenDataModule(plan, microbatch_size=2, rank=DataRank(1, 2))
    assert same(fit(data, accumulate_grad_batches=2).ids, microbatches(plan, GIVEN, 1, 2, 2))
    rest = fit(TokenDataModule(plan, rank=3, world_size=4), 3)
    assert same(rest.ids, microbatches(plan, GIVEN[3:], 3, 4))
