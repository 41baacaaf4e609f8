"""TokenTrainerMixin and ResumeCallback: plans for the Trainer of transformers, resumed exactly with any number of ranks.

    class TokenTrainer(TokenTrainerMixin, Trainer): ...

    args = TrainingArguments(output_dir, num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                             ignore_data_skip=True)
    TokenTrainer(model, args, train_plan=plan, eval_plan=val_plan).train(resume_from_checkpoint=...)

The Trainer counts its updates, and that count says where the plan goes on. Its loaders are no DataLoaders, so that Accelerate
neither splits nor deals out again what is a rank's own already.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tokenstore.batches.gather import IGNORE
from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.formats import check_fields
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_accumulation,
    evaluation_loader,
    microbatches_a_step,
    state_after,
    step_after,
    updates_a_pass,
    warn_of_passes,
)

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "transformers: expected the package, found none; pip install 'transformers>=5' accelerate"
    ) from error


if TYPE_CHECKING:  # a mixin has no Trainer of its own, but is only ever before one
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

_TRL_COUNT = "_total_train_tokens"  # of SFTTrainer: the tokens trained so far, over all ranks


class ResumeCallback(TrainerCallback, ExportableState):
    """Goes on at the step after the Trainer's updates, keeps the plan's state in its checkpoints and checks it.

    For a Trainer whose `get_train_dataloader` gives a TokenLoader; with other data it does nothing. TokenTrainerMixin adds
    one by itself.
    """

    def __init__(self) -> None:
        """Make a callback; it learns of the loader when training begins."""
        self.plan_state: dict[str, Any] = {}
        self._plan: Plan | None = None

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into trainer_state.json: the state of the plan after the updates made."""
        return {"args": {}, "attributes": {"plan_state": self.plan_state}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Place the loader. Raises: ConfigError: the Trainer would skip as well; StateMismatchError: another run's."""
        name = type(self).__name__
        state.stateful_callbacks.setdefault(name, self.state())  # the Trainer fails where a checkpoint has none
        plan = getattr(train_dataloader, "plan", None)
        if not isinstance(plan, Plan):
            return
        self._plan = plan
        if state.global_step and not args.ignore_data_skip:
            raise ConfigError(
                f"ignore_data_skip: expected True, as the loader goes on by itself, found {args.ignore_data_skip}; the"
                f" Trainer would skip {state.global_step} updates once more"
            )
        saved = (state.stateful_callbacks.get(name) or {}).get("attributes", {}).get("plan_state")
        if state.global_step and saved:
            plan.check_state(saved)
        train_dataloader.load_state_dict(plan.state(step_after(plan, state.global_step)))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note where the plan is, and the epoch, which the Trainer counts from the step it was resumed at."""
        if self._plan is None:
            return
        self.plan_state = state_after(self._plan, state.global_step)
        if updates := updates_a_pass(self._plan) or state.max_steps:
            state.epoch = state.global_step / updates


class TokenTrainerMixin(_Trainer):
    """Before `Trainer` among a class's bases: trains a plan and evaluates plans, each process its data rank's part.

    An update is a step of the plan: per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks must be
    its global_batch_size. An epoch is a pass over the plan, so num_train_epochs is 1, or max_steps of an endless one. To
    resume, the arguments need `ignore_data_skip=True`.

    The loss of an evaluation is the mean over all targets of the plan. The Trainer calls models without a cache, so documents
    of a row are kept apart where `loader_options` ask for position_ids. SFTTrainer of TRL needs them, so it has
    them by default; it also demands a `train_dataset`, which may be any, and is not read.
    """

    def __init__(
        self,
        *args: Any,
        train_plan: Plan | None = None,
        eval_plan: Plan | Mapping[str, Plan] | None = None,
        rank: DataRank | None = None,
        loader_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        """Make a Trainer; other arguments are its own.

        Args:
            train_plan: what to train, in place of `train_dataset`.
            eval_plan: what to evaluate, in place of `eval_dataset`: a plan that ends, whole each time, or several by name.
                `trainer.evaluate(plan)` takes one too.
            rank: data-parallel rank and size; left out: the process's, tensor and context parallel ranks counted as one.
            loader_options: fields, format ("hf" if left out), max_documents, pin_memory of TokenLoader.
        """
        self.train_plan, self._rank = train_plan, rank
        self._loader_options = {**_default_options(type(self), dict(loader_options or {})), **(loader_options or {})}
        self._evaluated: list[tuple[Any, int]] | None = None  # during an evaluation: loss, targets of each microbatch
        if eval_plan is not None:
            kwargs["eval_dataset"] = eval_plan
        super().__init__(*args, **kwargs)
        if not any(isinstance(callback, ResumeCallback) for callback in self.callback_handler.callbacks):
            self.add_callback(ResumeCallback())

    @property
    def data_rank(self) -> DataRank:
        """The place of this process among the data-parallel ranks."""
        if self._rank is not None:
            return self._rank
        if self.get_sp_size() > 1:
            raise ConfigError(
                f"sequence parallelism: expected none, found {self.get_sp_size()} ranks of it; give rank=DataRank(...)"
            )
        peers = self.get_tp_size() * self.get_cp_size()  # these work on one batch together, and are numbered in a row
        return DataRank(self.args.process_index // peers, self.args.world_size // peers)

    def get_train_dataloader(self) -> Any:
        """The microbatches of this rank, from the step after the updates made. Raises: ConfigError: an update is no step."""
        if (plan := self.train_plan) is None:
            return super().get_train_dataloader()
        self._check_cache()
        options = {"rank": self.data_rank, "microbatch_size": self._train_batch_size, **self._loader_options}
        loader = PlacedLoader(plan, lambda: self.state.global_step, **options)
        wanted = microbatches_a_step(plan, self.data_rank.world_size, options["microbatch_size"])
        check_accumulation("gradient_accumulation_steps", self.args.gradient_accumulation_steps, wanted, plan)
        epochs = self.args.num_train_epochs * (updates_a_pass(plan) or 0)
        updates = self.args.max_steps if self.args.max_steps > 0 else epochs
        warn_of_passes(plan, updates, "Give TrainingArguments num_train_epochs=1 (its default is 3), or max_steps")
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The microbatches of this rank of a plan, the whole of it each time, as many for every rank."""
        own: Any = self.eval_dataset
        plan = own if eval_dataset is None else eval_dataset
        plan = own[plan] if isinstance(plan, str) else plan
        if not isinstance(plan, Plan):
            return super().get_eval_dataloader(eval_dataset)
        self._check_cache()
        options = {**self._loader_options, "microbatch_size": self.args.eval_batch_size}
        return evaluation_loader(plan, rank=self.data_rank, **options)

    def _check_cache(self) -> None:
        """Refuse a cache where position_ids are to keep documents apart: transformers looks at them only without one."""
        fields = check_fields(self._loader_options.get("fields"), self._loader_options["format"])
        if self.args.use_cache and "position_ids" in fields:
            raise ConfigError(
                "use_cache: with a cache the documents of a row would see each other, whatever their position_ids; leave"
                " TrainingArguments(use_cache=...) at False"
            )

    # ---- the loss of an evaluation, and TRL's count of tokens

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate; of a plan, the loss is the mean over its targets, where the Trainer takes that of its microbatches."""
        loop: Callable[[str], Any] = partial(
            super().evaluation_loop, dataloader, description, prediction_loss_only, ignore_keys
        )
        if not isinstance(dataloader, PlacedLoader):
            return loop(metric_key_prefix)
        self._evaluated = []
        try:
            output = loop(metric_key_prefix)
            loss, targets = self._sums_of_all_ranks(self._evaluated)
        finally:
            self._evaluated = None
        if targets:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / targets
        return output

    def _sums_of_all_ranks(self, evaluated: Sequence[tuple[Any, int]]) -> tuple[float, int]:
        """Losses of all targets summed up, and their number. A microbatch without targets has a loss of NaN: no part of it."""
        loss = sum(loss.item() * targets for loss, targets in evaluated if targets)
        sums = torch.tensor([loss, sum(targets for _, targets in evaluated)], dtype=torch.float64)
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device))
        return sums[0].item(), int(sums[1])

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a microbatch, and note its loss and number of targets."""
        if self._evaluated is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        targets = num_targets(inputs)
        step = super().prediction_step(model, inputs, *args, **kwargs)
        if step[0] is not None:
            self._evaluated.append((step[0], targets))
        return step

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Any:
        """The Trainer's loss; in an evaluation the mean over this rank's microbatch."""
        if self._evaluated is not None:
            num_items_in_batch = None
        before, size = getattr(self, _TRL_COUNT, None), inputs["input_ids"].numel() if "input_ids" in inputs else 0
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch, **kwargs)
        if before is not None and self.train_plan is not None and self.model is not None and self.model.training:
            self._count_for_trl(before + size * self.data_rank.world_size)
        return loss

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """What TRL does to datasets at first; a plan is ready."""
        if isinstance(dataset, Plan):
            return dataset
        trl: Any = super()
        return trl._prepare_dataset(dataset, *args, **kwargs)

    def _count_for_trl(self, tokens: int) -> None:
        """Correct TRL's count, which takes a microbatch with position_ids for one row."""
        setattr(self, _TRL_COUNT, tokens)
        trl: Any = self
        trl._metrics["train"]["num_tokens"] = [tokens]


def num_targets(inputs: Mapping[str, Any]) -> int:
    """Targets that a causal model of transformers computes the loss of a microbatch from."""
    shifted = inputs.get("shift_labels")
    if shifted is None:
        shifted = inputs["labels"][..., 1:]
    return int((shifted != IGNORE).sum())


def _default_options(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of TokenLoader where none are given. TRL's SFTTrainer asks for position_ids in every batch."""
    format = given.get("format", "hf")
    if format == "hf" and any(base.__module__.startswith("trl.") for base in kind.__mro__):
        return {"format": format, "fields": ("input_ids", "labels", "shift_labels", "position_ids")}
    return {"format": format}
