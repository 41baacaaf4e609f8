"""Copies to a CUDA device. Needs one: `python -m pytest -m gpu`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import random_documents
from tests.support.tensors import same
from tokenstore import Plan, TokenLoader

pytestmark = pytest.mark.gpu


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return Plan.of(make_store("a", random_documents(3, 2000, 600), length_index=True), 512, 32, num_steps=8)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("format", ["torch", "hf_flash", "torchtitan", "rows"])
def test_batches_are_right_while_the_device_is_busy(plan: Plan, format: str, prefetch: int) -> None:
    """Batches equal those on the CPU, although the device works on each for longer than the next one takes to arrive."""
    options = {"format": format, "microbatch_size": 4}
    expected = [_leaves(batch) for batch in TokenLoader(plan, **options)]
    work, sums = torch.randn(2048, 2048, device="cuda"), []
    for batch in TokenLoader(plan, device="cuda", prefetch=prefetch, **options):
        for _ in range(20):
            work = torch.nn.functional.normalize(work @ work)
        sums.append([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(batch)])
        assert all(leaf.is_cuda for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor))
    assert len(sums) == len(expected)
    for got, wanted in zip(sums, expected, strict=True):
        assert all(same(_on_cpu(one), other) for one, other in zip(got, wanted, strict=True))


def test_no_copy_waits_for_the_host(plan: Plan) -> None:
    """Nothing in the loader synchronizes the device after the first batch."""
    loader = TokenLoader(plan, device="cuda", microbatch_size=4)
    next(loader)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            next(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _leaves(batch: object) -> list:
    if isinstance(batch, dict):
        return list(batch.values())
    return [*batch[0].values(), batch[1]]  # type: ignore[index]


def _on_cpu(leaf: object) -> object:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
