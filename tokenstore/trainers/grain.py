"""A plan as a data source of Grain: records by index, in any order, from any thread or worker.

The plan has already shuffled, mixed and divided the data among ranks. Grain must not do any of this again:

    source = MicrobatchSource(plan, rank=r, world_size=w, microbatch_size=b)       # a record is a microbatch of a rank
    dataset = grain.MapDataset.source(source)[source.index_at(step):]              # no .shuffle(), no .batch(), no [r::w]
    grain.DataLoader(data_source=source, worker_count=n, sampler=grain.samplers.SequentialSampler(
        len(source), shard_options=grain.sharding.NoSharding()))

    rows = grain.MapDataset.source(SequenceSource(plan))                           # a record is a sequence
    rows.batch(b)[r::w]                                                            # batch first, then select a rank

    dataset = MicrobatchDataset(plan, rank=r, world_size=w, microbatch_size=b)     # its state fits any number of ranks

A `Batch` operation in a `DataLoader` with workers batches inside each worker, so it would combine every n-th record. Use
MicrobatchSource there. The state of a Grain source is `next_index`, a number of records of one rank. With other ranks or
microbatches the same number is another position in the plan, and Grain does not detect this. To resume with another world size,
use MicrobatchDataset, whose iterators have the plan's state, or save `source.step_at(next_index)` and start at
`source.index_at(step)`.
"""

import copy
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Unpack

from tokenstore.errors import ConfigError, how_to_install
from tokenstore.planning.plan import Plan
from tokenstore.store.files import renew_after_fork
from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions, ContentOptions
from tokenstore.torch_data.position import BatchInfo, Split
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.tensors import BatchMaker
from tokenstore.trainers.common import arrays

try:
    from grain import DatasetIterator, IterDataset
    from grain.sources import RandomAccessDataSource
except ImportError as error:
    raise ImportError(f"grain is not installed; {how_to_install('grain')}") from error


class MicrobatchSource(RandomAccessDataSource[Any]):
    """Record n is the n-th microbatch of a rank, without skipped steps: the batch of the format, as numpy arrays.

    It can be shared among threads, and pickles as its configuration.

    Attributes:
        plan: the plan.

    Example:
        >>> source = MicrobatchSource(plan, rank=0, world_size=2, microbatch_size=8)
        >>> source[0]["input_ids"].shape  # (8, sequence_length)
    """

    _is_dealt = True  # whether records are microbatches of a rank, which `balance` and `nodes` decide

    def __init__(
        self,
        plan: Plan,
        *,
        rank: int | DataRank | None = None,
        world_size: int | None = None,
        nodes: int | None = None,
        microbatch_size: int | None = None,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        max_documents: int | None = None,
        **options: Unpack[ContentOptions],
    ):
        """Make a source. Arguments and options are those of TokenLoader.

        Raises: ConfigError: the plan is endless, or a step does not divide evenly among the ranks.
        """
        if plan.num_steps is None:
            raise ConfigError(
                "plan: the plan is endless, but Grain needs a length; set num_steps, or use MicrobatchDataset"
            )
        self.plan = plan
        self._dataset: TokenDataset[Any] = TokenDataset(
            plan,
            rank=rank,
            world_size=world_size,
            nodes=nodes,
            microbatch_size=microbatch_size,
            fields=fields,
            format=format,
            max_documents=max_documents,
            **options,
        )
        self._about = f"microbatch_size {microbatch_size}, {format}, {fields}"
        if self._is_dealt and plan.config.row_costs is not None:
            self._about += f", balance {plan.config.row_costs}"
        self._edges = _edges(plan)
        self._reset()
        renew_after_fork(self, MicrobatchSource._reset)

    def _reset(self) -> None:
        """Drop all that belongs to one process, including its rank, which may come from its environment."""
        self._maker: BatchMaker | None = None
        self._split: Split | None = None
        self._starts: list[int] = []  # index of the first record at or after each step of _edges
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        held = ("_maker", "_split", "_starts", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
        renew_after_fork(self, MicrobatchSource._reset)

    def __repr__(self) -> str:
        place = self._dataset.split.place
        about = f"rank {place.rank} of {place.world_size}, {self._about}"
        if self._is_dealt and place.nodes > 1 and self.plan.has_lanes:
            about += f", {place.nodes} nodes"
        return f"{type(self).__name__}(plan {self.plan.fingerprint}, {about})"  # Grain's checkpoints compare this text

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        """Record `index`, in newly allocated memory. Raises: IndexError: there is no such record."""
        split = self._fixed_split()
        step, given = self._locate(index)
        rows = split.rows_a_rank(step)
        with self._lock:
            if self._maker is None:
                self._maker = self._dataset.maker(self._is_dealt)
            batch = self._maker.make(step, given + split.place.rank * rows, rows)
        return arrays(batch)

    def index_at(self, step: int) -> int:
        """The index of the first record of `step`, or of the next step that is not skipped."""
        left = self._dataset.split.num_microbatches(step)
        return len(self) - (left or 0)

    def step_at(self, index: int) -> int:
        """The step of record `index`, which is where a run continues after `index` records; num_steps after the last."""
        if index == len(self):
            return int(self.plan.num_steps or 0)
        return self._locate(index)[0]

    def _fixed_split(self) -> Split:
        """The part of this rank in every step. The rank is fixed at the first call."""
        if self._split is None:
            split = self._dataset.fixed_split()
            self._starts = [self.index_at(step) for step in self._edges]
            self._split = split
        return self._split

    def _locate(self, index: int) -> tuple[int, int]:
        """(step, rows of the step before this microbatch, over all ranks) of a record."""
        if not 0 <= index < len(self):
            raise IndexError(f"record: expected 0 to {len(self) - 1}, found {index}")
        split = self._fixed_split()
        run = bisect_right(self._starts, index) - 1
        step = self._edges[run]
        block = split.rows_a_microbatch(step)
        steps, microbatch = divmod(index - self._starts[run], self.plan.global_batch_size(step) // block)
        return step + steps, microbatch * block


class SequenceSource(MicrobatchSource):
    """Record n is the n-th sequence of the run, over all ranks and without skipped steps: a dict of int64[sequence_length].

    `.batch(b)[r::w]` yields the microbatches of b sequences of rank r of w, if w * b divides every step. `balance` of the plan
    and nodes have no effect on this source; use MicrobatchSource or MicrobatchDataset.
    """

    _is_dealt = False

    def __init__(
        self,
        plan: Plan,
        *,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        **options: Unpack[ContentOptions],
    ):
        """Make a source. Arguments and options are those of TokenLoader, with formats and fields that have rows."""
        super().__init__(plan, rank=0, world_size=1, microbatch_size=1, fields=fields, format=format, **options)

    def __getitem__(self, index: int) -> Any:
        """Record `index`, in newly allocated memory. Raises: IndexError: there is no such record."""
        return _first_row(super().__getitem__(index))


class MicrobatchDataset(IterDataset[Any]):
    """The microbatches of a rank as an IterDataset. Its iterators have the state of the plan.

    A checkpoint resumes exactly, with any number of ranks and any microbatch size. A plan with another history refuses it
    (StateMismatchError). Threads may prefetch from it. Grain cannot divide it among worker processes; use MicrobatchSource
    for those.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: Plan, **options: Unpack[AllOptions]):
        """Make a dataset. Options are those of TokenLoader, except `device`. The plan may be endless.

        Raises: ValueError: `device` is given. Grain makes numpy arrays, which are on the CPU; use `jax.device_put`.
        """
        super().__init__()
        if options.get("device") is not None:
            raise ValueError(
                f"device: expected none, found {options['device']}; Grain makes numpy arrays, which are on the CPU: move"
                " them to a device afterwards"
            )
        self.plan = plan
        self._loader: TokenLoader[Any] = TokenLoader(plan, **options)

    def __iter__(self) -> "MicrobatchIterator":
        return MicrobatchIterator(copy.copy(self._loader))


class MicrobatchIterator(DatasetIterator[Any]):
    """One iteration over a MicrobatchDataset, with numpy arrays."""

    def __init__(self, loader: TokenLoader[Any]):
        """Iterate over `loader`, which this iterator owns."""
        super().__init__()
        self._loader = loader

    def __next__(self) -> Any:
        return arrays(next(self._loader))

    @property
    def batch_info(self) -> BatchInfo | None:
        """What the last record is, as in TokenLoader."""
        return self._loader.batch_info

    def get_state(self) -> dict[str, Any]:
        """The state of the plan after the records so far, the same on every rank."""
        return self._loader.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state. Raises: the errors of TokenLoader.load_state_dict."""
        self._loader.load_state_dict(state)


def _edges(plan: Plan) -> list[int]:
    """Ascending steps, from 0. Between two of them the batch size is constant, and either all steps are skipped or none."""
    steps = {0, *(stage.from_step for stage in plan.schedule.stages)}
    steps.update(step for skip in plan.schedule.skip_steps for step in skip)
    return sorted(step for step in steps if plan.num_steps is None or step < plan.num_steps)


def _first_row(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: part[0] for name, part in batch.items()}
    return tuple(_first_row(part) for part in batch) if isinstance(batch, tuple) else batch[0]
