"""Batches on a device: the order of copies and waits, with a stand-in for a device with streams, and loaders."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import random_documents
from tests.support.tensors import same
from tokenstore import Plan, TokenLoader
from tokenstore.torch_data import devices
from tokenstore.torch_data.devices import copied_ahead

CPU = torch.device("cpu")


class Streams:
    """A module such as torch.cuda. `log` has what was requested of it, in order. The current stream is named "main"."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._count = 0

    def Stream(self, device: torch.device) -> "Stream":  # as in torch.cuda
        return Stream("copies", self)

    def current_stream(self, device: torch.device) -> "Stream":
        return Stream("main", self)

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        self.log.append(f"begin {self._count}")
        yield
        self._count += 1


class Stream:
    def __init__(self, name: str, module: Streams):
        self.name, self._module = name, module

    def record_event(self) -> int:
        return self._module._count - 1

    def wait_event(self, event: int) -> None:
        self._module.log.append(f"{self.name} waits for {event}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    module = Streams()
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: module.log.append(f"kept for {stream.name}"),
        raising=False,
    )
    return module


def numbered(count: int, error: BaseException | None = None) -> Iterator[Any]:
    for number in range(count):
        yield (number,), {"a": torch.tensor([number]), "n": 7}
    if error is not None:
        raise error


def test_the_next_copy_begins_before_a_batch_is_returned(streams: Streams) -> None:
    """And the stream that uses a batch waits for its copy, and keeps its memory."""
    for (number,), batch in copied_ahead(numbered(3), CPU, streams):
        assert batch["a"].item() == number
        assert batch["n"] == 7
        streams.log.append(f"use {number}")
    expected = """begin 0, begin 1, main waits for 0, kept for main, use 0,
        begin 2, main waits for 1, kept for main, use 1, main waits for 2, kept for main, use 2"""
    assert streams.log == re.split(r",\s+", expected)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_error_comes_after_the_batches_before_it(streams: Streams, count: int) -> None:
    copies = copied_ahead(numbered(count, OSError("disk")), CPU, streams)
    assert [next(copies)[0][0] for _ in range(count)] == list(range(count))
    with pytest.raises(OSError, match="disk"):
        next(copies)
    assert len(list(copied_ahead(numbered(count), CPU, streams))) == count


def test_an_interrupt_comes_at_once(streams: Streams) -> None:
    """A user who interrupts does not wait for a batch."""
    with pytest.raises(KeyboardInterrupt):
        next(copied_ahead(numbered(1, KeyboardInterrupt()), CPU, streams))


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    path = make_store("a", random_documents(3, 60, 40), length_index=True)
    return Plan.of(path, 16, 12, num_steps=5, skip_steps=[(1, 2)], packing="best_fit")


@pytest.fixture
def with_streams(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders copy to the stand-in."""
    monkeypatch.setattr(
        "tokenstore.torch_data.loader.on_device", lambda batches, device: copied_ahead(batches, CPU, streams)
    )


@pytest.mark.usefixtures("with_streams")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_states_and_info_are_those_of_the_returned_batch(plan: Plan, prefetch: int) -> None:
    """P2: a copy of the next batch that is under way changes neither, also if it is stopped and resumed inside a step."""
    loader = TokenLoader(plan, microbatch_size=3, prefetch=prefetch, inside_step="continue")
    found: list[tuple[Any, Any, Any]] = []
    for number in range(16):
        batch = next(loader)
        found.append((batch, loader.state_dict(), loader.batch_info))
        if number == 5:
            other = TokenLoader(plan, microbatch_size=3, prefetch=prefetch, inside_step="continue")
            other.load_state_dict(loader.state_dict())
            loader.close()
            loader = other
    with pytest.raises(StopIteration):
        next(loader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenstore.torch_data.loader.on_device", devices.on_device)
        plain = TokenLoader(plan, microbatch_size=3)
        for batch, state, info in found:
            expected = next(plain)
            assert all(same(batch[name], expected[name]) for name in expected)
            assert (state, info) == (plain.state_dict(), plain.batch_info)


@pytest.mark.parametrize("format", ["torch", "hf_flash", "torchtitan"])
def test_every_tensor_is_on_the_device(plan: Plan, format: str) -> None:
    """The meta device has no streams, so batches are copied when they are returned. Numbers stay as they are."""
    expected = next(TokenLoader(plan, format=format))
    batch = next(TokenLoader(plan, format=format, device="meta"))
    pairs = (
        [(batch, expected)]
        if isinstance(batch, dict)
        else [(batch[0], expected[0]), ({"": batch[1]}, {"": expected[1]})]
    )
    for got, wanted in pairs:
        assert list(got) == list(wanted)
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor):
                assert (got[name].device.type, got[name].shape) == ("meta", value.shape)
            else:
                assert got[name] == value


def test_the_cpu_is_the_default(plan: Plan) -> None:
    assert next(TokenLoader(plan, device="cpu", reuse=1))["input_ids"].device == CPU


class Accelerator:
    """What torch.accelerator says on a machine with one device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, here: bool):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: here)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: int(here))
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))


@pytest.mark.parametrize(
    ("options", "here", "text"),
    [
        ({"device": "gpu"}, True, 'device: expected a device such as "cuda" or "cuda:1", found \'gpu\''),
        ({"device": "cuda"}, False, "device of this machine, which has no accelerator, found cuda; omit device"),
        ({"device": "cuda:1"}, True, "device of this machine, which has 1 of cuda, found cuda:1"),
        ({"device": "xpu"}, True, "device of this machine, which has 1 of cuda, found xpu"),
        ({"device": "cuda", "reuse": 2}, True, "reuse: expected 0 with device=cuda, found 2"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(
    plan: Plan, options: dict, here: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the loader is made, not at its first batch."""
    Accelerator(monkeypatch, here)
    with pytest.raises(ValueError, match=re.escape(text)):
        TokenLoader(plan, **options)


def test_a_device_with_streams_gets_pinned_memory(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, copies would block."""
    Accelerator(monkeypatch, True)
    assert devices.check_device("cuda:0") == (torch.device("cuda", 0), True)
    assert devices.check_device(None) == devices.check_device("cpu") == (None, False)
