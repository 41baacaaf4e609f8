"""Paths that need a CUDA device: pinned copies, attention over documents of several lengths, compiled FlexAttention, nccl."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.conftest import random_documents
from tests.support.processes.launched import left, run_ranks
from tests.support.trainers.microbatches import microbatches, same, small_plan, small_store
from tokenstore import Plan, TokenLoader

pytestmark = pytest.mark.gpu
HEADS, SIZE, LENGTH = 2, 64, 128


@pytest.fixture
def packed(make_store: Any) -> Plan:
    path = make_store("p", random_documents(5, 200, 90, vocab_size=64), vocab_size=64, length_index=True)
    return Plan.of(path, sequence_length=LENGTH, global_batch_size=8, num_steps=6)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_on_the_device_are_those_of_the_plan(packed: Plan, prefetch: int) -> None:
    """Copies from pinned memory, while earlier batches are in use and the device is busy."""
    busy = torch.randn(2048, 2048, device="cuda")
    found, held = [], []
    for batch in TokenLoader(packed, rank=0, world_size=1, microbatch_size=2, device="cuda", prefetch=prefetch):
        assert batch["input_ids"].is_cuda
        held.append(batch["input_ids"] + 0 * (busy @ busy).sum().long())
        found.append(batch["targets"])
    assert same([each.cpu() for each in held], microbatches(packed, range(6), size=2))
    assert same([each.cpu() for each in found], microbatches(packed, range(6), size=2, field="targets"))


def test_narrow_ids_are_widened_on_the_device(packed: Plan) -> None:
    loader = TokenLoader(packed, rank=0, world_size=1, device="cuda", dtype="stored")
    batch = next(loader)["input_ids"]
    assert batch.dtype == torch.uint16
    assert np.array_equal(batch.to(torch.int64).cpu(), packed.batch(0)["input_ids"])


def test_pinned_batches_are_page_locked(packed: Plan) -> None:
    batch = next(TokenLoader(packed, rank=0, world_size=1, pin_memory=True))
    assert all(tensor.is_pinned() for tensor in batch.values())


def heads(tokens: int) -> torch.Tensor:
    """float16[3, tokens, HEADS, SIZE]: queries, keys, values."""
    torch.manual_seed(0)
    return torch.randn(3, tokens, HEADS, SIZE, device="cuda", dtype=torch.float16)


def one_by_one(qkv: torch.Tensor, borders: list[int]) -> torch.Tensor:
    """Causal attention within each piece, a piece at a time: float16[tokens, HEADS, SIZE]."""
    parts = []
    for start, stop in pairwise(borders):
        q, k, v = (each[start:stop].transpose(0, 1)[None] for each in qkv)
        parts.append(functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1))
    return torch.cat(parts)


def test_varlen_attention_isolates_documents(packed: Plan) -> None:
    """`cu_seqlens` and `max_seqlen` of a batch are what the kernel of torch expects."""
    from torch.nn.attention.varlen import varlen_attn

    fields = ("input_ids", "cu_seqlens", "max_seqlen")
    batch = next(TokenLoader(packed, rank=0, world_size=1, fields=fields, device="cuda"))
    qkv, borders, longest = heads(8 * LENGTH), batch["cu_seqlens"], batch["max_seqlen"]
    found = varlen_attn(*qkv, borders, borders, longest, longest, window_size=(-1, 0))
    torch.testing.assert_close(found, one_by_one(qkv, borders.tolist()), atol=2e-3, rtol=2e-3)


def test_compiled_flex_attention_isolates_documents(packed: Plan) -> None:
    """`document_ids` as the mask of FlexAttention, compiled, over batches with other borders."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    loader = TokenLoader(
        packed, rank=0, world_size=1, fields=("input_ids", "document_ids", "cu_seqlens"), device="cuda"
    )
    for batch, _ in zip(loader, range(3), strict=False):
        documents = batch["document_ids"]

        def mask(b: Any, h: Any, q: Any, k: Any, documents: torch.Tensor = documents) -> torch.Tensor:
            return (documents[b, q] == documents[b, k]) & (q >= k)

        qkv = heads(8 * LENGTH)
        q, k, v = (each.unflatten(0, (8, LENGTH)).transpose(1, 2) for each in qkv)
        found = compiled(q, k, v, block_mask=create_block_mask(mask, 8, None, LENGTH, LENGTH, device="cuda"))
        wanted = one_by_one(qkv, batch["cu_seqlens"].tolist())
        torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), wanted, atol=2e-3, rtol=2e-3)


def test_ranks_over_nccl_load_their_parts(make_store: Any, tmp_path: Path) -> None:
    """P2: a rank per device, in a process group of nccl."""
    plan = small_plan(small_store(make_store))
    ranks = min(torch.cuda.device_count(), 4)
    ranks -= ranks == 3
    run_ranks("tests.gpu.nccl_ranks", ranks, tmp_path, cuda=True)
    steps = [0, 1, 4, 5, 6]
    for rank, rows in enumerate(left(tmp_path, "rows", ranks)):
        assert same(rows, microbatches(plan, steps, rank, ranks))
