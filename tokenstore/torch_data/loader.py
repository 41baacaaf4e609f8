"""TokenLoader: iterates the batches of one rank; its whole state is one step number."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenstore.errors import StateMismatchError
from tokenstore.sampling.plan import Plan, as_plan
from tokenstore.torch_data.ahead import Ahead, ThreadGone, check_ahead
from tokenstore.torch_data.batches import BatchMaker, check_pinned, use_device
from tokenstore.torch_data.formats import check_fields
from tokenstore.torch_data.position import Split
from tokenstore.torch_data.ranks import DataRank, data_rank


class TokenLoader:
    """Microbatches of a plan for one rank, as torch tensors.

    Needs no worker processes: a batch is planned and copied by one kernel, faster than a worker could hand it over.
    Iterating goes on from where the loader is; after the plan's last step the next iteration starts at step 0. A copy or a
    pickled loader goes on from the same place.

    Attributes:
        step: the step to go on with, the one number to save: that of the next microbatch, or a skipped one before it.
        step_ended: whether the microbatch given last was the last of its step.
    """

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
    ):
        """Make a loader; nothing is read yet.

        Args:
            plan: what to give: a Plan, or the path of its file.
            rank, world_size: data-parallel rank and size, or `rank=DataRank.from_mesh(mesh)` alone, so that the ranks of
                tensor, context and pipeline parallelism are given the same; left out: `DataRank.from_environment()`.
            microbatch_size: sequences a batch; left out: the rank's share of a step.
            step: the step to begin with; unchecked. `load_state_dict` checks that the past is the same.
            fields: names of tensors, see `formats`; left out: those of the format.
            format: whom the batches are for: "torch", "hf", "hf_flash", "torchtitan", "torchtitan_flat", "megatron",
                "nanotron"; see `formats`.
            pin_memory: allocate tensors in page-locked memory (needs CUDA).
            max_documents: pieces of documents a microbatch has room for in `cu_seqlens`, which then has one shape.
            readahead: microbatches ahead to have read from the disk, when some had to be waited for; costs next to nothing
                where all is in memory.
            prefetch: microbatches that a thread makes ahead. It pays where tokens come from the disk or epochs are short, as
                packing one takes milliseconds; else a batch is made faster than it is handed over.
            reuse: with a number, the memory of a batch is used again when so many more have been asked for, which saves
                about a tenth of the work of a large one. None may be kept longer, nor be on its way to a device.
        Raises: ConfigError: a step does not divide evenly among the ranks, in some stage.
        """
        self.plan = plan = as_plan(plan)
        self._split = Split(plan, data_rank(rank, world_size), microbatch_size)
        self._format, self._fields = format, check_fields(fields, format)
        self._pin_memory, self._max_documents = check_pinned(pin_memory), max_documents
        self._readahead, self._prefetch = check_ahead("readahead", readahead), check_ahead("prefetch", prefetch)
        self._reuse = check_ahead("reuse", reuse)
        self._step, self._given = plan.check_start(step), 0
        self._given_last = plan.schedule.next_step(self._step)  # the step of the microbatch given last, or the first
        self._iterating = self._finished = False
        self._maker: BatchMaker | None = None
        self._ahead: Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a maker holds addresses of this process's maps
        return {**self.__dict__, "_maker": None, "_ahead": None, "_iterating": False}

    def __iter__(self) -> Iterator[Any]:
        if self._finished:
            self._step, self._given, self._finished = 0, 0, False
        self._iterating = True
        try:
            for (step, _, _, next_step, given), batch in self._batches():
                self._step, self._given, self._given_last = next_step, given, step
                self._finished = self._is_over()
                yield batch
            self._finished = True
        finally:
            self._iterating = False

    def _batches(self) -> Iterator[tuple[tuple[int, int, int, int, int], Any]]:
        """Every place from where the loader is on, and its batch."""
        if not self._prefetch:
            self._maker = self._maker or self._new_maker()
            yield from self._maker.batches(self._split.places(self._step, self._given), self._readahead)
            return
        while True:
            places = self._split.places(self._step, self._given)
            batches = self._new_maker().batches(places, self._readahead)  # another thread's, so none that is in use
            self._ahead = ahead = Ahead(use_device(batches, self._pin_memory), self._prefetch)
            try:
                yield from ahead
                return
            except ThreadGone:  # closed or forked: again from what was given last
                continue
            finally:
                ahead.close()
                self._ahead = None if self._ahead is ahead else self._ahead

    def _new_maker(self) -> BatchMaker:
        ahead = self._prefetch + 1 if self._prefetch else 0  # made by the thread, one more under way
        ring = self._reuse + ahead if self._reuse else 0
        return BatchMaker(self.plan, self._format, self._fields, self._pin_memory, self._max_documents, ring)

    def __len__(self) -> int:
        """Microbatches in the whole plan, not only those left; TypeError when the plan is endless."""
        total = self._split.num_microbatches()
        if total is None:
            raise TypeError("loader: expected a plan with num_steps to have a length, found an endless one")
        return total

    @property
    def step(self) -> int:
        return self._step

    @property
    def step_ended(self) -> bool:
        return self._given == 0

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches a rank is given in the step of the microbatch given last: the gradient accumulation."""
        return self.plan.global_batch_size(self._given_last) // self._split.rows_a_microbatch(self._given_last)

    def state_dict(self) -> dict[str, int | str]:
        """Where the run is and what it has seen: ints and strings, the same on every rank."""
        return self.plan.state(self._step, self.plan.schedule.cursor(self._step) + self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, with any number of ranks; {} does nothing.

        Raises:
            StateMismatchError: the state is of a run with another past; the fields that differ are named. Or it is none of
                a TokenLoader, but of a DataLoader around a TokenDataset.
            ConfigError: the state is inside a step whose rest does not divide among these ranks.
            RuntimeError: iteration has begun.
        """
        if not state:
            return
        if self._iterating:
            raise RuntimeError(
                "loader: expected load_state_dict before iter(), found an iteration under way; make a new loader"
            )
        _check_whose(state)
        step, given = self.plan.check_state(state)
        self._split.check_inside(step, given)
        self._step, self._given, self._finished = step, given, False
        self._given_last = self.plan.schedule.next_step(step)

    def metrics(self) -> dict[str, int | float]:
        """How far the run is at `step`, the same on every rank, for its log: see `tokenstore.sampling.metrics`."""
        return self.plan.metrics(self._step)

    def _is_over(self) -> bool:
        """Whether the plan's last microbatch has been given: also for who counts to len() and asks for no more."""
        end = self.plan.num_steps
        return end is not None and self._given == 0 and self.plan.schedule.next_step(self._step) >= end

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Here for trainers that call it."""

    def close(self) -> None:
        """Let go of the maps, and end the thread that makes batches ahead."""
        self._maker = None
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None


def _check_whose(state: Mapping[str, Any]) -> None:
    """Refuse the state of a loader around a TokenDataset, which says where each worker was."""
    if marks := [mark for mark in ("_snapshot", "_num_yielded", "worker") if mark in state]:
        raise StateMismatchError(
            f"state: expected that of a TokenLoader, found {marks[0]!r}, that of a torchdata StatefulDataLoader; load it into"
            " one around a TokenDataset with the same num_workers, or begin at its step with TokenLoader(plan, step=...)"
        )
