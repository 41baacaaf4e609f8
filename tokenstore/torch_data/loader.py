"""TokenLoader: iterates the batches of one rank; its whole state is one step number."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tokenstore.sampling.plan import Plan
from tokenstore.torch_data.batches import BatchMaker, check_fields
from tokenstore.torch_data.position import Split


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
        plan: Plan,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        microbatch_size: int | None = None,
        step: int = 0,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        pin_memory: bool = False,
        max_documents: int | None = None,
    ):
        """Make a loader; nothing is read yet.

        Args:
            plan: what to give.
            rank, world_size: data-parallel rank and size; left out: those of torch.distributed if it is set up, else 0 of 1.
            microbatch_size: sequences a batch; left out: the rank's share of a step.
            step: the step to begin with; unchecked. `load_state_dict` checks that the past is the same.
            fields: names of tensors, see `batches.BatchMaker`; left out: those of the format.
            format: "torch", or "hf" for Hugging Face models.
            pin_memory: allocate tensors in page-locked memory (needs CUDA).
            max_documents: pieces of documents a microbatch has room for in `cu_seqlens`, which then has one shape.
        Raises: ConfigError: a step does not divide evenly among the ranks, in some stage.
        """
        rank, world_size = data_rank(rank, world_size)
        self.plan = plan
        self._split = Split(plan, rank, world_size, microbatch_size)
        self._fields = check_fields(fields, format)
        self._pin_memory, self._max_documents = pin_memory, max_documents
        self._step, self._given = check_start(plan, step), 0
        self._given_last = plan.schedule.next_step(self._step)  # the step of the microbatch given last, or the first
        self._iterating = self._finished = False
        self._maker: BatchMaker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maker": None, "_iterating": False}  # a maker holds addresses of this process's maps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._finished:
            self._step, self._given, self._finished = 0, 0, False
        if self._maker is None:
            length = self.plan.config.sequence_length
            self._maker = BatchMaker(self.plan.sampler(), length, self._fields, self._pin_memory, self._max_documents)
        make = self._maker.make
        self._iterating = True
        try:
            for step, first, num_rows, next_step, given in self._split.places(self._step, self._given):
                batch = make(step, first, num_rows)
                self._step, self._given, self._given_last = next_step, given, step
                self._finished = self._is_over()
                yield batch
            self._finished = True
        finally:
            self._iterating = False

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
            StateMismatchError: the state is of a run with another past; the fields that differ are named.
            ConfigError: the state is inside a step whose rest does not divide among these ranks.
            RuntimeError: iteration has begun.
        """
        if not state:
            return
        if self._iterating:
            raise RuntimeError(
                "loader: expected load_state_dict before iter(), found an iteration under way; make a new loader"
            )
        step, given = self.plan.check_state(state)
        self._split.check_inside(step, given)
        self._step, self._given, self._finished = step, given, False
        self._given_last = self.plan.schedule.next_step(step)

    def _is_over(self) -> bool:
        """Whether the plan's last microbatch has been given: also for who counts to len() and asks for no more."""
        end = self.plan.num_steps
        return end is not None and self._given == 0 and self.plan.schedule.next_step(self._step) >= end

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Here for trainers that call it."""

    def close(self) -> None:
        """Let go of the maps."""
        self._maker = None


def data_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world_size) as given, or those of torch.distributed, or 0 of 1."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size: expected both or neither, found {rank} and {world_size}")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def check_start(plan: Plan, step: int) -> int:
    """A step to begin with: any of the plan, or its end."""
    step = operator.index(step)
    if step < 0 or (plan.num_steps is not None and step > plan.num_steps):
        raise ValueError(f"step: expected one in 0..{plan.num_steps}, found {step}")
    return step
