"""A plan as a data source of Grain: records by number, in any order, from any thread or worker.

The plan has shuffled, mixed and split over ranks already. Grain must do none of these again:

    source = MicrobatchSource(plan, rank=r, world_size=w, microbatch_size=b)       # a record is a microbatch of a rank
    dataset = grain.MapDataset.source(source)[source.index_at(step):]              # no .shuffle(), no .batch(), no slice
    grain.DataLoader(data_source=source, worker_count=n, sampler=grain.samplers.SequentialSampler(
        len(source), shard_options=grain.sharding.NoSharding()))

    rows = grain.MapDataset.source(SequenceSource(plan))                           # a record is a sequence
    rows.batch(b)[r::w]                                                            # first batch, then split over ranks

    dataset = MicrobatchDataset(plan, rank=r, world_size=w, microbatch_size=b)     # its state fits any number of ranks

A `Batch` operation of a `DataLoader` with workers batches inside each worker, so every n-th record: give it microbatches.
Of a source Grain's state is a count of one rank's records, `next_index`: with other ranks or microbatches it is another place
of the plan, and Grain does not notice. To resume in another world use MicrobatchDataset, whose iterators have the plan's state,
or save `source.step_at(next_index)` and begin at `source.index_at(step)`.
"""

import copy
import threading
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Unpack

import torch

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.store.files import after_fork_in_child
from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.loader import AllOptions, TokenLoader
from tokenstore.torch_data.position import Split
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.tensors import BatchMaker

try:
    from grain import DatasetIterator, IterDataset
    from grain.sources import RandomAccessDataSource
except ImportError as error:
    raise ImportError("grain: expected the package, found none; pip install 'grain>=0.2.18'") from error


class MicrobatchSource(RandomAccessDataSource[Any]):
    """Record n is the n-th microbatch of a rank, skipped steps left out, as numpy arrays in the shape of the format.

    Safe to share among threads and to pickle (by configuration).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        rank: int | DataRank | None = None,
        world_size: int | None = None,
        microbatch_size: int | None = None,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        max_documents: int | None = None,
    ):
        """Arguments are those of TokenLoader. Raises: ConfigError: an endless plan, which has no length."""
        if plan.num_steps is None:
            raise ConfigError(
                "plan: expected one with num_steps, as Grain needs a length, found an endless one; give it"
            )
        self.plan = plan
        self._dataset: TokenDataset[Any] = TokenDataset(
            plan,
            rank=rank,
            world_size=world_size,
            microbatch_size=microbatch_size,
            fields=fields,
            format=format,
            max_documents=max_documents,
        )
        self._about = f"microbatch_size {microbatch_size}, {format}, {fields}"
        self._edges = _edges(plan)
        self._hold_nothing()
        _renew_after_fork(self)

    def _hold_nothing(self) -> None:
        """Hold nothing that belongs to one process: also the rank, where none was given, is that of another one."""
        self._maker: BatchMaker | None = None
        self._split: Split | None = None
        self._firsts: list[int] = []  # the first record of every run of steps between edges
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        held = ("_maker", "_split", "_firsts", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold_nothing()
        _renew_after_fork(self)

    def __repr__(self) -> str:
        about = f"rank {self._dataset.split.place}, {self._about}"
        return f"{type(self).__name__}(plan {self.plan.fingerprint}, {about})"  # Grain's checkpoints compare it

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        """Record `index`, in memory of its own."""
        split = self._fixed_split()
        step, given = self._locate(index)
        rows = split.rows_a_rank(step)
        with self._lock:
            if self._maker is None:
                self._maker = self._dataset.maker()
            batch = self._maker.make(step, given + split.place.rank * rows, rows)
        return _arrays(batch)

    def index_at(self, step: int) -> int:
        """The number of the first record of `step`, or of what follows where it is skipped."""
        left = self._dataset.split.num_microbatches(step)
        return len(self) - (left or 0)

    def step_at(self, index: int) -> int:
        """The step to which record `index` belongs; where the run goes on after `index` records; at the end num_steps."""
        if index == len(self):
            return int(self.plan.num_steps or 0)
        return self._locate(index)[0]

    def _fixed_split(self) -> Split:
        """The part of every step that this process is given, from the first question on."""
        if self._split is None:
            split = self._dataset.fixed_split()
            self._firsts = [self.index_at(step) for step in self._edges]
            self._split = split
        return self._split

    def _locate(self, index: int) -> tuple[int, int]:
        """(step, rows given before it to all ranks) of a record."""
        if not 0 <= index < len(self):
            raise IndexError(f"record: expected one of {len(self)}, found {index}; ask for a number in that range")
        split = self._fixed_split()
        run = bisect_right(self._firsts, index) - 1
        step = self._edges[run]
        block = split.rows_a_microbatch(step)
        steps, microbatch = divmod(index - self._firsts[run], self.plan.global_batch_size(step) // block)
        return step + steps, microbatch * block


class SequenceSource(MicrobatchSource):
    """Record n is the n-th sequence of the run over all ranks, skipped steps left out: a dict of int64[L].

    `.batch(b)[r::w]` gives rank r of w its microbatches of b sequences, where w * b divides every step.
    """

    def __init__(self, plan: Plan, *, fields: Sequence[str] | None = None, format: str = "torch"):
        """Arguments are those of TokenLoader; formats and fields those that have rows."""
        super().__init__(plan, rank=0, world_size=1, microbatch_size=1, fields=fields, format=format)

    def __getitem__(self, index: int) -> Any:
        """Record `index`, in memory of its own."""
        return _first_row(super().__getitem__(index))


class MicrobatchDataset(IterDataset[Any]):
    """The microbatches of a rank as an IterDataset, whose iterators have the state of the plan.

    So a checkpoint is resumed exactly with any number of ranks and any microbatch, and refused (StateMismatchError) by a plan
    with another history. Threads may prefetch it. Grain cannot share it among worker processes: use MicrobatchSource for those.
    """

    def __init__(self, plan: Plan, **options: Unpack[AllOptions]):
        """Options are those of TokenLoader; also of endless plans."""
        super().__init__()
        self.plan = plan
        self._loader: TokenLoader[Any] = TokenLoader(plan, **options)

    def __iter__(self) -> "MicrobatchIterator":
        return MicrobatchIterator(copy.copy(self._loader))


class MicrobatchIterator(DatasetIterator[Any]):
    """One iteration over a MicrobatchDataset."""

    def __init__(self, loader: TokenLoader[Any]):
        super().__init__()
        self._loader = loader

    def __next__(self) -> Any:
        return _arrays(next(self._loader))

    def get_state(self) -> dict[str, Any]:
        """The state of the plan after the records given, the same on every rank."""
        return self._loader.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state; see TokenLoader.load_state_dict, also for its errors."""
        self._loader.load_state_dict(state)


def _edges(plan: Plan) -> list[int]:
    """Steps between which the batch size stays the same, and all are skipped or none."""
    steps = {0, *(stage.from_step for stage in plan.schedule.stages)}
    steps.update(step for skip in plan.schedule.skip_steps for step in skip)
    return sorted(step for step in steps if plan.num_steps is None or step < plan.num_steps)


def _renew_after_fork(source: MicrobatchSource) -> None:
    """A lock that some thread held at a fork would never be free in the child, and its maker may be half-way."""
    known = weakref.ref(source)

    def renew() -> None:
        if (mine := known()) is not None:
            mine._hold_nothing()

    after_fork_in_child(renew)


def _arrays(batch: Any) -> Any:
    """A batch with its tensors as arrays of the same memory."""
    if isinstance(batch, dict):
        return {name: _arrays(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_arrays(part) for part in batch)
    return batch.numpy() if isinstance(batch, torch.Tensor) else batch


def _first_row(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: part[0] for name, part in batch.items()}
    return tuple(_first_row(part) for part in batch) if isinstance(batch, tuple) else batch[0]
