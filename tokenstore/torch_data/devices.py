"""Batches on a device. A copy to a device with streams, such as CUDA, does not block: while a batch is in use, the next one
is copied.

    host      | make 0 | make 1 | return 0 | ...           | make 2 | return 1 |
    copies             | copy 0 | copy 1 |                          | copy 2 |
    compute                     | wait for copy 0, then use batch 0 | wait for copy 1, then use batch 1

Batches are made in page-locked memory, without which a copy would block. torch keeps such memory until the copies from it
have finished, and gives it to later batches. That is why `reuse` is refused: it would write a batch into memory that is
still being copied.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tokenstore.batches.places import Place

Placed = tuple[Place, Any]  # a place and its batch


def check_pinned(pin_memory: bool) -> bool:
    """`pin_memory`, if this machine supports it. Raises: ValueError: it has no accelerator."""
    if pin_memory and not torch.accelerator.is_available():
        raise ValueError("pin_memory: requires a device such as CUDA, but this machine has none; omit pin_memory")
    return pin_memory


def check_device(device: torch.device | str | None, reuse: int = 0) -> tuple[torch.device | None, bool]:
    """The device of batches, None for the CPU, and whether memory must be page-locked for it.

    Raises:
        ValueError: there is no such device on this machine, or `reuse` is not 0 for a device with streams.
    """
    if device is None:
        return None, False
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device: expected a device such as "cuda" or "cuda:1", found {device!r}') from error
    if chosen.type in ("cpu", "meta"):
        return (None if chosen.type == "cpu" else chosen), False
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or chosen.type != found.type or (chosen.index or 0) >= torch.accelerator.device_count():
        here = f"{torch.accelerator.device_count()} of {found.type}" if found else "no accelerator"
        raise ValueError(f"device: expected a device of this machine, which has {here}, found {chosen}; omit device")
    if reuse and has_streams(chosen):
        raise ValueError(
            f"reuse: expected 0 with device={chosen}, found {reuse}; memory of earlier batches is reused already, once"
            " their copies have finished"
        )
    return chosen, has_streams(chosen)


def has_streams(device: torch.device) -> bool:
    """Whether copies to a device can overlap with its work."""
    return hasattr(torch.get_device_module(device), "Stream")


def use_device(batches: Iterator[Any], pin_memory: bool) -> Iterator[Any]:
    """`batches`, for use in another thread. Memory is pinned for the current device of this thread; new threads use device 0."""
    device = torch.cuda.current_device() if pin_memory and torch.cuda.is_available() else None

    def on_device() -> Iterator[Any]:
        if device is not None:
            torch.cuda.set_device(device)
        yield from batches

    return on_device()


def on_device(batches: Iterator[Placed], device: torch.device | None) -> Iterator[Placed]:
    """`batches` with their tensors on a device; None leaves them on the CPU."""
    if device is None:
        return batches
    if device.type == "meta" or not has_streams(device):
        return ((place, map_tensors(batch, lambda tensor: tensor.to(device))) for place, batch in batches)
    return copied_ahead(batches, device, torch.get_device_module(device))


def copied_ahead(batches: Iterator[Placed], device: torch.device, module: Any) -> Iterator[Placed]:
    """Iterate over `batches` on a device with streams. The copy of the next batch begins before a batch is returned.

    An error of `batches` is raised after the batches that precede it; an interrupt at once.

    Args:
        batches: their tensors should be in page-locked memory.
        device: the device.
        module: that of the device, such as torch.cuda.
    """
    copies = _Copies(device, module)
    begun: tuple[Placed, Any] | None = None
    error: Exception | None = None
    while error is None:
        ready = begun
        try:
            begun = copies.begin(next(batches))
        except Exception as caught:  # also StopIteration
            error = caught
        if ready is not None:
            yield copies.finish(*ready)
    if not isinstance(error, StopIteration):
        raise error


class _Copies:
    """Copies batches to a device on a stream of its own."""

    def __init__(self, device: torch.device, module: Any):
        self._device, self._module, self._stream = device, module, module.Stream(device)

    def begin(self, placed: Placed) -> tuple[Placed, Any]:
        """Begin to copy a batch. Returns it, on the device, and the event of the end of its copy."""
        place, batch = placed
        with self._module.stream(self._stream):
            copied = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
        return (place, copied), self._stream.record_event()

    def finish(self, placed: Placed, copied: Any) -> Placed:
        """Let the current stream wait for the event `copied`, and keep the batch's memory until that stream is done."""
        current = self._module.current_stream(self._device)
        current.wait_event(copied)
        map_tensors(placed[1], lambda tensor: tensor.record_stream(current))
        return placed


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A batch with `change` of each of its tensors. Other values stay as they are."""
    if isinstance(batch, dict):
        return {name: map_tensors(part, change) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map_tensors(part, change) for part in batch)
    return change(batch) if isinstance(batch, torch.Tensor) else batch
