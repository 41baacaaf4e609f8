"""TokenTrainerMixin and ResumeCallback: train plans with the Trainer of transformers and resume exactly on any number of ranks.

    class TokenTrainer(TokenTrainerMixin, Trainer): ...

    args = TrainingArguments(output_dir, num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                             ignore_data_skip=True)
    TokenTrainer(model, args, train_plan=plan, eval_plan=val_plan).train(resume_from_checkpoint=...)

The Trainer counts its updates, and this number determines where the plan continues. The loaders are not DataLoaders: so
Accelerate does not divide the data of a rank among the ranks again.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenstore.batches.gather import IGNORE
from tokenstore.errors import ConfigError, how_to_install
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.formats import check_fields
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_accumulation,
    evaluation_loader,
    microbatches_per_step,
    state_after,
    step_after,
    updates_per_pass,
    warn_if_repeated,
)

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"transformers is not installed; {how_to_install('huggingface')}") from error


if TYPE_CHECKING:  # the mixin has no base, but is only used in front of Trainer
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

_TRL_COUNT = "_total_train_tokens"  # attribute of SFTTrainer: the tokens trained so far, over all ranks


class ResumeCallback(TrainerCallback, ExportableState):
    """Continues at the step after the Trainer's updates. Saves the plan's state in checkpoints and checks it when resuming.

    For a Trainer whose `get_train_dataloader` returns a TokenLoader; with other data it does nothing. TokenTrainerMixin adds
    this callback by itself.

    Attributes:
        plan_state: the state of the plan after the updates so far; {} before the first.

    Example:
        >>> trainer = MyTrainer(model, args, callbacks=[ResumeCallback()])
        >>> trainer.train(resume_from_checkpoint=True)
    """

    def __init__(self) -> None:
        """Make a callback. It receives the loader when training begins."""
        self.plan_state: dict[str, Any] = {}
        self._plan: Plan | None = None

    def state(self) -> dict[str, Any]:
        """The state of the plan after the updates so far. The Trainer writes it to trainer_state.json."""
        return {"args": {}, "attributes": {"plan_state": self.plan_state}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Move the loader to the step after the Trainer's updates.

        Raises:
            ConfigError: ignore_data_skip is off, so the Trainer would skip the same data again.
            StateMismatchError: the checkpoint is from a run with another history.
        """
        name = type(self).__name__
        state.stateful_callbacks.setdefault(name, self.state())  # the Trainer fails if a checkpoint has no entry
        plan = getattr(train_dataloader, "plan", None)
        if not isinstance(plan, Plan):
            return
        self._plan = plan
        if state.global_step and not args.ignore_data_skip:
            raise ConfigError(
                f"ignore_data_skip: expected True, found {args.ignore_data_skip}; the loader resumes by itself, and the Trainer"
                f" would skip {state.global_step} updates again; set TrainingArguments(ignore_data_skip=True)"
            )
        saved = (state.stateful_callbacks.get(name) or {}).get("attributes", {}).get("plan_state")
        if state.global_step and saved:
            plan.check_state(saved)
        train_dataloader.load_state_dict(plan.state(step_after(plan, state.global_step)))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the state of the plan, and correct the epoch, which the Trainer counts from the step at which it resumed."""
        if self._plan is None:
            return
        self.plan_state = state_after(self._plan, state.global_step)
        if updates := updates_per_pass(self._plan) or state.max_steps:
            state.epoch = state.global_step / updates


class TokenTrainerMixin(_Trainer):
    """A mixin in front of `Trainer` that trains and evaluates plans. Each process loads the part of its data-parallel rank.

    An update is a step of the plan: per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks must
    equal its global_batch_size. An epoch is a pass over the plan: set num_train_epochs=1, or max_steps for an endless plan.
    To resume, set `ignore_data_skip=True`.

    The loss of an evaluation is the mean over all targets of the plan; a plan with several sources also gives that of each, as
    `eval_<source>_loss`. The Trainer calls models without a cache, so
    documents of a row are isolated if `loader_options` include position_ids. SFTTrainer of TRL requires position_ids, so
    they are its default. It needs no `train_dataset` besides a plan.

    Attributes:
        train_plan: the plan to train; None: the Trainer's own dataset.

    Example:
        >>> class TokenTrainer(TokenTrainerMixin, Trainer): ...
        >>> args = TrainingArguments(
        ...     "out", num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, ignore_data_skip=True
        ... )
        >>> TokenTrainer(model, args, train_plan=Plan("plan.yaml"), eval_plan=Plan("val.yaml")).train()
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
        """Make a Trainer. All other arguments are those of the Trainer.

        Args:
            train_plan: the plan to train, instead of `train_dataset`.
            eval_plan: a plan to evaluate completely each time, or several by name, instead of `eval_dataset`. It must not be
                endless. `trainer.evaluate(plan)` accepts a plan too.
            rank: data-parallel rank and world size. Default: those of the process; ranks of tensor and context parallelism
                count as one.
            loader_options: options of TokenLoader: fields, format (default: "hf"), max_documents, pin_memory, device, dtype,
                readahead, prefetch.

        Raises:
            ConfigError: an option does not fit the models of transformers.
        """
        _check_options(loader_options or {})
        self.train_plan, self._rank = train_plan, rank
        self._loader_options = {**_default_options(type(self), dict(loader_options or {})), **(loader_options or {})}
        self._evaluation: Evaluation | None = None  # while a plan is evaluated
        if eval_plan is not None:
            kwargs["eval_dataset"] = eval_plan
        if train_plan is not None and _is_trl(type(self)):
            kwargs.setdefault("train_dataset", _placeholder())
        super().__init__(*args, **kwargs)
        if not any(isinstance(callback, ResumeCallback) for callback in self.callback_handler.callbacks):
            self.add_callback(ResumeCallback())

    @property
    def data_rank(self) -> DataRank:
        """The data-parallel rank of this process. Raises: ConfigError: sequence parallelism is on and no rank was given."""
        if self._rank is not None:
            return self._rank
        if self.get_sp_size() > 1:
            raise ConfigError(
                f"rank: with {self.get_sp_size()} ranks of sequence parallelism the data-parallel rank is not known; pass"
                " rank=DataRank(...)"
            )
        peers = self.get_tp_size() * self.get_cp_size()  # consecutive processes that train on the same batch
        return DataRank(self.args.process_index // peers, self.args.world_size // peers)

    def get_train_dataloader(self) -> Any:
        """The microbatches of this rank, from the step after the updates so far.

        Raises: ConfigError: an update of the Trainer is not a step of the plan, or the cache is on with position_ids.
        """
        if (plan := self.train_plan) is None:
            return super().get_train_dataloader()
        self._check_cache()
        options = {"rank": self.data_rank, "microbatch_size": self._train_batch_size, **self._loader_options}
        loader = PlacedLoader(plan, lambda: self.state.global_step, **options)
        expected = microbatches_per_step(plan, self.data_rank.world_size, options["microbatch_size"])
        check_accumulation("gradient_accumulation_steps", self.args.gradient_accumulation_steps, expected, plan)
        epochs = self.args.num_train_epochs * (updates_per_pass(plan) or 0)
        updates = self.args.max_steps if self.args.max_steps > 0 else epochs
        warn_if_repeated(plan, updates, "Set TrainingArguments(num_train_epochs=1) (its default is 3), or max_steps")
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The microbatches of this rank for a whole plan, equally many on every rank. Raises: ConfigError: the plan is endless."""
        own: Any = self.eval_dataset
        plan = own if eval_dataset is None else eval_dataset
        plan = own[plan] if isinstance(plan, str) else plan
        if not isinstance(plan, Plan):
            return super().get_eval_dataloader(eval_dataset)
        self._check_cache()
        options = {**self._loader_options, "microbatch_size": self.args.eval_batch_size}
        return evaluation_loader(plan, rank=self.data_rank, **options)

    def _check_cache(self) -> None:
        """Refuse a cache if position_ids isolate documents: transformers uses them for this only without a cache."""
        fields = check_fields(self._loader_options.get("fields"), self._loader_options["format"])
        if self.args.use_cache and "position_ids" in fields:
            raise ConfigError(
                "use_cache: with a cache, documents of a row attend to each other in spite of their position_ids; set"
                " TrainingArguments(use_cache=False)"
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
        """Evaluate. For a plan, the loss is the mean over all targets; the Trainer's is the mean over microbatches."""
        loop: Callable[[str], Any] = partial(
            super().evaluation_loop, dataloader, description, prediction_loss_only, ignore_keys
        )
        if not isinstance(dataloader, Evaluation):
            return loop(metric_key_prefix)
        self._evaluation = dataloader
        try:
            output = loop(metric_key_prefix)
        finally:
            self._evaluation = None
        sums = dataloader.sums
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device))
        result = dataloader.result(sums=sums)
        if result.targets:
            output.metrics[f"{metric_key_prefix}_loss"] = result.loss
            if len(result.sources) > 1:
                losses = {name: each.loss for name, each in result.sources.items() if each.targets}
                output.metrics.update({f"{metric_key_prefix}_{name}_loss": loss for name, loss in losses.items()})
        return output

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a microbatch and add its loss."""
        step = super().prediction_step(model, inputs, *args, **kwargs)
        if self._evaluation is not None and step[0] is not None:
            self._evaluation.add(inputs, step[0], "mean")
        return step

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Any:
        """The Trainer's loss; in an evaluation, the mean over the targets of this rank's microbatch."""
        if self._evaluation is not None:
            num_items_in_batch = None
        before, size = getattr(self, _TRL_COUNT, None), inputs["input_ids"].numel() if "input_ids" in inputs else 0
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch, **kwargs)
        if before is not None and self.train_plan is not None and self.model is not None and self.model.training:
            self._count_for_trl(before + size * self.data_rank.world_size)
        return loss

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's preparation of datasets, which plans and the dataset in place of the training plan do not need."""
        if isinstance(dataset, Plan) or (self.train_plan is not None and "train" in (args[-1:] or kwargs.values())):
            return dataset
        trl: Any = super()
        return trl._prepare_dataset(dataset, *args, **kwargs)

    def _count_for_trl(self, tokens: int) -> None:
        """Correct TRL's number of tokens: TRL counts a microbatch with position_ids as one row."""
        setattr(self, _TRL_COUNT, tokens)
        trl: Any = self
        trl._metrics["train"]["num_tokens"] = [tokens]


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that the models of transformers do not support."""
    if options.get("ignore_index") not in (None, IGNORE):
        raise ConfigError(
            f"ignore_index: expected {IGNORE}, which the losses of transformers ignore, found {options['ignore_index']}; omit it"
        )
    dtype = str(options.get("dtype", "int64")).removeprefix("torch.")
    if dtype not in ("int64", "int32"):
        raise ConfigError(f"dtype: expected int64 or int32, which embeddings accept, found {dtype}; omit it")


def _default_options(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Default options of TokenLoader. TRL's SFTTrainer needs position_ids in every batch."""
    format = given.get("format", "hf")
    if format == "hf" and _is_trl(kind):
        return {"format": format, "fields": ("input_ids", "labels", "shift_labels", "position_ids")}
    return {"format": format}


def _is_trl(kind: type) -> bool:
    """Whether a Trainer class is from TRL."""
    return any(base.__module__.startswith("trl.") for base in kind.__mro__)


def _placeholder() -> Any:
    """A dataset of one example. TRL requires a dataset and looks at its first example; a plan is trained instead."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
