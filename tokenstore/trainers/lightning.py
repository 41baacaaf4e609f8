"""TokenDataModule: train plans with the Trainer of Lightning and resume exactly on any number of ranks.

Lightning counts the microbatches it has trained, and this number determines where the plan continues. The number of loaded
microbatches would be wrong: it may be one larger. So no step is lost or repeated by an exception inside a step, by a Trainer
that prefetches, or by an epoch that `limit_train_batches` ends.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, TypedDict, Unpack

import torch

from tokenstore.errors import ConfigError, StateMismatchError, how_to_install
from tokenstore.format.differences import short
from tokenstore.planning.history import check_keys
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank, data_rank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_accumulation,
    evaluation_loader,
    microbatches_per_step,
    state_after,
    updates_per_pass,
    warn_if_repeated,
)

try:
    from lightning.pytorch import Callback, LightningDataModule, Trainer
except ImportError as error:
    raise ImportError(f"lightning is not installed; {how_to_install('lightning')}") from error


class BatchOptions(TypedDict, total=False):
    """Options of TokenLoader that a data module accepts."""

    nodes: int | None
    fields: Sequence[str] | None
    format: str
    pin_memory: bool
    device: torch.device | str | None
    max_documents: int | None
    ignore_index: int | None
    dtype: torch.dtype | str
    readahead: int
    prefetch: int
    reuse: int


class TokenDataModule(LightningDataModule):
    """Loaders for a plan to train and for plans to evaluate. Each process loads the part of its data-parallel rank.

    An update is a step of the plan, so `accumulate_grad_batches` must be `microbatches_per_step`. An epoch of Lightning is a
    pass over the plan, or `limit_train_batches` of it; the next epoch continues where it ended. The state is that of the
    plan and is checked when it is loaded. `evaluation` sums the losses of a validation; see the guide. A step that
    was interrupted is trained again, as checkpoints have no gradients.

    Attributes:
        plan: the plan to train.

    Example:
        >>> data = TokenDataModule(Plan("plan.yaml"), microbatch_size=8, val_plan=Plan("val.yaml"))
        >>> Trainer(max_epochs=1, accumulate_grad_batches=4).fit(model, data, ckpt_path="last")
    """

    def __init__(
        self,
        plan: Plan,
        *,
        microbatch_size: int | None = None,
        val_plan: Plan | None = None,
        test_plan: Plan | None = None,
        eval_microbatch_size: int | None = None,
        rank: int | DataRank | None = None,
        world_size: int | None = None,
        **options: Unpack[BatchOptions],
    ):
        """Make a data module. Nothing is read yet.

        Args:
            plan: the plan to train.
            microbatch_size: sequences per training batch of a rank; default: its whole share of a step.
            val_plan: a plan for validation, which is evaluated completely each time. It must not be endless.
            test_plan: likewise for testing.
            eval_microbatch_size: sequences per evaluation batch of a rank; default: its whole share of a step.
            rank: data-parallel rank, as in TokenLoader. Default: that of the Trainer's strategy.
            world_size: number of data-parallel ranks. Default: that of the Trainer's strategy.
            options: the options of BatchOptions, as in TokenLoader.
        """
        super().__init__()
        self.plan = plan
        # Lightning treats an overridden method that returns nothing as a mistake, so these exist only with a plan.
        if val_plan is not None:
            self.val_dataloader = partial(self._evaluation, val_plan)  # type: ignore[method-assign]  # see above
        if test_plan is not None:
            self.test_dataloader = partial(self._evaluation, test_plan)  # type: ignore[method-assign]  # see above
        self._microbatch_size, self._eval_microbatch_size = microbatch_size, eval_microbatch_size
        self._place = None if rank is None and world_size is None else data_rank(rank, world_size)
        self._options = options
        self._current: Evaluation | None = None

    # ---- called by Lightning

    def setup(self, stage: str) -> None:
        """Add a callback that converts checkpoints of runs with another number of microbatches per step."""
        if stage == "fit":
            others = [callback for callback in self._trainer.callbacks if not isinstance(callback, _Recount)]
            self._trainer.callbacks = [*others, _Recount(self)]

    def train_dataloader(self) -> PlacedLoader:
        """The microbatches of this rank, from the first step not yet trained.

        Raises: ConfigError: an update of the Trainer is not a step of the plan.
        """
        loader = PlacedLoader(self.plan, self._num_updates, **self._arguments(self._microbatch_size))
        self._check()
        return loader

    def state_dict(self) -> dict[str, Any]:
        """The state of the plan after the updates so far, and the microbatches per step. The same on every rank."""
        return {
            "plan": state_after(self.plan, self._num_updates()),
            "microbatches_per_step": self.microbatches_per_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check a state. Raises: StateMismatchError: it is from a run with another history, or is damaged."""
        check_keys(state_dict, ("plan", "microbatches_per_step"))
        self.plan.check_state(state_dict["plan"])
        number = state_dict["microbatches_per_step"]
        if type(number) is not int or number < 1:
            raise StateMismatchError(
                f"state: expected 1 or more as microbatches_per_step, found {short(number)}; load another checkpoint"
            )

    # ---- rank and position

    @property
    def _trainer(self) -> Any:  # a Trainer, whose attributes type checkers do not see
        if self.trainer is None:
            raise ConfigError(
                "data module: it is not attached to a Trainer; pass it to Trainer.fit, or use TokenLoader without a Trainer"
            )
        return self.trainer

    @property
    def data_rank(self) -> DataRank:
        """The data-parallel rank of this process. Raises: ConfigError: the module is not attached to a Trainer."""
        if self._place is not None:
            return self._place
        place = self._trainer.distributed_sampler_kwargs  # None on a single device
        if not place:
            return DataRank(0, 1)
        trainer, world_size = self._trainer, place["num_replicas"]
        is_known = (
            trainer.num_nodes > 1 and world_size == trainer.world_size
        )  # no process shares its rows with another one
        return DataRank(place["rank"], world_size, trainer.num_nodes if is_known else 0)

    @property
    def microbatches_per_step(self) -> int:
        """Training microbatches per rank and step: the value for `accumulate_grad_batches`.

        Raises: ConfigError: stages of the plan differ in this number.
        """
        return microbatches_per_step(self.plan, self.data_rank.world_size, self._microbatch_size)

    def _arguments(self, microbatch_size: int | None) -> AllOptions:
        return {**self._options, "rank": self.data_rank, "microbatch_size": microbatch_size}

    def _evaluation(self, plan: Plan) -> Evaluation:
        """The microbatches of this rank for a whole plan, equally many on every rank."""
        self._current = evaluation_loader(plan, **self._arguments(self._eval_microbatch_size))
        return self._current

    @property
    def evaluation(self) -> Evaluation:
        """The Evaluation of the plan that is validated or tested. Raises: ConfigError: the Trainer has not begun one."""
        if self._current is None:
            raise ConfigError("evaluation: the Trainer has not begun one; pass val_plan or test_plan")
        return self._current

    def _num_updates(self) -> int:
        trained: int = self._trainer.fit_loop.epoch_loop.batch_progress.total.processed
        return trained // self.microbatches_per_step

    # ---- checks that an update is a step of the plan

    def _check(self) -> None:
        trainer, expected = self._trainer, self.microbatches_per_step
        if trainer.overfit_batches:
            raise ConfigError(
                f"overfit_batches: expected 0, found {trainer.overfit_batches}; an epoch continues where the previous one"
                " ended, so batches would not repeat; train a plan with as many steps instead"
            )
        if trainer.fast_dev_run:
            return
        if trainer.lightning_module.automatic_optimization:
            check_accumulation("accumulate_grad_batches", trainer.accumulate_grad_batches, expected, self.plan)
        batches = self.batches_per_epoch
        if batches < inf and batches % expected:
            raise ConfigError(
                f"limit_train_batches: expected a multiple of {expected}, the microbatches per step, found {batches:g}; the"
                " last update of an epoch would have only a part of a step"
            )
        most = inf if trainer.max_steps < 0 else trainer.max_steps
        epochs = inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
        warn_if_repeated(
            self.plan,
            min(most, epochs * batches / expected if epochs else 0),
            "Set Trainer(max_epochs=1), or max_steps",
        )

    @property
    def batches_per_epoch(self) -> float:
        """Training microbatches per rank in an epoch of Lightning; inf if it never ends."""
        limit, steps = self._trainer.limit_train_batches, updates_per_pass(self.plan)
        whole = inf if steps is None else steps * self.microbatches_per_step
        return min(limit, whole) if isinstance(limit, int) else whole if limit == 1.0 else whole * limit // 1


class _Recount(Callback):
    """Converts the microbatch counts of a checkpoint to the microbatches per step of this run.

    Without it, an epoch of a run with other microbatches would end too early or too late. A step that was interrupted starts
    again.
    """

    def __init__(self, module: TokenDataModule):
        self._module = module

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        name = type(self._module).__qualname__
        if name not in checkpoint:
            raise StateMismatchError(
                f"checkpoint: it has no state of {name}; it is from a run with another data module"
            )
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        old, new = checkpoint[name]["microbatches_per_step"], self._module.microbatches_per_step
        for part in ("total", "current"):
            progress[part] = _recounted(progress[part], old, new)
        # The plan may have more steps now; then the last microbatch of that run is not the last of this one.
        progress["is_last_batch"] &= progress["current"]["processed"] >= self._module.batches_per_epoch


def _recounted(counts: Mapping[str, int], old: int, new: int) -> dict[str, int]:
    """Convert counts of microbatches from `old` to `new` microbatches per step."""
    trained = counts["processed"]
    whole = trained // old * new
    begun = trained % old > 0 or counts["ready"] != trained
    return {name: whole if begun else count - trained + whole for name, count in counts.items()}
