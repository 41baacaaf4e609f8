"""TokenDataset: the microbatches of a plan through a DataLoader, in exact order for any number of workers."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Self, Unpack, overload

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenstore.batches.places import Place
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.format.differences import short
from tokenstore.planning.history import check_keys
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.formats import DictFormat, TupleFormat
from tokenstore.torch_data.options import SharedOptions, check_contents
from tokenstore.torch_data.position import (
    BatchInfo,
    ProcessSplit,
    Split,
)
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.resharding import check_dealing
from tokenstore.torch_data.states import check_inside_step, rest_of_step, rows_used
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT

_VERSION = 1
_KEYS = ("state_version", "plan", "worker", "num_workers", "microbatch_rows", "to_skip")


class TokenDataset(IterableDataset[BatchT], Generic[BatchT]):
    """An iterable dataset of whole microbatches, for code that requires a `torch.utils.data.DataLoader`.

    Elsewhere use TokenLoader: it is faster, and its state fits any number of ranks.

    Pass `batch_size=None` to the DataLoader. Worker w of n makes microbatches w, w + n, ..., and the DataLoader takes a batch
    from each worker in turn, so the order is the same for any number of workers. The dataset is pickled by configuration, so
    workers may be started by fork, spawn or forkserver.

    With Accelerate, and so with the Trainer of transformers, use TokenLoader or TokenTrainerMixin instead. If there are several
    processes, Accelerate distributes the batches that process 0 reads to all of them. This works for a dataset with
    `rank=0, world_size=1`; a dataset of one of several ranks raises ConfigError.

    Every iteration starts at `step`. The state is in the iterators, because each worker iterates over its own copy of the
    dataset. The `StatefulDataLoader` of torchdata saves and restores it exactly, with the same num_workers.

    Attributes:
        plan: the plan.
        step: the step at which every iteration starts.
        inside_step: see the argument.

    Example:
        >>> dataset = TokenDataset("plan.yaml", microbatch_size=4)
        >>> loader = DataLoader(dataset, batch_size=None, num_workers=2)
    """

    # The overloads let a type checker derive the type of a batch from `format` and `fields`, and check option names
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
        nodes: int | None = None,
        microbatch_size: int | None = None,
        step: int = 0,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        max_documents: int | None = None,
        ignore_index: int | None = None,
        dtype: torch.dtype | str = torch.int64,
        inside_step: str = "warn",
        skip_empty: bool = False,
    ):
        """Create a dataset. It reads no tokens before the first batch.

        Args:
            plan, rank, world_size, nodes, microbatch_size, step, fields, format, max_documents, ignore_index, dtype, skip_empty: as
                in TokenLoader.
            inside_step: as in TokenLoader, with at most one worker. With several, no worker knows whether the run is inside a
                step: "warn" does not warn, and "rewind" raises ConfigError.

        There is no `device` and no `pin_memory`, because batches may be made in worker processes: use `pin_memory` of the
        DataLoader, and move its batches to a device with `.to(device, non_blocking=True)`.

        Raises:
            ConfigError: in some stage, a step does not divide evenly among the ranks; or the plan file is invalid.
            ValueError: an argument has an invalid value.
        """
        self.plan = plan = as_plan(plan)
        self.step = plan.check_start(step)
        self._process_split = ProcessSplit(plan, rank, world_size, microbatch_size, skip_empty, nodes)
        self.inside_step = check_inside_step(inside_step)
        self._contents = check_contents(
            plan, format, fields, max_documents=max_documents, ignore_index=ignore_index, dtype=dtype
        )

    @property
    def split(self) -> Split:
        """The part of every step that this process loads."""
        return self._process_split.now()

    def fixed_split(self) -> Split:
        """The same, and fix it: later changes of the environment have no effect."""
        return self._process_split.fix()

    def __iter__(self) -> "Microbatches[BatchT]":
        check_dealing(self, self.fixed_split())
        return Microbatches(self)

    def switch_plan(self, plan: Plan | str | Path) -> NoReturn:
        """Not possible: each worker of a DataLoader has its own copy of the dataset, and has made batches ahead.

        Raises:
            ConfigError: always. It names the ways to continue with another plan.
        """
        raise ConfigError(
            "switch_plan: a DataLoader and its workers have made batches ahead; use TokenLoader, whose switch_plan discards"
            " them, or make a new DataLoader over TokenDataset(plan, step=...)"
        )

    def set_epoch(self, epoch: int) -> None:
        """Has no effect on the order, because each source counts its own epochs.

        Accelerate calls it in every process before workers start, so it is a place to check how Accelerate reads the dataset.

        Raises:
            ConfigError: Accelerate would distribute the wrong rows.
        """
        check_dealing(self, self.split)

    def __len__(self) -> int:
        """The number of microbatches in one iteration, from `step` on, over all workers.

        Raises:
            TypeError: the plan is endless.
        """
        total = self.split.num_microbatches(self.step)
        if total is None:
            raise TypeError("dataset: an endless plan has no length; set num_steps in the plan")
        return total

    def maker(self, is_dealt: bool = True) -> BatchMaker:
        """A new BatchMaker for one thread of this process. is_dealt: False for rows in the order of ORD-6."""
        return BatchMaker(self.plan, self._contents, rank=self.fixed_split().place if is_dealt else None)


class Microbatches(Iterator[BatchT], Generic[BatchT]):
    """One iteration over a TokenDataset in one worker, with its state. It reads no tokens before the first batch."""

    def __init__(self, dataset: TokenDataset[BatchT]):
        worker = get_worker_info()
        self._worker, self._num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        self._dataset, self._split = dataset, dataset.split
        self._maker: BatchMaker | None = None
        self._go_to(dataset.step, 0, self._worker)

    def _go_to(self, step: int, given: int, to_skip: int) -> None:
        """Continue at a position of the plan, after `to_skip` microbatches that belong to other workers."""
        self._step, self._given, self._to_skip = step, given, to_skip
        self._batches: Iterator[tuple[Place, BatchT]] | None = None
        self._last: Place | None = None  # the place of the last returned batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchT:
        try:
            place, batch = next(self._batches or self._start_batches())
        except BaseException:  # the generator is exhausted; the next call starts another one at the same position
            self._batches = None
            raise
        self._last, (_, _, _, self._step, self._given) = place, place
        self._to_skip = self._num_workers - 1
        return batch

    @property
    def batch_info(self) -> BatchInfo | None:
        """What the last returned batch is; None before the first one. Not known outside the workers of a DataLoader."""
        return None if self._last is None else self._split.info(self._last)

    def _start_batches(self) -> Iterator[tuple[Place, BatchT]]:
        """Iterate over the places of this worker from the position on, each with its batch."""
        self._maker = self._maker or self._dataset.maker()
        places = self._split.places(self._step, self._given)
        self._batches = self._maker.batches(islice(places, self._to_skip, None, self._num_workers))
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """The position of this worker, after the last batch it returned."""
        return {
            "state_version": _VERSION,
            "plan": self._split.state(self._step, self._given),
            "worker": self._worker,
            "num_workers": self._num_workers,
            "microbatch_rows": self._split.microbatch_rows,
            "to_skip": self._to_skip,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of the same worker.

        Args:
            state: from `state_dict`. An empty one does nothing.

        Raises:
            StateMismatchError: it was saved with another history, number of workers or size of microbatches; or inside a step
                under another `balance` or `nodes`, and `inside_step` is "continue" or there are several workers.
            ConfigError: the state is inside a step, and the rest of the step does not divide evenly among the ranks; or
                `inside_step="rewind"` was chosen with several workers.
        """
        if isinstance(state, Mapping) and not state:
            return
        hint = "; load a state that the iterator of a TokenDataset saved. A loader's state belongs to that loader"
        check_keys(state, _KEYS, hint)
        if type(state["state_version"]) is not int or state["state_version"] != _VERSION:
            raise StateMismatchError(
                f"state version: expected {_VERSION}, found {short(state['state_version'])}; use the version of tokenstore"
                " that saved the state"
            )
        for name in ("worker", "num_workers", "microbatch_rows"):
            if type(state[name]) is not int and (name != "microbatch_rows" or state[name] is not None):
                raise StateMismatchError(
                    f"state: expected an integer as {name}, found {short(state[name])}; the state is damaged, load another"
                    " checkpoint"
                )
        if (state["worker"], state["num_workers"]) != (self._worker, self._num_workers):
            raise StateMismatchError(
                f"num_workers: the state was saved with {short(state['num_workers'])}, found {self._num_workers};"
                f" use num_workers={short(state['num_workers'])}, or TokenLoader, which needs no workers"
            )
        if state["microbatch_rows"] != self._split.microbatch_rows:
            raise StateMismatchError(
                "microbatch_size x world_size: the state was saved with"
                f" {short(state['microbatch_rows'] or 'a whole step')}, found"
                f" {self._split.microbatch_rows or 'a whole step'}; keep their product, or use TokenLoader, which can change it"
            )
        to_skip = state["to_skip"]
        if type(to_skip) is not int or not 0 <= to_skip < self._num_workers:
            raise StateMismatchError(
                f"state: expected to_skip in 0..{self._num_workers - 1}, found {short(to_skip)}; the state is damaged, load"
                " another checkpoint"
            )
        plan, choice = self._dataset.plan, self._dataset.inside_step
        step, given = plan.check_state(state["plan"])
        given = rows_used(self._split, state["plan"], given, choice if self._num_workers == 1 else "continue")
        if self._dataset.inside_step != "rewind":
            self._split.check_inside(step, given)
        self._go_to(step, self._rest(step, given), to_skip)

    def _rest(self, step: int, given: int) -> int:
        """Rows of `step` to skip as already trained on. With several workers, none knows the position of the run."""
        choice = self._dataset.inside_step
        if self._num_workers == 1:
            return rest_of_step(self._dataset.plan, step, given, choice)
        if choice == "rewind":
            raise ConfigError(
                f'inside_step: "rewind" requires num_workers of 0 or 1, found {self._num_workers}; use TokenLoader, or'
                " TokenDataset(plan, step=...) without a state"
            )
        return given
