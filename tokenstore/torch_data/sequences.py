"""SequenceDataset: every sequence of a plan by its number, for custom samplers."""

import operator
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Literal, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenstore.order.schedule import MOST_SEQUENCES
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.store.files import renew_after_fork
from tokenstore.torch_data.formats import DictFormat, TupleFormat, check_fields
from tokenstore.torch_data.resharding import check_sampler
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT


class SequenceDataset(Dataset[BatchT], Generic[BatchT]):
    """The rows of all steps of a plan, one after the other: `dataset[n]` is row n of the run over all ranks.

    Row r of step k, as `plan.batch(k)` numbers it, is sequence plan.schedule.cursor(k) + r; those of skipped steps are
    numbered too. Use it with `DataLoader` and any sampler, in any number of workers; a batch is read by one call of a
    kernel. For the plan's own order, by rank, use TokenLoader. The Trainer of transformers shuffles datasets, which is
    refused: set `train_sampling_strategy="sequential"`, or use TokenTrainerMixin.

    It can be shared among threads, and pickles as its configuration.
    """

    # A type checker knows what a batch is by `format` and `fields`; names of arguments are checked too
    @overload
    def __init__(
        self: "SequenceDataset[Batch]",
        plan: Plan | str | Path,
        *,
        fields: None = None,
        format: Literal["torch"] = "torch",
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[tuple[dict[str, torch.Tensor], torch.Tensor]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: TupleFormat,
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[dict[str, Any]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: DictFormat = "torch",
    ) -> None: ...
    @overload
    def __init__(
        self: "SequenceDataset[Any]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: str,
    ) -> None: ...
    def __init__(self, plan: Plan | str | Path, *, fields: Sequence[str] | None = None, format: str = "torch"):
        """fields, format: those of TokenLoader that can be cut into rows: all but flat formats, cu_seqlens and max_seqlen."""
        self.plan = plan = as_plan(plan)
        self._format, self._fields = format, check_fields(fields, format, by_row=True)
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
        """Number of sequences of the whole plan. Raises: TypeError: it is endless."""
        if self.plan.num_steps is None:
            raise TypeError("dataset: expected a plan with num_steps to have a length, found an endless one")
        return self.plan.schedule.cursor(self.plan.num_steps)

    def __getitem__(self, number: int) -> BatchT:
        """Sequence `number`, in the format's shape without the first dimension. A negative number counts from the end."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[BatchT]:
        """Those sequences, read together: the items are parts of one batch's memory."""
        numbers = [self._check(number) for number in numbers]
        if not numbers:
            return []
        with self._lock:
            if self._maker is None:
                check_sampler(self, self.plan)
                self._maker = BatchMaker(self.plan, self._format, self._fields)
            located = np.empty((len(numbers), 2), np.int64)
            by_number = np.argsort(numbers, kind="stable")  # so that the tables of a stage are made once
            located[by_number] = self._maker.sampler.locate_places(
                [self._place(numbers[i]) for i in by_number.tolist()]
            )
            batch = self._maker.make_of(located)
        return [_row(batch, i) for i in range(len(numbers))]

    def _place(self, number: int) -> tuple[int, int, int]:
        """(step, first row, rows) of a sequence."""
        step = self.plan.schedule.step_of(number)
        return step, number - self.plan.schedule.cursor(step), 1

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Accelerate calls it in every process, before workers start."""
        check_sampler(self, self.plan)

    def _check(self, number: int) -> int:
        """`number` as an int, counted from the start."""
        given = operator.index(number)
        most = MOST_SEQUENCES if self.plan.num_steps is None else len(self)
        number = given + most if given < 0 and self.plan.num_steps is not None else given
        if not 0 <= number < most:
            raise IndexError(f"sequence: expected one of {most}, found {given}; ask for a number in 0..{most - 1}")
        return number


def _row(batch: Any, i: int) -> Any:
    """Item i of every tensor of a batch."""
    if isinstance(batch, dict):
        return {name: tensor[i] for name, tensor in batch.items()}
    return tuple(_row(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]
