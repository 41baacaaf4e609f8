"""Evaluation: every token of a plan once, on any number of ranks, and its losses by source.

Ranks and microbatches need not divide the steps of the plan. All ranks get equally many microbatches of one shape, so none
waits for another; the last ones of a source are filled with rows of padding. A microbatch has sequences of one source only,
so a loss that is a single number belongs to a source.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from tokenstore.batches.places import Place
from tokenstore.batches.sampler import Sampler
from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.devices import check_device, check_pinned, on_device, use_device
from tokenstore.torch_data.losses import EvaluationResult, LossSums, Reduction, added_over_ranks, in_loss_of
from tokenstore.torch_data.options import ContentOptions, check_contents
from tokenstore.torch_data.position import Split
from tokenstore.torch_data.prefetch import Prefetcher, check_ahead
from tokenstore.torch_data.ranks import DataRank, ProcessRank
from tokenstore.torch_data.tensors import BatchMaker

_STEPS_AT_ONCE = 64  # steps whose rows are located by one call
_PADDING = (-1, 0)  # a located row without tokens


class Evaluation(IterableDataset[Any]):
    """The microbatches of a plan for evaluation, and the sums of their losses.

    Every loop over it begins at the start of the plan, and sets the sums to 0. It gives each sequence of the plan once, even
    if the plan repeats it. With `num_steps: all_exhausted` these are all tokens of its sources: also those of a last step
    that the plan drops, and under `concat` those after the last whole window, in a row that ends with padding. The numbers of
    ranks and of sequences per microbatch need not divide anything.

    It may be read by a DataLoader with `batch_size=None` and any number of workers.

    Attributes:
        plan: the plan.

    Example:
        >>> evaluation = Evaluation("evaluation.yaml", microbatch_size=8)
        >>> for batch in evaluation:
        ...     logits = model(batch["input_ids"]).flatten(0, 1)
        ...     evaluation.add(batch, cross_entropy(logits, batch["targets"].flatten(), reduction="none"))
        >>> evaluation.result().loss  # over all ranks
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        rank: int | DataRank | None = None,
        world_size: int | None = None,
        microbatch_size: int | None = None,
        max_sequences: int | None = None,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        max_documents: int | None = None,
        readahead: int = 4,
        prefetch: int = 0,
        **options: Unpack[ContentOptions],
    ):
        """Make an evaluation. Nothing is read yet.

        Args:
            plan: a Plan, or the path of a plan file. It must not be endless.
            rank: data-parallel rank of this process, as in TokenLoader. Default: that of the environment.
            world_size: number of data-parallel ranks.
            microbatch_size: sequences per batch. Default: the rank's share of a step, rounded up.
            max_sequences: stop after so many sequences of the plan, over all ranks. Default: no limit.
            fields: names of the fields of a batch. One of them must say which tokens are in the loss.
            format, device, pin_memory, max_documents, readahead, prefetch: as in TokenLoader.
            options: ignore_index and dtype, as in TokenLoader.

        Raises:
            ConfigError: the plan is endless.
            ValueError: an argument has an invalid value.
        """
        self.plan = plan = as_plan(plan)
        if plan.num_steps is None:
            raise ConfigError("evaluation plan: the plan is endless; set num_steps, for example to all_exhausted")
        for name, value in (("microbatch_size", microbatch_size), ("max_sequences", max_sequences)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected 1 or more, found {value}; omit it for the default")
        self._rank, self._microbatch_size, self._max_sequences = (
            ProcessRank(rank, world_size),
            microbatch_size,
            max_sequences,
        )
        self._contents = check_contents(plan, format, fields, max_documents=max_documents, **options)
        self._device, pinned = check_device(device)
        self._pin_memory = pinned or check_pinned(pin_memory)
        self._readahead, self._prefetch = check_ahead("readahead", readahead), check_ahead("prefetch", prefetch)
        self._names = tuple(source.name for source in plan.sources)
        self._in_loss = in_loss_of(self._contents)
        self._length: int | None = None
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_in_loss": None, "_losses": None, "_expected": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._in_loss = in_loss_of(self._contents)
        self.reset()

    # ---- batches

    def __iter__(self) -> Iterator[Any]:
        self.reset()
        worker = get_worker_info()
        start, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        maker = BatchMaker(self.plan, self._contents, self._pin_memory)
        places = islice(self._places(maker.sampler), start, None, stride)
        batches: Iterator[tuple[Place, Any]] = maker.batches(places, self._readahead, _rows_of)
        if self._prefetch:
            batches = Prefetcher(use_device(batches, self._pin_memory), self._prefetch)
        return (batch for _, batch in on_device(batches, self._device))

    def __len__(self) -> int:
        """The number of microbatches per rank."""
        if self._length is None:
            self._length = sum(1 for _ in self._blocks(self.plan.sampler()))
        return self._length

    @property
    def _rows_per_microbatch(self) -> int:
        return self._microbatch_size or -(-self.plan.global_batch_size(0) // self._rank.now().world_size)

    def _places(self, sampler: Sampler) -> Iterator[Place]:
        """Iterate over the microbatches of this rank: located rows int64[B, 2], the source, B, the number of sequences."""
        place, size = self._rank.fix(), self._rows_per_microbatch
        for source, block in self._blocks(sampler):
            share = -(-len(block) // place.world_size)
            own = block[place.rank * share : (place.rank + 1) * share]
            rows = np.full((size, 2), _PADDING, np.int64)
            rows[: len(own)] = own
            yield rows, source, size, len(own)

    def _blocks(self, sampler: Sampler) -> Iterator[tuple[int, np.ndarray]]:
        """Iterate over the microbatches of all ranks together: the source, and its located rows."""
        size = self._rows_per_microbatch * self._rank.now().world_size
        waiting: list[list[np.ndarray]] = [[] for _ in self._names]
        for rows in self._limited(self._rows(sampler)):
            for source in np.unique(rows[:, 0]).tolist():
                waiting[source].append(rows[rows[:, 0] == source])
                joined = np.concatenate(waiting[source])
                whole = len(joined) // size * size
                for first in range(0, whole, size):
                    yield source, joined[first : first + size]
                waiting[source] = [joined[whole:]]
        for source, parts in enumerate(waiting):
            if parts and len(rows := np.concatenate(parts)):
                yield source, rows

    def _limited(self, parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The first `max_sequences` of located rows."""
        left = self._max_sequences
        for rows in parts:
            yield rows[:left]
            left = None if left is None else left - len(rows)
            if left is not None and left <= 0:
                return

    def _rows(self, sampler: Sampler) -> Iterator[np.ndarray]:
        """Iterate over the located rows of the plan, each sequence once, without rows of padding."""
        per_epoch = np.array([source.num_sequences for source in self.plan.sources])
        places = Split(self.plan, DataRank(0, 1), None).places(0, 0)
        while some := list(islice(places, _STEPS_AT_ONCE)):
            rows = sampler.locate_places(some)
            rows = rows[rows[:, 0] >= 0]
            yield rows[rows[:, 1] < per_epoch[rows[:, 0]]]
        if self.plan.config.num_steps == "all_exhausted":
            yield from self._rest()

    def _rest(self) -> Iterator[np.ndarray]:
        """The located rows of sequences that the plan's last step drops, and of tokens that are in no window of `concat`."""
        plan = self.plan
        used = {name for stage in plan.schedule.stages for name, share in stage.shares.items() if share}
        given = plan.progress(plan.num_steps or 0)
        for number, source in enumerate(plan.sources):
            if source.name in used:
                numbers = list(range(given[source.name].sequences, source.num_sequences))
                tokens = source.members[0].store.num_tokens
                if source.packing == "concat" and tokens % plan.config.sequence_length:
                    numbers.append(-1)  # the rest of epoch 0
                yield np.array([(number, each) for each in numbers], np.int64).reshape(-1, 2)

    # ---- losses

    def reset(self) -> None:
        """Set the sums to 0. Every new loop does this; with a DataLoader, call it before each."""
        self._losses = LossSums(self._names, self._in_loss)
        self._expected: Iterator[Place] | None = None

    def add(self, batch: Any, losses: torch.Tensor, reduction: Reduction = "none") -> None:
        """Add the losses of a microbatch. Call it once for each, in their order.

        Args:
            batch: the microbatch. It may have been moved to another device.
            losses: with reduction "none", a loss for each position, in the order of the targets. Those of positions that are
                not in the loss do not count, whatever they are.
            reduction: "mean" or "sum" if `losses` is one number, the mean or sum over the targets of the microbatch. A
                microbatch without targets adds 0, even if its mean is NaN.

        Raises:
            ValueError: `losses` has another size, or there are more calls than microbatches.
        """
        if self._expected is None:
            self._expected = self._places(self.plan.sampler())
        place = next(self._expected, None)
        if place is None:
            raise ValueError(
                f"evaluation: expected {len(self)} microbatches, found one more; call add() once for each microbatch, and"
                " reset() before a loop over a DataLoader"
            )
        _, source, _, sequences = place
        self._losses.add(source, sequences, batch, losses, reduction)

    @property
    def sums(self) -> torch.Tensor:
        """The sums of the losses, the targets and the sequences on this rank, as float64[S, 3] with a row per source."""
        return self._losses.sums

    def result(self, group: dist.ProcessGroup | None = None, sums: torch.Tensor | None = None) -> EvaluationResult:
        """The losses of the microbatches added so far, over all ranks. Every rank must call it.

        Args:
            group: the data-parallel ranks. Default: all processes, if there are as many.
            sums: `sums` of all ranks, added, if that was done already. Then ranks do not communicate.

        Raises:
            ConfigError: the group has another number of ranks.
        """
        if sums is None:
            sums = added_over_ranks(self.sums, self._rank.now().world_size, group)
        return self._losses.result(sums)

    def run(
        self,
        losses: Callable[[Any], torch.Tensor],
        reduction: Reduction = "none",
        group: dist.ProcessGroup | None = None,
    ) -> EvaluationResult:
        """Evaluate all microbatches, without gradients.

        Args:
            losses: returns the losses of a batch. Call `model.eval()` before.
            reduction: as in `add`.
            group: as in `result`.

        Example:
            >>> evaluation = Evaluation(plan, format="hf", device="cuda")
            >>> evaluation.run(lambda batch: model(**batch, use_cache=False).loss, reduction="mean").perplexity
        """
        with torch.no_grad():
            for batch in self:
                self.add(batch, losses(batch), reduction)
        return self.result(group)


def _rows_of(places: Sequence[Place]) -> np.ndarray:
    """int64[n, 2], the located rows of several places."""
    return np.concatenate([place[0] for place in places])
