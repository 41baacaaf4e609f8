"""TokenDataset: a plan for `torch.utils.data.DataLoader`, in exact order for any number of workers."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, Self, Unpack, overload

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.format.differences import short
from tokenstore.planning.history import check_keys
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.formats import DictFormat, TupleFormat, check_fields
from tokenstore.torch_data.position import ProcessSplit, SharedOptions, Split, check_inside_step, rest_of_step
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.resharding import check_dealing
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT

_VERSION = 1
_KEYS = ("state_version", "plan", "worker", "num_workers", "microbatch_rows", "to_skip")


class TokenDataset(IterableDataset[BatchT], Generic[BatchT]):
    """Whole microbatches of a plan: use `DataLoader(TokenDataset(plan, ...), batch_size=None, num_workers=n)`.

    Worker w of n yields microbatches w, w + n, ... DataLoader reads from its workers in turn, so the order is that of
    one process. TokenLoader is faster, and its state fits any number of ranks; this class is for code that requires a
    DataLoader. It pickles as its configuration, so workers may be started by fork, spawn or forkserver.

    Under Accelerate, and so in the Trainer of transformers, use TokenLoader or TokenTrainerMixin instead. With several
    processes Accelerate distributes the batches of process 0. So a dataset of one rank of several is refused there; one with
    `rank=0, world_size=1` is distributed correctly.

    Every iteration begins at `step`. The state belongs to the iterators, because nothing can reach the workers' copies
    of a dataset. torchdata's `StatefulDataLoader` saves and restores it exactly, with the same num_workers.
    """

    # A type checker knows what a batch is by `format` and `fields`; names of options are checked too
    @overload
    def __init__(
        self: "TokenDataset[Batch]",
        plan: Plan | str | Path,
        *,
        fields: None = None,
        format: Literal["torch"] = "torch",
        **options: Unpack[SharedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenDataset[tuple[dict[str, torch.Tensor], torch.Tensor]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: TupleFormat,
        **options: Unpack[SharedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenDataset[dict[str, Any]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: DictFormat = "torch",
        **options: Unpack[SharedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenDataset[Any]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: str,
        **options: Unpack[SharedOptions],
    ) -> None: ...
    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        rank: int | DataRank | None = None,
        world_size: int | None = None,
        microbatch_size: int | None = None,
        step: int = 0,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        max_documents: int | None = None,
        inside_step: str = "warn",
        skip_empty: bool = False,
    ):
        """Arguments are those of TokenLoader (`plan` may be the path of a plan file). To pin memory, use DataLoader's
        option.

        With several workers a state does not show whether it is inside a step: there is no warning, and "rewind" is an
        error.
        """
        self.plan = plan = as_plan(plan)
        self.step = plan.check_start(step)
        self._process_split = ProcessSplit(plan, rank, world_size, microbatch_size, skip_empty)
        self.inside_step = check_inside_step(inside_step)
        self._format, self._fields, self._max_documents = format, check_fields(fields, format), max_documents

    @property
    def split(self) -> Split:
        """The part of this process in every step."""
        return self._process_split.now()

    def fixed_split(self) -> Split:
        """The same, and constant from now on, even if the environment changes."""
        return self._process_split.fix()

    def __iter__(self) -> "Microbatches[BatchT]":
        check_dealing(self, self.fixed_split())
        return Microbatches(self)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Accelerate calls it in every process, before workers start."""
        check_dealing(self, self.split)

    def __len__(self) -> int:
        """Microbatches of one iteration over all workers, from `step` on. Raises: TypeError: the plan is endless."""
        total = self.split.num_microbatches(self.step)
        if total is None:
            raise TypeError("dataset: expected a plan with num_steps to have a length, found an endless one")
        return total

    def maker(self) -> BatchMaker:
        """What makes the batches, for one thread of this process."""
        return BatchMaker(self.plan, self._format, self._fields, max_documents=self._max_documents)


class Microbatches(Iterator[BatchT], Generic[BatchT]):
    """One iteration over a TokenDataset in one worker, with its state; nothing is read before the first batch."""

    def __init__(self, dataset: TokenDataset[BatchT]):
        worker = get_worker_info()
        self._worker, self._num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        self._dataset, self._split = dataset, dataset.split
        self._maker: BatchMaker | None = None
        self._go_to(dataset.step, 0, self._worker)

    def _go_to(self, step: int, given: int, to_skip: int) -> None:
        """Continue at a place of the plan, after `to_skip` microbatches that belong to other workers."""
        self._step, self._given, self._to_skip = step, given, to_skip
        self._batches: Iterator[tuple[Any, BatchT]] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchT:
        try:
            (_, _, _, next_step, given), batch = next(self._batches or self._start_batches())
        except BaseException:  # the iterator failed; the next call begins at the same position
            self._batches = None
            raise
        self._step, self._given, self._to_skip = next_step, given, self._num_workers - 1
        return batch

    def _start_batches(self) -> Iterator[tuple[Any, BatchT]]:
        """Every place of this worker from here on, and its batch."""
        self._maker = self._maker or self._dataset.maker()
        places = self._split.places(self._step, self._given)
        self._batches = self._maker.batches(islice(places, self._to_skip, None, self._num_workers))
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """The position of this worker, after its last batch."""
        plan = self._dataset.plan
        return {
            "state_version": _VERSION,
            "plan": plan.state(self._step, plan.schedule.cursor(self._step) + self._given),
            "worker": self._worker,
            "num_workers": self._num_workers,
            "microbatch_rows": self._split.microbatch_rows,
            "to_skip": self._to_skip,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of the same worker; {} does nothing.

        Raises: StateMismatchError: it is from another plan, another number of workers, or other microbatches.
            ConfigError: the state is inside a step whose rest does not divide among the ranks.
        """
        if isinstance(state, Mapping) and not state:
            return
        hint = "; a TokenDataset loads only states of its own iterators: load the state of a loader into that loader"
        check_keys(state, _KEYS, hint)
        if type(state["state_version"]) is not int or state["state_version"] != _VERSION:
            raise StateMismatchError(
                f"state version: expected {_VERSION}, found {short(state['state_version'])}; use the tokenstore that saved it"
            )
        if (state["worker"], state["num_workers"]) != (self._worker, self._num_workers):
            raise StateMismatchError(
                f"num_workers: expected {short(state['num_workers'])} as when the state was saved, found {self._num_workers};"
                f" use num_workers={short(state['num_workers'])}, or TokenLoader, whose state fits any number"
            )
        if state["microbatch_rows"] != self._split.microbatch_rows:
            raise StateMismatchError(
                "microbatch_size x world_size: expected that of the run that saved the state,"
                f" {short(state['microbatch_rows'] or 'a whole step')},"
                f" found {self._split.microbatch_rows or 'a whole step'}; use TokenLoader to change it"
            )
        to_skip = state["to_skip"]
        if type(to_skip) is not int or not 0 <= to_skip < self._num_workers:
            raise StateMismatchError(
                f"state: expected to_skip in 0..{self._num_workers - 1}, found {short(to_skip)}; the checkpoint is damaged"
            )
        step, given = self._dataset.plan.check_state(state["plan"])
        if self._dataset.inside_step != "rewind":
            self._split.check_inside(step, given)
        self._go_to(step, self._rest(step, given), to_skip)

    def _rest(self, step: int, given: int) -> int:
        """Rows of `step` that count as used. With several workers, each knows its own position, but not that of the
        run.
        """
        choice = self._dataset.inside_step
        if self._num_workers == 1:
            return rest_of_step(self._dataset.plan, step, given, choice)
        if choice == "rewind":
            raise ConfigError(
                f'inside_step: "rewind" is possible with one worker, and there are {self._num_workers}; use TokenLoader,'
                " or TokenDataset(plan, step=...) without a state"
            )
        return given
