"""TokenDataModule: plans for the Trainer of Lightning, resumed exactly with any number of ranks.

Lightning counts the microbatches it has trained, and that count says where the plan goes on: not what a loader has handed
over, which may be one too many. So an exception inside a step, a Trainer that reads ahead, and an epoch that
`limit_train_batches` has cut neither lose nor repeat a step.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, TypedDict, Unpack

from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.loader import AllOptions
from tokenstore.torch_data.ranks import DataRank, data_rank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_accumulation,
    evaluation_loader,
    microbatches_a_step,
    state_after,
    updates_a_pass,
    warn_of_passes,
)

try:
    from lightning.pytorch import Callback, LightningDataModule, Trainer
except ImportError as error:
    raise ImportError("lightning: expected the package, found none; pip install 'lightning>=2.5'") from error


class BatchOptions(TypedDict, total=False):
    """Arguments of TokenLoader that a data module passes on."""

    fields: Sequence[str] | None
    format: str
    pin_memory: bool
    max_documents: int | None
    readahead: int
    prefetch: int
    reuse: int


class TokenDataModule(LightningDataModule):
    """Loaders of a plan to train and of plans to evaluate, each for the data rank of the Trainer's process.

    An update is a step of the plan, so `accumulate_grad_batches` must be the number of microbatches in a step. An epoch of
    Lightning is a pass over the plan, or `limit_train_batches` of it: the next one goes on where it ended. Its state is
    that of the plan, checked when it is loaded; a step begun is trained again, as checkpoints hold no gradients.
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
        """Make a data module; nothing is read yet.

        Args:
            plan: what to train.
            microbatch_size: sequences a batch of a rank in training; left out: its share of a step.
            val_plan, test_plan: what to evaluate, whole each time; plans that end.
            eval_microbatch_size: sequences a batch of a rank in evaluation; left out: its share of a step.
            rank, world_size: as in TokenLoader; left out: the data-parallel ones of the Trainer's strategy.
            options: fields, format, pin_memory, max_documents of TokenLoader.
        """
        super().__init__()
        self.plan = plan
        # Lightning looks for a method of its own: one that gives nothing would be taken for a mistake
        if val_plan is not None:
            self.val_dataloader = partial(self._evaluation, val_plan)  # type: ignore[method-assign]  # see above
        if test_plan is not None:
            self.test_dataloader = partial(self._evaluation, test_plan)  # type: ignore[method-assign]  # see above
        self._microbatch_size, self._eval_microbatch_size = microbatch_size, eval_microbatch_size
        self._place = None if rank is None and world_size is None else data_rank(rank, world_size)
        self._options = options

    # ---- what Lightning asks for

    def setup(self, stage: str) -> None:
        """Take part in loading the checkpoints of runs with other microbatches."""
        if stage == "fit":
            others = [callback for callback in self._trainer.callbacks if not isinstance(callback, _Recount)]
            self._trainer.callbacks = [*others, _Recount(self)]

    def train_dataloader(self) -> PlacedLoader:
        """The microbatches of this rank, from the first step not yet trained. Raises: ConfigError: an update is no step."""
        loader = PlacedLoader(self.plan, self._num_updates, **self._arguments(self._microbatch_size))
        self._check()
        return loader

    def state_dict(self) -> dict[str, Any]:
        """The state of the plan after the updates made, and microbatches a step; the same on every rank."""
        return {
            "plan": state_after(self.plan, self._num_updates()),
            "microbatches_per_step": self.microbatches_per_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse (StateMismatchError) the state of a run with another history."""
        self.plan.check_state(state_dict["plan"])

    # ---- where we are

    @property
    def _trainer(self) -> Any:  # a Trainer; what sets its attributes is hidden from type checkers
        if self.trainer is None:
            raise ConfigError("data module: expected to be given to a Trainer, found none; use TokenLoader without one")
        return self.trainer

    @property
    def data_rank(self) -> DataRank:
        """The place of this process among the data-parallel ranks."""
        if self._place is not None:
            return self._place
        place = self._trainer.distributed_sampler_kwargs  # None on a single device
        return DataRank(place["rank"], place["num_replicas"]) if place else DataRank(0, 1)

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches of training that a rank is given in a step: the `accumulate_grad_batches` to use."""
        return microbatches_a_step(self.plan, self.data_rank.world_size, self._microbatch_size)

    def _arguments(self, microbatch_size: int | None) -> AllOptions:
        return {**self._options, "rank": self.data_rank, "microbatch_size": microbatch_size}

    def _evaluation(self, plan: Plan) -> PlacedLoader:
        """The microbatches of this rank of a plan, the whole of it each time, as many for every rank."""
        return evaluation_loader(plan, **self._arguments(self._eval_microbatch_size))

    def _num_updates(self) -> int:
        trained: int = self._trainer.fit_loop.epoch_loop.batch_progress.total.processed
        return trained // self.microbatches_per_step

    # ---- what would train other steps than those of the plan

    def _check(self) -> None:
        trainer, wanted = self._trainer, self.microbatches_per_step
        if trainer.overfit_batches:
            raise ConfigError(
                f"overfit_batches: expected 0, as an epoch goes on where the last one ended, found"
                f" {trainer.overfit_batches}; train a plan of as many steps"
            )
        if trainer.fast_dev_run:
            return
        if trainer.lightning_module.automatic_optimization:
            check_accumulation("accumulate_grad_batches", trainer.accumulate_grad_batches, wanted, self.plan)
        batches = self.batches_an_epoch
        if batches < inf and batches % wanted:
            raise ConfigError(
                f"limit_train_batches: expected whole steps of {wanted} microbatches, found {batches:g} microbatches;"
                " an update at the end of an epoch would be made of a part of a step"
            )
        most = inf if trainer.max_steps < 0 else trainer.max_steps
        epochs = inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
        warn_of_passes(
            self.plan,
            min(most, epochs * batches / wanted if epochs else 0),
            "Give the Trainer max_epochs=1, or max_steps",
        )

    @property
    def batches_an_epoch(self) -> float:
        """Microbatches of training that a rank is given in what Lightning calls an epoch; inf where it has no end."""
        limit, steps = self._trainer.limit_train_batches, updates_a_pass(self.plan)
        whole = inf if steps is None else steps * self.microbatches_per_step
        return min(limit, whole) if isinstance(limit, int) else whole if limit == 1.0 else whole * limit // 1


class _Recount(Callback):
    """Makes of a checkpoint's counts of microbatches those of this run, at the start of a step that was begun.

    Lightning takes them for its own: with other microbatches an epoch would end too early or too late.
    """

    def __init__(self, module: TokenDataModule):
        self._module = module

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        name = type(self._module).__qualname__
        if name not in checkpoint:
            raise StateMismatchError(
                f"checkpoint: expected a state of {name}, found none; it is of a run with another data module"
            )
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        old, new = checkpoint[name]["microbatches_per_step"], self._module.microbatches_per_step
        for part in ("total", "current"):
            progress[part] = _recounted(progress[part], old, new)
        # a plan may have got more steps since: its last microbatch was then not the last one
        progress["is_last_batch"] &= progress["current"]["processed"] >= self._module.batches_an_epoch


def _recounted(counts: Mapping[str, int], old: int, new: int) -> dict[str, int]:
    """Counts of microbatches, `old` a step, as counts of those of which a step has `new`."""
    trained = counts["processed"]
    whole = trained // old * new
    begun = trained % old > 0 or counts["ready"] != trained
    return {name: whole if begun else count - trained + whole for name, count in counts.items()}
