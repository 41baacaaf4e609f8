"""TokenLoader: iterates the batches of one rank; its whole state is one step number."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Self, Unpack, overload

import torch

from tokenstore.errors import StateMismatchError
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.formats import DictFormat, TupleFormat, check_fields
from tokenstore.torch_data.position import ProcessSplit, SharedOptions, check_inside_step, rest_of_step
from tokenstore.torch_data.prefetch import Prefetcher, PrefetchStopped, check_ahead
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT, check_pinned, use_device


class LoaderOptions(SharedOptions, total=False):
    """Arguments of TokenLoader that do not change the type of a batch."""

    pin_memory: bool
    readahead: int
    prefetch: int
    reuse: int
    restart: bool


class AllOptions(LoaderOptions, total=False):
    """Arguments of TokenLoader except the plan."""

    fields: Sequence[str] | None
    format: str


class TokenLoader(Iterator[BatchT], Generic[BatchT]):
    """Microbatches of a plan for one rank, as torch tensors.

    No worker processes are needed: kernels make a batch faster than a worker process could transfer it.

    A loader has one position and is its own iterator: `for batch in loader`, `next(loader)` and every `iter(loader)`
    move the same position. So the next loop continues where a loop with `break` stopped. With `restart=True`, for
    evaluations, every loop begins at `step` again. After the plan's last step the next loop starts at step 0. A copied
    or unpickled loader continues from the same position.

    Batches are on the CPU, also after `accelerator.prepare(loader)`, which returns a loader unchanged.

    Attributes:
        step: the step to continue with, the one number to save: that of the next microbatch, or a skipped one before
            it.
        step_ended: whether the last microbatch returned was the last one of its step.
    """

    # A type checker knows what a batch is by `format` and `fields`; names of options are checked too
    @overload
    def __init__(
        self: "TokenLoader[Batch]",
        plan: Plan | str | Path,
        *,
        fields: None = None,
        format: Literal["torch"] = "torch",
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenLoader[tuple[dict[str, torch.Tensor], torch.Tensor]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: TupleFormat,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenLoader[dict[str, Any]]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: DictFormat = "torch",
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "TokenLoader[Any]",
        plan: Plan | str | Path,
        *,
        fields: Sequence[str] | None = None,
        format: str,
        **options: Unpack[LoaderOptions],
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
        pin_memory: bool = False,
        max_documents: int | None = None,
        readahead: int = 4,
        prefetch: int = 0,
        reuse: int = 0,
        restart: bool = False,
        inside_step: str = "warn",
        skip_empty: bool = False,
    ):
        """Make a loader. Nothing is read yet.

        Args:
            plan: the plan to load, or the path of its file.
            rank, world_size: data-parallel rank and size, or `rank=DataRank.from_mesh(mesh)` alone, so that ranks of
                tensor, context and pipeline parallelism get the same data. Default: `DataRank.from_environment()` of
                the process that iterates, at its first batch.
            microbatch_size: sequences per batch. Default: the rank's share of a step.
            step: the step to begin with. Unlike `load_state_dict`, this does not check that the history is the same.
            fields: names of tensors, see `formats`. Default: those of the format.
            format: the model code that the batches are for: "torch", "hf", "hf_flash", "torchtitan", "torchtitan_flat",
                "megatron", "nanotron"; see `formats`. Call models of Hugging Face with `use_cache=False`: with a cache,
                the documents of a row attend to each other, whatever their position_ids.
            pin_memory: allocate tensors in page-locked memory (needs CUDA).
            max_documents: maximum number of pieces in a microbatch, so that `cu_seqlens` always has the same shape.
            readahead: number of microbatches to read ahead from the disk after a batch had to wait for it. It costs
                almost nothing if the store is in memory.
            prefetch: number of microbatches that a thread makes ahead. It helps if tokens come from the disk, or if
                epochs are short, because packing one takes milliseconds. Otherwise a batch is made faster than it is
                passed between threads.
            reuse: reuse the memory of a batch after this many more batches. This saves about a tenth of the time of a
                large batch. Do not keep a batch longer than that, and finish its copy to a device before.
            restart: whether every `iter(loader)` begins at `step` again. After `load_state_dict`, the first one begins
                at the loaded state.
            inside_step: what to do with a state saved inside a step: "continue" with the rest, for checkpoints that
                contain the gradients of the first part; "rewind" to the start of the step, for all others; "warn": warn
                and continue.
            skip_empty: skip microbatches that have no token on any rank, in a last step that is filled with empty rows
                (`packing: none`). Others may still have no target on one rank: sum the losses and divide by the number
                of targets on all ranks, because a mean over no targets is NaN.
        Raises: ConfigError: a step does not divide evenly among the ranks, in some stage.
        """
        self.plan = plan = as_plan(plan)
        self._process_split = ProcessSplit(plan, rank, world_size, microbatch_size, skip_empty)
        self._format, self._fields = format, check_fields(fields, format)
        self._pin_memory, self._max_documents = check_pinned(pin_memory), max_documents
        self._readahead, self._prefetch = check_ahead("readahead", readahead), check_ahead("prefetch", prefetch)
        self._reuse = check_ahead("reuse", reuse)
        self._inside_step = check_inside_step(inside_step)
        self._start, self._restart = plan.check_start(step), restart
        self._step, self._given = self._start, 0
        self._given_last = plan.schedule.next_step(self._step)  # step of the last microbatch returned
        self._end = _last_given(plan)
        self._finished = False
        self._loaded = False  # whether a state was loaded, and no microbatch returned since
        self._maker: BatchMaker | None = None
        self._batches: Iterator[tuple[Any, Any]] | None = None  # from the position on

    def __repr__(self) -> str:
        rank, rows = self._process_split.rank.known, self._process_split.microbatch_size
        parts = [
            f"plan {self.plan.fingerprint[:12]}",
            f"step {self._step}" + ("" if self.plan.num_steps is None else f" of {self.plan.num_steps}"),
            f"rank {rank.rank} of {rank.world_size}" if rank else "rank from the environment",
            "whole steps" if rows is None else f"microbatches of {rows}",
            f"format {self._format}",
        ]
        return f"TokenLoader({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        # a maker holds addresses of this process's maps
        return {**self.__dict__, "_maker": None, "_batches": None}

    def __iter__(self) -> Self:
        if self._restart and not self._loaded:
            self._go_to(self._start, 0)
        elif self._finished:
            self._go_to(0, 0)
        return self

    def __next__(self) -> BatchT:
        if self._finished:
            raise StopIteration  # until the next iter()
        batch: BatchT
        try:
            (step, _, _, next_step, given), batch = next(self._batches or self._start_batches())
        except PrefetchStopped:  # forked: continue after the last microbatch returned
            self._batches = None
            return next(self)
        except BaseException as error:  # the iterator failed; the next call begins at the same position
            self._batches, self._finished = None, isinstance(error, StopIteration)
            raise
        self._step, self._given, self._given_last = next_step, given, step
        if next_step >= self._end and not given:  # also for a loop that counts to len() and stops
            self._finished, self._batches = True, None
        return batch

    def _go_to(self, step: int, given: int) -> None:
        """Continue with another microbatch, and drop batches that were made ahead."""
        self._stop_batches()
        self._step, self._given, self._finished = step, given, False
        self._given_last = self.plan.schedule.next_step(step)

    def _start_batches(self) -> Iterator[tuple[Any, Any]]:
        """Every place from the current position on, and its batch."""
        self._loaded = False
        places = self._process_split.fix().places(self._step, self._given)
        if self._prefetch:
            batches = self._new_maker().batches(places, self._readahead)  # a new one, for the thread
            self._batches = Prefetcher(use_device(batches, self._pin_memory), self._prefetch)
        else:
            self._maker = self._maker or self._new_maker()
            self._batches = self._maker.batches(places, self._readahead)
        return self._batches

    def _stop_batches(self) -> None:
        if isinstance(self._batches, Prefetcher):
            self._batches.close()
        self._batches = None

    def _new_maker(self) -> BatchMaker:
        ahead = self._prefetch + 1 if self._prefetch else 0  # made by the thread, one more under way
        ring = self._reuse + ahead if self._reuse else 0
        return BatchMaker(self.plan, self._format, self._fields, self._pin_memory, self._max_documents, ring)

    def __len__(self) -> int:
        """Microbatches in the whole plan, not only the remaining ones. Raises: TypeError: the plan is endless."""
        total = self._process_split.now().num_microbatches()
        if total is None:
            raise TypeError("loader: expected a plan with num_steps to have a length, found an endless one")
        return total

    @property
    def step(self) -> int:
        """The step of the next microbatch."""
        return self._step

    @property
    def step_ended(self) -> bool:
        """Whether the next microbatch is the first one of its step."""
        return self._given == 0

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches per rank in the step of the last microbatch returned: the gradient accumulation."""
        return self._process_split.now().microbatches_in(self._given_last)

    def state_dict(self) -> dict[str, int | str]:
        """The position of the loader and its history: ints and strings, the same on every rank.

        It is the state of a run only if every batch returned so far was trained and its step ended. A loop that
        requests the next batch before it saves (litgpt, nanochat, any prefetching) should save `plan.state(k)` for the
        first step k that is not trained yet: `plan.step_at(updates)`, from the number of optimizer updates. Or it keeps
        the state from before the request.
        """
        return self.plan.state(self._step, self.plan.schedule.cursor(self._step) + self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, with any number of ranks, also in the middle of a loop; {} does nothing.

        A state inside a step (saved while `step_ended` was False) is handled as `inside_step` says.

        Raises:
            StateMismatchError: the state is from a run with another history (the message names the fields that differ),
                or from a DataLoader around a TokenDataset.
            ConfigError: the state is inside a step whose rest does not divide among these ranks.
        """
        if isinstance(state, Mapping) and not state:
            return
        _check_whose(state)
        step, given = self.plan.check_state(state)
        if self._inside_step != "rewind":
            self._process_split.now().check_inside(step, given)
        given = rest_of_step(self.plan, step, given, self._inside_step)
        self._go_to(step, given)
        self._loaded = True

    def metrics(self) -> dict[str, int | float]:
        """How far the run is at `step`, the same on every rank, for its log: see `tokenstore.planning.progress`."""
        return self.plan.metrics(self._step)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Here for trainers that call it."""

    def close(self) -> None:
        """Release the memory maps and end the prefetching thread. The next batch opens them again."""
        self._stop_batches()
        self._maker = None


def _last_given(plan: Plan) -> int:
    """The step at which no microbatch is left: the end of the plan, or the skipped steps before it."""
    end = plan.last_start
    for start, stop in reversed(plan.schedule.skip_steps):
        end = start if start < end <= stop else end
    return end


def _check_whose(state: Mapping[str, Any]) -> None:
    """Refuse the state of a DataLoader around a TokenDataset, which contains the position of each worker."""
    marks = [mark for mark in ("_snapshot", "_num_yielded", "worker") if isinstance(state, Mapping) and mark in state]
    if marks:
        raise StateMismatchError(
            f"state: expected that of a TokenLoader, found {marks[0]!r}, as in that of a torchdata StatefulDataLoader;"
            " load it into one around a TokenDataset with the same num_workers, or begin at its step with TokenLoader(plan, step=...)"
        )
