"""Located rows -> a batch of fresh torch tensors, in the format asked for.

`targets` are shifted already and are not called `labels` on purpose: a Hugging Face model shifts `labels` itself, so
shifted ones given to it train wrongly with a plausible loss. `format="hf"` gives `labels` as such a model wants them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch

from tokenstore.batches.gather import IGNORE
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.formats import FORMATS, Rows
from tokenstore.torch_data.prefetch import with_prefetched_pages


class Batch(TypedDict):
    """A batch in the format "torch" with its default fields: int64[B, L] each, on the CPU."""

    input_ids: torch.Tensor
    targets: torch.Tensor


BatchT = TypeVar("BatchT", covariant=True)  # Batch, or what another format or other fields make of it
_Place = tuple[Any, ...]  # step, first row, rows, ...


class BatchMaker:
    """Makes batches of located rows in one format, with the given fields in that order; see `formats`. For one thread.

    `ring`: so many batches have memory of their own, and the next one is given that of the first; 0: all have.
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
        self._length = plan.config.sequence_length
        self._makers = {name: FORMATS[format].fields[name] for name in fields}
        self._pack = FORMATS[format].pack
        self._pin_memory, self._max_documents = pin_memory, max_documents
        self._ring: deque[dict[tuple[int, int], np.ndarray]] = deque({} for _ in range(ring))
        self._num_taken = 0  # arrays of the batch under way

    def make(self, step: int, first_row: int, num_rows: int) -> Any:
        """The batch of rows first_row, first_row + 1, ... of `step`."""
        return self.make_of(self.sampler.locate_next(step, first_row, num_rows))

    def batches(self, places: Iterable[_Place], readahead: int = 0) -> Iterator[tuple[_Place, Any]]:
        """Each place (step, first row, rows, ...) and its batch, with the pages of `readahead` more called for."""
        located: Iterator[tuple[_Place, np.ndarray]] = (
            (place, self.sampler.locate_next(*place[:3])) for place in places
        )
        if readahead:
            located = with_prefetched_pages(located, self.sampler.call_for, readahead)
        for place, rows in located:
            yield place, self.make_of(rows)

    def make_of(self, located: np.ndarray) -> Any:
        """The batch of located rows, int64[B, 2]."""
        self._ring.rotate()
        self._num_taken = 0
        ids, targets = self._empty(len(located)), self._empty(len(located))
        self.sampler.fill(located, ids, targets)
        rows = Rows(ids, targets, located[:, 0], lambda: self._annotate(ids), self._max_documents)
        return self._pack({name: self._tensor(make(rows)) for name, make in self._makers.items()})

    def _annotate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, documents and labels of the rows filled last."""
        positions, documents, labels = (self._empty(len(ids)) for _ in range(3))
        starts = np.empty(ids.shape, np.bool_)
        self.sampler.annotate(positions, documents, starts)
        np.copyto(labels, ids)
        if self.sampler.crosses_documents:
            starts = documents < 0
        labels[starts] = IGNORE
        self.sampler.mask_labels(labels)
        return positions, documents, labels

    def _empty(self, num_rows: int) -> np.ndarray:
        """Memory to fill, int64[num_rows, L]: fresh, or out of the ring."""
        if not self._ring:
            return self._fresh(num_rows)
        self._num_taken += 1
        key = (self._num_taken, num_rows)
        if key not in self._ring[0]:
            self._ring[0][key] = self._fresh(num_rows)
        return self._ring[0][key]

    def _fresh(self, num_rows: int) -> np.ndarray:
        """Fresh memory as an array: cheaper than a tensor seen as an array, where it need not be page-locked."""
        shape = (num_rows, self._length)
        if self._pin_memory:
            return torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
        return np.empty(shape, np.int64)

    def _tensor(self, value: np.ndarray | int) -> torch.Tensor | int:
        if isinstance(value, int):
            return value
        tensor = torch.from_numpy(value)
        if not self._pin_memory:
            return tensor
        # The very tensor that was allocated: what copies from it on a device must know whose memory it is, and keep it
        if isinstance(value.base, torch.Tensor):
            return value.base
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def check_pinned(pin_memory: bool) -> bool:
    """`pin_memory`, refused at once where there is no device to copy to."""
    if pin_memory and not torch.accelerator.is_available():
        raise ValueError(
            "pin_memory: expected a device such as CUDA to copy to, found none on this machine; leave pin_memory out"
        )
    return pin_memory


def use_device(batches: Iterator[Any], pin_memory: bool) -> Iterator[Any]:
    """The same for another thread: what it pins is to be for the device of this one, as a thread begins with device 0."""
    device = torch.cuda.current_device() if pin_memory and torch.cuda.is_available() else None

    def on_device() -> Iterator[Any]:
        if device is not None:
            torch.cuda.set_device(device)
        yield from batches

    return on_device()
