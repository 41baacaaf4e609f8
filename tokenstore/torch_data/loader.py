"""TokenLoader: iterates over the batches of one rank. Its state is its position in the plan."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Self, Unpack, overload

import torch
from torch.utils.data import get_worker_info

from tokenstore.batches.places import Place
from tokenstore.batches.remote_rows import traffic_of
from tokenstore.errors import ConfigError
from tokenstore.planning.history import check_unchanged
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.devices import check_device, check_pinned, on_device, use_device
from tokenstore.torch_data.formats import DictFormat, TupleFormat
from tokenstore.torch_data.options import LoaderOptions, check_contents, check_dtype
from tokenstore.torch_data.position import BatchInfo, ProcessSplit
from tokenstore.torch_data.prefetch import Prefetcher, PrefetchStopped, check_ahead
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.states import check_inside_step, check_whose, rest_of_step, rows_used
from tokenstore.torch_data.tensors import Batch, BatchMaker, BatchT


class TokenLoader(Iterator[BatchT], Generic[BatchT]):
    """Iterates over the microbatches of one rank, as torch tensors.

    It needs no worker processes: compiled code makes a batch faster than a worker process could send it.

    A loader is its own iterator and has a single position. `for batch in loader`, `next(loader)` and every `iter(loader)`
    advance it, so the next loop continues where the last one stopped. After the last step of the plan, the next loop starts
    at step 0. With `restart=True`, which is meant for evaluation, every loop starts at `step`. A copied or unpickled loader
    continues from the same position.

    Batches are on the CPU, unless `device` is given. `accelerator.prepare(loader)` returns the loader unchanged, so with
    Accelerate pass `device=accelerator.device`.

    Attributes:
        plan: the plan.

    Example:
        >>> loader = TokenLoader("plan.yaml", microbatch_size=4)
        >>> next(loader)["input_ids"].shape  # sequence_length: 2048
        torch.Size([4, 2048])
    """

    # The overloads let a type checker derive the type of a batch from `format` and `fields`, and check option names
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
        nodes: int | None = None,
        microbatch_size: int | None = None,
        step: int = 0,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        pin_memory: bool = False,
        device: torch.device | str | None = None,
        max_documents: int | None = None,
        ignore_index: int | None = None,
        dtype: torch.dtype | str = torch.int64,
        readahead: int = 4,
        prefetch: int = 0,
        reuse: int = 0,
        restart: bool = False,
        inside_step: str = "warn",
        skip_empty: bool = False,
    ):
        """Create a loader. It reads no tokens before the first batch.

        Args:
            plan: a Plan, or the path of a plan file.
            rank: data-parallel rank of this process, or a DataRank instead of `rank` and `world_size`. Use
                `DataRank.from_mesh(mesh)` with tensor, context or pipeline parallelism. Default:
                `DataRank.from_environment()`, evaluated at the first batch in the process that iterates.
            world_size: number of data-parallel ranks. Required if `rank` is an integer.
            nodes: number of nodes of the job, each with equally many consecutive ranks; the same on all ranks. If a source
                has `locality`, each node reads other blocks. Default: that of `rank`; see `DataRank`.
            microbatch_size: sequences per batch. It must divide the rank's share of every step. Default: the whole share.
            step: the step to start at. Unlike a state, it is not checked against the history of a run. Default: 0.
            fields: names of the fields of a batch. Default: those of the format; see `tokenstore.torch_data.formats`.
            format: format of a batch: "torch", "hf", "hf_flash", "torchtitan", "torchtitan_flat", "megatron",
                "nanotron" or "rows"; see `tokenstore.torch_data.formats`. Call Hugging Face models with `use_cache=False`: with
                a cache, the documents of a row attend to each other, whatever position_ids says. Default: "torch".
            pin_memory: allocate tensors in page-locked memory. Requires a device such as CUDA. Default: False.
            device: the device of the batches. For a device with streams, such as CUDA, each batch is made in page-locked
                memory and copied while the batch before it is in use, so one batch more is in the device's memory. The copy
                does not block the process, and the current stream of the device waits for it. Default: the CPU.
            max_documents: pieces of documents that `cu_seqlens` has room for, which makes its shape constant. Default: no
                fixed size.
            ignore_index: the target of a token that is not in the loss. If it is not negative, the batch must have a loss mask.
                Default: -100, but 0 in the formats "megatron" and "nanotron".
            dtype: type of the token ids: torch.int64, int32, uint32 or uint16, a name such as "int32", or "stored", which
                is the type in the store's files. Labels, targets and positions stay int64. Embeddings take int64 and
                int32; for the others, call `batch["input_ids"].long()` on the device, which has received 2 or 4 bytes per
                token instead of 8. Default: torch.int64.
            readahead: microbatches to read ahead from the disk, after a batch had to wait for it; 0 never reads ahead. It
                costs next to nothing while the store is in memory. Default: 4.
            prefetch: microbatches to make ahead in a thread; 0 uses no thread. It shortens waits if the process has a core
                to spare, if the disk is slow, or if epochs are short, because packing an epoch takes milliseconds.
                Otherwise it is slower: a thread takes longer to hand over a batch than to make it. Default: 0.
            reuse: if n > 0, write each batch into the memory of the n-th batch before it, which saves about a tenth of the
                time of a large batch. The earlier batch must no longer be in use then, nor be on its way to a device.
                Not with a `device` that has streams. Default: 0, new memory for every batch.
            restart: start at `step` in every `iter(loader)`. The first one after `load_state_dict` starts at the loaded
                position instead. Default: False.
            inside_step: what to do with a state that was saved inside a step. "continue" with the rest of the step, if the
                checkpoint contains the gradients of its first part; "rewind" to the start of the step otherwise; or "warn"
                and continue. A state saved under another `balance`, or with other `nodes` in a step of a source with
                `locality`, cannot continue inside its step: "warn" then rewinds. Default: "warn".
            skip_empty: skip microbatches without a token on any rank, which only the last step of a plan with
                `packing: none` may have. In other microbatches, a single rank may still have no targets, and a mean over
                none is NaN: sum the losses and divide by the number of targets on all ranks. Default: False.

        Raises:
            ConfigError: in some stage, a step does not divide evenly among the ranks; or the plan file is invalid.
            ValueError: an argument has an invalid value.
        """
        self.plan = plan = as_plan(plan)
        self._process_split = ProcessSplit(plan, rank, world_size, microbatch_size, skip_empty, nodes)
        self._format = format
        self._contents = check_contents(
            plan, format, fields, max_documents=max_documents, ignore_index=ignore_index, dtype=dtype
        )
        self._device, pinned = check_device(device, reuse)
        self._pin_memory = pinned or check_pinned(pin_memory)
        self._readahead, self._prefetch = check_ahead("readahead", readahead), check_ahead("prefetch", prefetch)
        self._reuse = check_ahead("reuse", reuse)
        self._inside_step = check_inside_step(inside_step)
        self._start, self._restart = plan.check_start(step), restart
        self._step, self._given = self._start, 0
        self._last: Place | None = None  # the place of the last returned microbatch
        self._end = _last_given(plan)
        self._finished = False
        self._loaded = False  # whether a state was loaded and no batch has been made since
        self._maker: BatchMaker | None = None
        self._batches: Any = None  # iterator over (place, batch), with a method `close`, from the position on

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
        # A BatchMaker holds addresses of this process's memory maps
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
            place, batch = next(self._batches or self._start_batches())
        except PrefetchStopped:  # this process was forked: make the batches again, from the position on
            self._batches = None
            return next(self)
        except (
            BaseException
        ) as error:  # the generator is exhausted; the next call starts another one at the same position
            self._batches, self._finished = None, isinstance(error, StopIteration)
            raise
        self._last, (_, _, _, self._step, self._given) = place, place
        if (
            self._step >= self._end and not self._given
        ):  # not only at StopIteration: a loop may stop after len(loader) batches
            self._finished, self._batches = True, None
        return batch

    def _go_to(self, step: int, given: int) -> None:
        """Move to another position, and drop the batches made ahead."""
        self._stop_batches()
        self._step, self._given, self._finished = step, given, False
        self._last = None

    def _start_batches(self) -> Any:
        """Iterate over the places from the position on, each with its batch."""
        self._loaded = False
        places = self._process_split.fix().places(self._step, self._given)
        if self._prefetch:
            maker = self._new_maker()  # a new one, because each belongs to one thread
            batches = use_device(maker.batches(places, self._readahead), self._pin_memory)
            self._batches = on_device(Prefetcher(batches, self._prefetch), self._device)
        else:
            self._maker = self._maker or self._new_maker()
            self._batches = on_device(self._maker.batches(places, self._readahead), self._device)
        return self._batches

    def _stop_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def _new_maker(self) -> BatchMaker:
        ahead = self._prefetch + 1 if self._prefetch else 0  # those made by the thread, and the one it is making
        ring = self._reuse + ahead if self._reuse else 0
        rank = self._process_split.fix().place
        return BatchMaker(self.plan, self._contents, self._pin_memory, ring, rank)

    def __len__(self) -> int:
        """The number of microbatches per rank in the whole plan, not only of those left.

        Raises:
            TypeError: the plan is endless.
        """
        total = self._process_split.now().num_microbatches()
        if total is None:
            raise TypeError(
                "loader: an endless plan has no length; set num_steps in the plan, or use TokenDataset in a DataLoader"
            )
        return total

    @property
    def step(self) -> int:
        """The step to resume from: that of the next microbatch, or of a skipped step before it."""
        return self._step

    @property
    def step_ended(self) -> bool:
        """Whether the last returned microbatch was the last of its step. Also True before the first microbatch."""
        return self._given == 0

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches per rank in the step of the last returned microbatch: the gradient accumulation steps."""
        step = self._last[0] if self._last else self.plan.schedule.next_step(self._step)
        return self._process_split.now().microbatches_in(step)

    @property
    def batch_info(self) -> BatchInfo | None:
        """What the last returned batch is: its step, number and rows. None before the first batch, and after a state is
        loaded.
        """
        return None if self._last is None else self._process_split.now().info(self._last)

    def state_dict(self) -> dict[str, int | str]:
        """The position of the loader, as integers and strings that are the same on every rank.

        It is the state of a run only if every returned batch was trained on and its step ended. A loop that fetches the
        next batch before it saves (litgpt, nanochat, anything that prefetches) is ahead of the training. Save
        `plan.state(k)` there, where k is the first step that was not trained on: `plan.step_at(n)` after n optimizer updates.
        """
        if not self._given:
            return self.plan.state(self._step)
        return self._process_split.now().state(self._step, self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, with any number of ranks. May be called in the middle of a loop.

        Args:
            state: from `state_dict` or `plan.state`. An empty one does nothing. `inside_step` decides what happens with a
                state that was saved inside a step, while `step_ended` was False.

        Raises:
            StateMismatchError: the run that saved the state has a different history; the message names the fields that
                differ. Or the state was not saved by a TokenLoader, but by a DataLoader over a TokenDataset. Or it was saved
                inside a step whose rows were dealt under another `balance` or to other `nodes`, and `inside_step` is
                "continue".
            ConfigError: the state is inside a step, and the rest of the step does not divide evenly among the ranks.
        """
        if isinstance(state, Mapping) and not state:
            return
        check_whose(state)
        step, given = self.plan.check_state(state)
        given = rows_used(self._process_split.now(), state, given, self._inside_step)
        if self._inside_step != "rewind":
            self._process_split.now().check_inside(step, given)
        given = rest_of_step(self.plan, step, given, self._inside_step)
        self._go_to(step, given)
        self._loaded = True

    def switch_plan(self, plan: Plan | str | Path) -> None:
        """Continue with another plan, whose steps up to `step` are the same; usually made by `plan.amended(loader.step, ...)`.

        Call it between steps, on all ranks at the same step and with equal plans. It may be called in the middle of a loop.
        Batches that were made ahead are discarded. A later state is one of the new plan.

        Args:
            plan: a Plan, or the path of a plan file.

        Raises:
            StateMismatchError: the steps before `step` would change; the message names the fields that differ.
            ConfigError: the loader is inside a step, or in a worker process of a DataLoader; or a step of the plan does not divide
                evenly among the ranks.

        Example:
            >>> if loader.step_ended and loader.step == 1000:
            ...     loader.switch_plan(loader.plan.amended(1000, weights={"web": 0.5, "code": 0.5}))
        """
        if get_worker_info() is not None:
            raise ConfigError(
                "switch_plan: a worker process of a DataLoader cannot change the plan of the others; use TokenLoader in the"
                " training process, or a new DataLoader over TokenDataset(plan, step=...)"
            )
        if self._given:
            raise ConfigError(
                f"switch_plan: expected a call between steps, found the loader inside step {self._step}, after"
                f" {self._given} of its {self.plan.global_batch_size(self._step)} sequences; wait until loader.step_ended"
            )
        plan = as_plan(plan)
        step = plan.check_start(self._step)
        check_unchanged("switch_plan", self.plan.history(step), plan.history(step), step)
        check_dtype(plan, self._contents.dtype)
        split = self._process_split.of_plan(plan)
        self.close()
        self.plan, self._process_split, self._end = plan, split, _last_given(plan)
        self._go_to(step, 0)

    def metrics(self) -> dict[str, int | float]:
        """The progress of the run at `step`, for its log; see `tokenstore.planning.progress`.

        It is the same on every rank, except the keys `data/remote/...`, which are what this process has fetched from URLs.
        """
        return {**self.plan.metrics(self._step), **traffic_of(self.plan.stores.values())}

    def set_epoch(self, epoch: int) -> None:
        """Does nothing, because each source counts its own epochs. Trainers call it."""

    def close(self) -> None:
        """Release memory maps and stop the prefetching thread. The next batch starts both again."""
        self._stop_batches()
        self._maker = None


def _last_given(plan: Plan) -> int:
    """The step at which the microbatches end: the end of the plan, or the first of the skipped steps right before it."""
    end = plan.last_start
    for start, stop in reversed(plan.schedule.skip_steps):
        end = start if start < end <= stop else end
    return end
