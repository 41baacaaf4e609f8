"""Located rows -> a batch of torch tensors in a format.

`targets` are already shifted. They are not called `labels`, because Hugging Face models shift `labels` themselves: shifted
twice, they train the wrong thing with a plausible loss. `format="hf"` has the `labels` that these models expect.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch

from tokenstore.batches import block as words
from tokenstore.batches.places import Place, Places
from tokenstore.batches.planned import PlannedRows, PlanResult
from tokenstore.batches.sampler import Sampler
from tokenstore.errors import TokenStoreError
from tokenstore.order.sequence_ids import SequenceIds
from tokenstore.planning.plan import Plan
from tokenstore.store.maps import prefetch_pages
from tokenstore.torch_data.formats import Written
from tokenstore.torch_data.options import Contents
from tokenstore.torch_data.prefetch import BlockReadahead, Bursts
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.row_fields import MASKED, WITHOUT_BORDERS, Derived, Rows

# Limits of the rows and tokens planned by one call, unless a single microbatch has more. More rows per call cost less per row,
# but the batch that plans them waits longer. FEWER: divides the number of rows if planning a row takes longer, because all rows of
# a step must be dealt (by cost or lanes), or its tokens requested from a URL
MOST_ROWS, MOST_TOKENS, FEWER = 512, 1 << 20, 4


class Batch(TypedDict):
    """A batch in the default format, "torch", with its default fields. The tensors are on the CPU.

    Attributes:
        input_ids: int64[B, L], the tokens.
        targets: int64[B, L], the next token for each token, or -100 if it is not in the loss.

    Example:
        >>> batch = next(TokenLoader(plan))
        >>> loss = cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
    """

    input_ids: torch.Tensor
    targets: torch.Tensor


_empty_like, _from_numpy, _address = torch.empty_like, torch.from_numpy, torch.Tensor.data_ptr
_Arrays = list[tuple[str, int, torch.Tensor]]  # name of each array, its word in the block, and a tensor
Locate = Callable[[Sequence[Place]], np.ndarray]  # source and sequence number of each row of some places
BatchT = TypeVar("BatchT", covariant=True)  # Batch, or the type of a batch in another format or with other fields


class BatchMaker:
    """Makes batches with the given contents, whose fields have the order of these. Not thread-safe.

    ring: if n > 0, each batch is written into the memory of the n-th batch before it. 0: new memory for every batch.
    rank: the rank that loads the batches, which decides its rows of a plan that deals them. None: rows in the order of ORD-6.
    """

    def __init__(
        self,
        plan: Plan,
        contents: Contents,
        pin_memory: bool = False,
        ring: int = 0,
        rank: DataRank | None = None,
    ):
        self.sampler = plan.sampler()
        self._locate: Locate | None = None  # None: in the order of ORD-6
        if rank is not None and plan.deals_rows(rank.nodes):
            dealer = plan.dealer(self.sampler)
            self._locate = partial(dealer.locate_places, rank=rank.rank, world_size=rank.world_size, nodes=rank.nodes)
        place = (rank.rank, rank.world_size, rank.nodes) if rank is not None else ()
        self._open_lanes = partial(plan.open_blocks, *place) if plan.has_lanes else None
        self._local_lanes = BlockReadahead(partial(plan.local_blocks, *place)) if plan.has_lanes else None
        self._format, self._length = contents.format, plan.config.sequence_length
        made = {name: self._format.fields[name] for name in contents.fields}
        self._fields = tuple(made)
        written = {
            name: replace(field, dtype=contents.dtype) if field.word == words.IDS else field
            for name, field in made.items()
            if isinstance(field, Written)
        }
        self._derived: dict[str, Derived] = {
            name: field for name, field in made.items() if not isinstance(field, Written)
        }
        is_masked = any(make in MASKED for make in self._derived.values())
        self._arrays = _with_inputs(written, is_masked)
        self._mask = (
            next(name for name, field in self._arrays.items() if field.word == words.LOSS_MASK) if is_masked else ""
        )
        self._is_whole = self._fields == (*self._arrays, *self._derived)
        self._is_plain = self._is_whole and not self._derived and self._format.pack is None
        weights = {member.name: member.loss_weight for source in plan.sources for member in source.members}
        self._rows = Rows(
            self.sampler,
            self._length,
            plan.config.align or 1,
            contents.max_documents,
            np.array([weights.get(name, 1) for name in plan.stores], np.float32),
            SequenceIds(plan.schedule, tuple(plan.num_sequences), plan.config.seed, plan.config.shuffle),
        )
        long_rows = any(field.layout == "long_rows" for field in written.values())
        self.sampler.set_format(contents.ignored, self._format.flat, contents.dtype.itemsize, int(long_rows))
        self._pin_memory = pin_memory
        # How to allocate an array. `empty_like` takes half the time of `torch.empty` with a shape
        self._new = _itself if ring else _pinned_like if pin_memory else _empty_like
        self._templates: dict[int, _Arrays] = {}
        self._ring: deque[dict[int, _Arrays]] = deque({} for _ in range(ring))

    def make(self, step: int, first_row: int, num_rows: int) -> Any:
        """The batch of rows [first_row, first_row + num_rows) of `step`."""
        return self.make_of((self._locate or self.sampler.locate_places)([(step, first_row, num_rows)]))

    def make_of(self, located: np.ndarray) -> Any:
        """The batch of located rows, int64[B, 2]."""
        (planned,) = self.sampler.plan(located)
        return self._make(planned, None)

    def batches(
        self, places: Iterable[Place], readahead: int = 0, locate: Locate | None = None
    ) -> Iterator[tuple[Place, Any]]:
        """Iterate over places, each with its batch.

        Several microbatches are planned by one call, and always at least one more than the one that is copied: while it is
        copied, the processor fetches the tokens of the next one into its cache.

        Args:
            places: (step, first row, number of rows, ...) of each batch.
            readahead: how many more microbatches to plan and to read ahead, while batches have to wait for the disk.
            locate: returns the located rows of several places. Default: those of the rank.
        """
        waiting: deque[tuple[Place, PlannedRows]] = deque()
        ahead = _Planning(self.sampler, locate or self._locate, places, min(MOST_TOKENS // self._length, MOST_ROWS))
        bursts, remote = Bursts(readahead), self.sampler.remote
        self._open_blocks()
        while True:
            reach = bursts.reach()  # `readahead` during a burst, otherwise 0
            if len(waiting) < 2 or reach or remote is not None:
                self._plan_ahead(ahead, waiting, reach)
                if not waiting:
                    return
            if reach:
                if self._local_lanes is not None:
                    self._local_lanes.move_to(waiting[0][0][0])
                for planned, first_row in bursts.due(waiting):
                    prefetch_pages(self.sampler.ranges(planned, first_row))
            place, planned = waiting.popleft()
            yield place, self._make(planned, waiting[0][1] if waiting else None)

    def _open_blocks(self) -> None:
        """Read stores at URLs in blocks if their sources have lanes, from now on."""
        if self._open_lanes is not None and self.sampler.remote is not None:
            self.sampler.remote.read_lanes(*self._open_lanes())
            self._open_lanes = None

    def _plan_ahead(self, ahead: "_Planning", waiting: deque[tuple[Place, PlannedRows]], reach: int) -> None:
        """Plan until the next microbatch is known; with stores at URLs, until there are enough requests to hide their latency."""
        remote = self.sampler.remote
        if remote is None:
            if len(waiting) <= max(reach, 1):
                ahead.plan(waiting, reach)
            return
        while len(waiting) <= max(reach, 1) or len(waiting) * waiting[-1][1].num_rows < remote.ahead_rows:
            count = len(waiting)
            ahead.plan(waiting, 0)
            if len(waiting) == count:
                return

    def _make(self, planned: PlannedRows, coming: PlannedRows | None) -> Any:
        """The batch of planned rows. The tokens of the next batch, `coming`, are prefetched meanwhile."""
        num_rows, block, new = planned.num_rows, self.sampler.block, self._new
        batch: dict[str, Any] = {}
        arrays = self._templates.get(num_rows) or self._new_templates(num_rows)
        if self._ring:
            arrays = self._of_ring(num_rows, arrays)
        for name, word, template in arrays:
            batch[name] = tensor = new(template)
            block[word] = _address(tensor)
        self.sampler.copy(planned, coming)
        return batch if self._is_plain else self._finished(batch, planned)

    def _finished(self, batch: dict[str, Any], planned: PlannedRows) -> Any:
        """A batch with derived fields, in the format, from the arrays that the kernel wrote."""
        if not self._is_whole or self._derived:
            batch = self._with_derived(batch, planned)
        return batch if self._format.pack is None else self._format.pack(batch)

    def _with_derived(self, written: dict[str, Any], planned: PlannedRows) -> dict[str, Any]:
        """All fields of a batch, of which `written` has those that the kernel wrote, and what others are computed from."""
        rows = self._rows
        rows.planned = planned
        if self._mask:
            rows.loss_mask = written[self._mask].numpy().reshape(-1, self._length)
        for name, make in self._derived.items():
            written[name] = self._own(make(rows))
        return written if self._is_whole else {name: written[name] for name in self._fields}

    def _of_ring(self, num_rows: int, arrays: _Arrays) -> _Arrays:
        """The arrays of the batch that is replaced."""
        self._ring.rotate()
        if num_rows not in self._ring[0]:
            make = _pinned_like if self._pin_memory else _empty_like
            self._ring[0][num_rows] = [(name, word, make(template)) for name, word, template in arrays]
        return self._ring[0][num_rows]

    def _new_templates(self, num_rows: int) -> _Arrays:
        self._templates[num_rows] = [
            (name, field.word, torch.empty(field.shape(num_rows, self._length), dtype=field.dtype, device="cpu"))
            for name, field in self._arrays.items()
        ]
        if any(make not in WITHOUT_BORDERS for make in self._derived.values()):
            self.sampler.want_borders(num_rows)
        return self._templates[num_rows]

    def _own(self, value: np.ndarray | int) -> torch.Tensor | int:
        """A derived field as a tensor, pinned if requested; an int stays an int."""
        if isinstance(value, int):
            return value
        tensor = _from_numpy(value)
        return _pinned_like(tensor).copy_(tensor) if self._pin_memory else tensor


def _pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _with_inputs(written: Mapping[str, Written], is_masked: bool) -> dict[str, Written]:
    """The arrays that the kernel fills, by name: the fields that it writes, and arrays from which others are computed.

    The latter have names that no field has.

    is_masked: whether the loss mask is needed.
    """
    arrays = dict(written)
    used = {field.word for field in written.values()}
    if is_masked and words.LOSS_MASK not in used:
        arrays["(loss mask)"] = Written(words.LOSS_MASK, dtype=torch.float32)
    masks = {words.LOSS_MASK, words.LABEL_MASK} & {field.word for field in arrays.values()}
    if masks and words.TARGETS not in used:
        arrays["(targets)"] = Written(words.TARGETS)  # masks are computed from targets, even if the batch has none
    return arrays


class _Planning:
    """Plans the microbatches of `places` in order, several by one call of the sampler.

    locate: returns the located rows of several places. None: rows in the order of ORD-6.
    """

    def __init__(self, sampler: Sampler, locate: Locate | None, places: Iterable[Place], most_rows: int):
        self._sampler, self._locate, self._places = sampler, locate, Places(places)
        self._most_rows = most_rows if locate is None and sampler.remote is None else most_rows // FEWER
        self._count = 1  # microbatches per call. It starts at 1, so that the first batch does not wait for others
        self._plans: deque[PlanResult] = deque()  # those of the microbatches that wait, and the one of the last batch

    def plan(self, waiting: deque[tuple[Place, PlannedRows]], reach: int) -> None:
        """Plan the next microbatches and append them to `waiting`; at most two at once during readahead (`reach` > 0).

        An error of a damaged store is raised only when it is that microbatch's turn, that is, when none is waiting.
        """
        places = self._places.next(min(self._count, 2) if reach else self._count)
        if self._sampler.remote is not None:
            self._sampler.remote.move_to(places[0][0] if places else None)
        if not places:
            return
        try:
            planned = self._planned(places, self._spare(waiting))
        except TokenStoreError:
            if len(places) == 1 and not waiting:
                raise
            self._count = 1
            if not waiting:
                self.plan(waiting, reach)
            return
        self._plans.append(planned[0].plan)
        waiting.extend(zip(places, planned, strict=False))
        self._places.take(len(planned))
        self._count = min(2 * self._count, max(self._most_rows // places[-1][2], 1))

    def _planned(self, places: list[Place], spare: PlanResult | None) -> list[PlannedRows]:
        """The first of `places`, planned: all of them, or those whose steps have the same tables. spare: memory for the result."""
        if self._locate is None:
            return self._sampler.plan_places(places, self._places.address(), spare)
        return self._sampler.plan(self._locate(places), [place[2] for place in places], spare)

    def _spare(self, waiting: deque[tuple[Place, PlannedRows]]) -> PlanResult | None:
        """A result whose microbatches have all been copied, if there is one."""
        first, spare = waiting[0][1].plan if waiting else None, None
        while self._plans and self._plans[0] is not first:
            spare = self._plans.popleft()
        return spare
