"""TokenTrainerMixin and ResumeCallback: plans for the Trainer of transformers, resumed exactly with any number of ranks.

    class TokenTrainer(TokenTrainerMixin, Trainer): ...

    args = TrainingArguments(output_dir, num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                             ignore_data_skip=True)
    TokenTrainer(model, args, train_plan=plan, eval_plan=val_plan).train(resume_from_checkpoint=...)

The Trainer counts its updates, and that count says where the plan goes on. Its loaders are no DataLoaders, so that Accelerate
neither splits nor deals out again what is a rank's own already.
"""

from collections.abc import Mapping
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.sampling.plan import Plan
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.trainers import (
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
        if updates := updates_a_pass(self._plan):
            state.epoch = state.global_step / updates


class TokenTrainerMixin:
    """Before `Trainer` among a class's bases: trains a plan and evaluates plans, each process its data rank's part.

    An update is a step of the plan: per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks must be
    its global_batch_size. An epoch is a pass over the plan, so num_train_epochs is 1. To resume, the arguments need
    `ignore_data_skip=True`.
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
        self._loader_options = {"format": "hf", **(loader_options or {})}
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
        plan = self.eval_dataset if eval_dataset is None else eval_dataset
        plan = self.eval_dataset[plan] if isinstance(plan, str) else plan
        if not isinstance(plan, Plan):
            return super().get_eval_dataloader(eval_dataset)
        options = {**self._loader_options, "microbatch_size": self.args.eval_batch_size}
        return evaluation_loader(plan, rank=self.data_rank, **options)
