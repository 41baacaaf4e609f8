"""SequenceDataset: the sequences of a plan by number, for custom samplers."""

import operator
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Unpack, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenstore.order.schedule import MOST_SEQUENCES
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.store.files import renew_after_fork
from tokenstore.torch_data.formats import DictFormat, TupleFormat
from tokenstore.torch_data.options import ContentOptions, check_contents
from tokenstore.torch_data.resharding import check_sampler
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT


class SequenceDataset(Dataset[BatchT], Generic[BatchT]):
    """A map-style dataset of all sequences of a plan: `dataset[n]` is sequence n of the run, over all ranks.

    Row r of step k, as in `plan.batch(k)`, is sequence `plan.schedule.cursor(k) + r`. The sequences of skipped steps are
    numbered too.

    Use it with a `DataLoader`, any sampler and any number of workers; the sequences of a batch are read together. To read
    the plan in order, use TokenLoader. The Trainer of transformers shuffles datasets by default, which raises ConfigError
    here: use `train_sampling_strategy="sequential"`, or TokenTrainerMixin.

    The dataset can be shared among threads and pickled (by configuration).

    Attributes:
        plan: the plan.

    Example:
        >>> dataset = SequenceDataset("plan.yaml")
        >>> dataset[0]["input_ids"].shape  # sequence_length: 2048
        torch.Size([2048])
        >>> loader = DataLoader(dataset, batch_size=4, sampler=my_sampler)
    """

    # The overloads let a type checker derive the type of a sequence from `format` and `fields`, and check argument names
    @overload
    def __init__(
        self: "SequenceDataset[Batch]",
        plan: Plan | str | Path,
        *,
        fields: None = None,
        format: Literal["torch"] = "torch",
        **options: Unpack[ContentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[tuple[dict[str, torch.Tensor], torch.Tensor]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: TupleFormat,
        **options: Unpack[ContentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[dict[str, Any]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: DictFormat = "torch",
        **options: Unpack[ContentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[Any]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: str,
        **options: Unpack[ContentOptions],
    ) -> None: ...
    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        **options: Unpack[ContentOptions],
    ):
        """Create a dataset. It reads no tokens before the first sequence.

        Args:
            plan: a Plan, or the path of a plan file.
            fields: as in TokenLoader, except cu_seqlens and max_seqlen of the formats "torch" and "hf", which describe a
                batch as a whole.
            format: as in TokenLoader, except "hf_flash" and "torchtitan_flat", which join the rows of a batch.
            options: ignore_index and dtype, as in TokenLoader.

        Raises:
            ConfigError: the plan file is invalid.
            ValueError: an argument has an invalid value.
        """
        self.plan = plan = as_plan(plan)
        self._contents = check_contents(plan, format, fields, by_row=True, **options)
        self._hold_nothing()
        renew_after_fork(self, SequenceDataset._hold_nothing)

    def _hold_nothing(self) -> None:
        self._maker: BatchMaker | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_maker", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold_nothing()
        renew_after_fork(self, SequenceDataset._hold_nothing)

    def __len__(self) -> int:
        """The number of sequences in the whole plan.

        Raises:
            TypeError: the plan is endless.
        """
        if self.plan.num_steps is None:
            raise TypeError("dataset: an endless plan has no length; set num_steps in the plan")
        return self.plan.schedule.cursor(self.plan.num_steps)

    def __getitem__(self, number: int) -> BatchT:
        """One sequence: the fields of a batch of the format, without their first dimension.

        Args:
            number: number of the sequence. A negative one counts from the end, unless the plan is endless.

        Raises:
            IndexError: there is no such sequence.
        """
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[BatchT]:
        """Several sequences, read together. Their tensors are views of one batch."""
        numbers = [self._check(number) for number in numbers]
        if not numbers:
            return []
        with self._lock:
            if self._maker is None:
                check_sampler(self, self.plan)
                self._maker = BatchMaker(self.plan, self._contents)
            located = np.empty((len(numbers), 2), np.int64)
            by_number = np.argsort(numbers, kind="stable")  # so that the tables of each stage are made only once
            located[by_number] = self._maker.sampler.locate_places(
                [self._place(numbers[i]) for i in by_number.tolist()]
            )
            batch = self._maker.make_of(located)
        return [_row(batch, i) for i in range(len(numbers))]

    def _place(self, number: int) -> tuple[int, int, int]:
        """(step, first row, number of rows) of a sequence."""
        step = self.plan.schedule.step_of(number)
        return step, number - self.plan.schedule.cursor(step), 1

    def set_epoch(self, epoch: int) -> None:
        """Has no effect on the order, because each source counts its own epochs.

        Accelerate calls it in every process before workers start, so it is a place to check how Accelerate reads the dataset.

        Raises:
            ConfigError: Accelerate would shuffle the sequences, or read those of skipped steps.
        """
        check_sampler(self, self.plan)

    def _check(self, number: int) -> int:
        """`number` as an int, counted from the start. Raises: IndexError: there is no such sequence."""
        given = operator.index(number)
        most = MOST_SEQUENCES if self.plan.num_steps is None else len(self)
        number = given + most if given < 0 and self.plan.num_steps is not None else given
        if not 0 <= number < most:
            raise IndexError(f"sequence: expected a number in 0..{most - 1}, found {given}")
        return number


def _row(batch: Any, i: int) -> Any:
    """Item i of every tensor of a batch."""
    if isinstance(batch, dict):
        return {name: tensor[i] for name, tensor in batch.items()}
    return tuple(_row(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]
