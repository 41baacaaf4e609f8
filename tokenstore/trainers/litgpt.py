"""TokenData: a data module for `litgpt pretrain`.

    litgpt pretrain pythia-160m --data tokenstore.trainers.litgpt.TokenData --data.plan plan.yaml --data.val_plan val.yaml
        --train.global_batch_size 8 --train.max_seq_length 2048 --resume auto

litgpt slices a batch of L + 1 tokens into inputs and targets. In such rows a token that is not in the loss cannot be marked,
so documents would predict the first token of the next one. TokenData yields batches whose second slice is the targets of the
plan: -100 at the end of a document, at masked tokens and on padding, which litgpt's loss ignores.

The position is the number of microbatches that the training used. litgpt fetches one more at its end, which does not count.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_updates,
    evaluation_loader,
    microbatches_per_step,
    state_after,
)

try:
    from litgpt.data import DataModule
except ImportError as error:
    raise ImportError("litgpt is not installed; pip install litgpt") from error


class TokenData(DataModule):
    """The plans of a pretraining run with litgpt.

    An update is a step of the plan, so `--train.global_batch_size` must be the plan's. A checkpoint resumes with any number
    of devices. litgpt counts the iterations of a device, so choose `--train.micro_batch_size` such that the iterations per
    step stay the same: half of it with twice the devices.

    Example:
        >>> litgpt.pretrain.setup("pythia-160m", data=TokenData("plan.yaml", "val.yaml"), resume="auto", ...)
    """

    def __init__(self, plan: str, val_plan: str | None = None, prefetch: int = 0):
        """Make a data module. Nothing is read yet.

        Args:
            plan: path of the plan to train.
            val_plan: path of the plan to evaluate. It must not be endless. litgpt evaluates at most `--eval.max_iters`
                microbatches of it, and reports the mean over the microbatches of one device. None: the first step of `plan`.
            prefetch: microbatches to make ahead in a thread, as in TokenLoader.
        """
        super().__init__()
        self.plan, self.val_plan = Plan(plan), Plan(val_plan) if val_plan else None
        self._options: AllOptions = {"prefetch": prefetch}

    def connect(
        self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None, **kwargs: Any
    ) -> None:
        """Called by litgpt with its settings.

        Raises: ConfigError: the length of litgpt's sequences is not that of the plan.
        """
        self._options["microbatch_size"] = batch_size
        for plan in (self.plan, self.val_plan or self.plan):
            if max_seq_length != plan.config.sequence_length:
                raise ConfigError(
                    f"max_seq_length: expected {plan.config.sequence_length}, the sequence_length of the plan, found"
                    f" {max_seq_length}; set --train.max_seq_length"
                )

    def train_dataloader(self) -> "PlanDataLoader":
        """The microbatches of this rank."""
        return PlanDataLoader(self.plan, self._options)

    def val_dataloader(self) -> DataLoader[Any]:
        """The microbatches of this rank of the whole plan to evaluate, or of the first step of the plan to train."""
        if self.val_plan is None:
            return PlanDataLoader(self.plan, self._options, steps=1)
        return PlanDataLoader(self.val_plan, self._options, evaluation=True)


class PlanDataLoader(DataLoader[Any]):
    """The microbatches of a plan, as a DataLoader, which Fabric requires. It has no worker processes.

    Its position is the step after those whose microbatches have all been used.
    """

    def __init__(self, plan: Plan, options: AllOptions, evaluation: bool = False, steps: int | None = None):
        """Make a loader.

        Args:
            plan: the plan.
            options: options of TokenLoader.
            evaluation: begin at step 0 in each iteration, and skip empty microbatches.
            steps: the number of steps of an iteration. None: to the end of the plan.
        """
        self.plan = plan
        self._start, self._used = 0, 0
        options = {**options, "rank": DataRank.from_environment()}
        self._per_step = microbatches_per_step(plan, DataRank.from_environment().world_size, options["microbatch_size"])
        self._loader = (
            evaluation_loader(plan, **options) if evaluation else PlacedLoader(plan, self._num_updates, **options)
        )
        self._fixed, self._steps = evaluation or steps is not None, steps
        super().__init__(_Nothing(), batch_size=None)

    def _num_updates(self) -> int:
        return self._start + (0 if self._fixed else self._used // self._per_step)

    def __iter__(self) -> Iterator["ShiftedRows"]:  # type: ignore[override]  # DataLoader has its own iterators
        self._start, self._used = self._num_updates(), 0
        most = None if self._steps is None else self._steps * self._per_step
        for number, batch in enumerate(self._loader):
            if number == most:
                return
            yield ShiftedRows(batch["input_ids"], batch["targets"], self)

    def __len__(self) -> int:
        return len(self._loader) if self._steps is None else self._steps * self._per_step

    def count(self) -> None:
        """Count a microbatch as used."""
        self._used += 1

    def state_dict(self) -> dict[str, Any]:
        """The state of the plan at the first step that was not trained completely, and the updates so far."""
        return {"plan": state_after(self.plan, self._num_updates()), "updates": self._num_updates()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. {} is ignored.

        Raises: StateMismatchError: it is from a run with another history, or is damaged.
        """
        if not (isinstance(state, Mapping) and not state):
            self._start, self._used = check_updates(self.plan, state, ("plan", "updates"), "updates"), 0


class ShiftedRows:
    """A microbatch as litgpt slices it: `[:, 0:L]` is the inputs, and `[:, 1:L + 1]` the targets of the plan."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, loader: PlanDataLoader):
        """Hold int64[B, L] inputs and targets. Slicing the inputs is counted by the loader."""
        self._inputs, self._targets, self._loader = inputs, targets, loader

    def __getitem__(self, key: tuple[slice, slice]) -> torch.Tensor:
        length = self._inputs.shape[1]
        rows, columns = key
        if columns == slice(0, length):
            self._loader.count()
            return self._inputs[rows]
        if columns == slice(1, length + 1):
            return self._targets[rows]
        raise IndexError(f"microbatch: expected [:, 0:{length}] or [:, 1:{length + 1}], found {columns}")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The microbatch on another device."""
        moved = self._inputs.to(*args, **kwargs), self._targets.to(*args, **kwargs)
        return type(self)(*moved, self._loader)


class _Nothing(torch.utils.data.IterableDataset[Any]):
    """The dataset of a loader that needs none. Fabric leaves the sampler of an iterable one alone."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())
