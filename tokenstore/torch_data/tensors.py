"""Located rows -> a batch of new torch tensors, in the requested format.

`targets` are already shifted, and for that reason not called `labels`: a Hugging Face model shifts `labels` itself.
With shifted labels it would train wrongly, with a plausible loss. `format="hf"` has `labels` as such a model expects
them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch

from tokenstore.batches import block as words
from tokenstore.batches.sampler import Place, PlannedRows, Sampler
from tokenstore.errors import TokenStoreError
from tokenstore.planning.plan import Plan
from tokenstore.store.maps import prefetch_pages
from tokenstore.torch_data.formats import FORMATS, Derived, Rows, Written, source_ids
from tokenstore.torch_data.prefetch import Bursts

# Rows and tokens planned by one call, unless one microbatch has more. Fewer wait for memory more often; more are no
# faster
MOST_ROWS, MOST_TOKENS = 64, 1 << 17


class Batch(TypedDict):
    """A batch in the format "torch" with its default fields: int64[B, L] each, on the CPU."""

    input_ids: torch.Tensor
    targets: torch.Tensor


_empty_like = torch.empty_like
BatchT = TypeVar("BatchT", covariant=True)  # Batch, or the batch of another format or of other fields


class BatchMaker:
    """Makes batches in one format, with the given fields in that order; see `formats`. For one thread.

    `ring`: number of batches with memory of their own; the next one reuses that of the first. 0: no memory is reused.
    """

    def __init__(
        self,
        plan: Plan,
        format: str,
        fields: Sequence[str],
        pin_memory: bool = False,
        max_documents: int | None = None,
        ring: int = 0,
    ):
        self.sampler = plan.sampler()
        self._format, self._length = FORMATS[format], plan.config.sequence_length
        made = {name: self._format.fields[name] for name in fields}
        self._fields = tuple(made)
        self._written = {name: field for name, field in made.items() if isinstance(field, Written)}
        self._derived: dict[str, Derived] = {
            name: field for name, field in made.items() if not isinstance(field, Written)
        }
        self._words = [field.word for field in self._written.values()]
        if words.TARGETS not in self._words and {words.LOSS_MASK, words.LABEL_MASK} & set(self._words):
            self._words.append(words.TARGETS)  # masks are computed from targets, even if targets are not a field
        self.sampler.set_format(self._format.ignored, self._format.flat)
        self._pin_memory, self._max_documents = pin_memory, max_documents
        self._templates: dict[int, list[torch.Tensor]] = {}
        self._ring: deque[dict[int, list[torch.Tensor]]] = deque({} for _ in range(ring))

    def make(self, step: int, first_row: int, num_rows: int) -> Any:
        """The batch of rows first_row, first_row + 1, ... of `step`."""
        return self.make_of(self.sampler.locate(step, first_row, num_rows))

    def make_of(self, located: np.ndarray) -> Any:
        """The batch of located rows, int64[B, 2]."""
        (planned,) = self.sampler.plan(located)
        return self._make(planned, None)

    def batches(self, places: Iterable[Place], readahead: int = 0) -> Iterator[tuple[Place, Any]]:
        """Each place (step, first row, rows, ...) and its batch.

        Several microbatches are planned at a time, at least one more than is made. While one is copied, the tokens of
        the next are prefetched into the cache. readahead: how many more are planned, and read from the disk, as long as
        batches have to wait for it.
        """
        waiting: deque[tuple[Place, PlannedRows]] = deque()
        ahead = _Planning(self.sampler, iter(places), MOST_TOKENS // self._length)
        bursts = Bursts(readahead)
        while True:
            reach = bursts.reach()  # 0, or `readahead` as long as that helps
            if len(waiting) <= max(reach, 1):
                ahead.plan(waiting, reach)
            if not waiting:
                return
            if reach:
                for planned, first_row in bursts.due(waiting):
                    prefetch_pages(self.sampler.ranges(planned, first_row))
            place, planned = waiting.popleft()
            yield place, self._make(planned, waiting[0][1] if waiting else None)

    def _make(self, planned: PlannedRows, coming: PlannedRows | None) -> Any:
        """The batch of planned rows; those that come next are prefetched."""
        tensors = self._memory(planned.num_rows)
        addresses = [tensor.data_ptr() for tensor in tensors]
        self.sampler.copy(planned, coming, zip(self._words, addresses, strict=True))
        batch: dict[str, Any] = dict(zip(self._written, tensors, strict=False))
        if self._derived:
            batch = self._with_derived(batch, planned.rows[:, 0])
        return batch if self._format.pack is None else self._format.pack(batch)

    def _with_derived(self, written: dict[str, Any], sources: np.ndarray) -> dict[str, Any]:
        sampler = self.sampler
        rows = Rows(sources, sampler.borders, sampler.longest, self._length, self._max_documents)
        derived = {name: self._own(make(rows)) for name, make in self._derived.items()}
        return {name: written[name] if name in written else derived[name] for name in self._fields}

    def _memory(self, num_rows: int) -> list[torch.Tensor]:
        """A tensor to fill for each of the words: a new one, or one of the ring."""
        if not self._ring:
            return self._fresh(num_rows)
        self._ring.rotate()
        if num_rows not in self._ring[0]:
            self._ring[0][num_rows] = self._fresh(num_rows)
        return self._ring[0][num_rows]

    def _fresh(self, num_rows: int) -> list[torch.Tensor]:
        """Tensors like those of another batch: half the time of `torch.empty` with a shape."""
        templates = self._templates.get(num_rows) or self._new_templates(num_rows)
        if self._pin_memory:
            return [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in templates]
        return [_empty_like(each) for each in templates]

    def _new_templates(self, num_rows: int) -> list[torch.Tensor]:
        fields = [*self._written.values(), Written(words.TARGETS)][: len(self._words)]
        shapes = [(field.shape(num_rows, self._length), field.dtype) for field in fields]
        self._templates[num_rows] = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in shapes]
        if any(make is not source_ids for make in self._derived.values()):
            self.sampler.want_borders(num_rows)
        return self._templates[num_rows]

    def _own(self, value: np.ndarray | int) -> torch.Tensor | int:
        """A small field as a tensor."""
        if isinstance(value, int):
            return value
        tensor = torch.from_numpy(value)
        if not self._pin_memory:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


class _Planning:
    """Plans the microbatches of `places` in order, several by one call."""

    def __init__(self, sampler: Sampler, places: Iterator[Place], most_rows: int):
        self._sampler, self._places = sampler, places
        self._most_rows = min(most_rows, MOST_ROWS)
        self._count = 1  # microbatches a call: the first batch waits for no other one

    def plan(self, waiting: deque[tuple[Place, PlannedRows]], reach: int) -> None:
        """Append more microbatches to `waiting`: at least one, if there is one; few while batches wait for the disk
        (`reach`).

        Damage is raised only when nothing is waiting, so not before the batch that contains it.
        """
        places = list(islice(self._places, min(self._count, 2) if reach else self._count))
        if not places:
            return
        try:
            rows = self._sampler.locate_places(places)
            planned = self._sampler.plan(rows, [place[2] for place in places])
        except TokenStoreError:
            self._places = chain(places, self._places)
            if len(places) == 1 and not waiting:
                raise
            self._count = 1
            if not waiting:
                self.plan(waiting, reach)
            return
        waiting.extend(zip(places, planned, strict=True))
        if self._count:
            self._count = min(2 * self._count, max(self._most_rows // places[-1][2], 1))


def check_pinned(pin_memory: bool) -> bool:
    """`pin_memory`; ValueError if it is set and there is no device to copy to."""
    if pin_memory and not torch.accelerator.is_available():
        raise ValueError(
            "pin_memory: expected a device such as CUDA to copy to, found none on this machine; omit pin_memory"
        )
    return pin_memory


def use_device(batches: Iterator[Any], pin_memory: bool) -> Iterator[Any]:
    """The same for another thread. It must pin memory for the device of this thread, but a new thread begins with
    device 0.
    """
    device = torch.cuda.current_device() if pin_memory and torch.cuda.is_available() else None

    def on_device() -> Iterator[Any]:
        if device is not None:
            torch.cuda.set_device(device)
        yield from batches

    return on_device()
