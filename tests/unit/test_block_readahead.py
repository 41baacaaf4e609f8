"""Blocks of lanes on disks are read ahead while batches wait for the disk: each once, before its rows, two per lane at most."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import random_documents, write_store
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.batches import block_readahead
from tokenstore.store.workers import are_idle
from tokenstore.torch_data import prefetch

LANES, BLOCK, LENGTH, BATCH = 8, 20, 96, 16


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("s") / "s", random_documents(2, 1500, 300, 70_000), 70_000, 400_000)


def plan_over(path: Path, local: bool = True) -> Plan:
    """A plan of an epoch and a half over the store, with or without a locality."""
    locality = {"block_sequences": BLOCK, "lanes": LANES} if local else None
    source: Any = {"path": str(path), "locality": locality}
    fields: Any = {"sequence_length": LENGTH, "global_batch_size": BATCH, "num_steps": 210}
    return Plan(PlanConfig(sources={"s": source}, packing="concat", **fields))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranges that were read ahead: file, start, stop."""
    found: list[tuple[str, int, int]] = []
    real = block_readahead.read_ahead

    def read_ahead(path: Path, ranges: list[tuple[int, int]], allow_links: Path | None) -> None:
        found.extend((path.name, *each) for each in ranges)
        real(path, ranges, allow_links)

    monkeypatch.setattr(block_readahead, "read_ahead", read_ahead)
    return found


def wait_until_asked() -> None:
    end = time.monotonic() + 20
    while not are_idle() and time.monotonic() < end:
        time.sleep(0.005)


def test_blocks_are_read_ahead_while_batches_wait(
    path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row from then on is in a block that was asked for before; the batches are the same."""
    faults = itertools.count()
    monkeypatch.setattr(prefetch, "major_faults", lambda: next(faults))  # each look finds another fault
    plan = plan_over(path)
    loader, expected = TokenLoader(plan, rank=0, world_size=1), TokenLoader(plan, rank=0, world_size=1, readahead=0)
    shards = {shard.file: shard for shard in plan.stores["s"].shards()}
    for step in range(210):
        assert torch.equal(next(loader)["input_ids"], next(expected)["input_ids"])
        wait_until_asked()
        if step < 8:
            continue
        ranges = [
            (shards[name].first_token + start // 4, shards[name].first_token + stop // 4) for name, start, stop in asked
        ]
        for row in plan.documents(step):
            piece = row[0]
            first = int(plan.stores["s"].boundaries()[piece.document]) + piece.start
            assert any(start <= first < stop for start, stop in ranges), step
    bytes_asked = sum(stop - start for _, start, stop in asked)
    assert bytes_asked <= 1.35 * 210 * BATCH * LENGTH * 4  # each block once, and those that two lanes share twice


@pytest.mark.parametrize("case", ["no faults", "no locality", "readahead=0", "little memory"])
def test_nothing_is_read_ahead_otherwise(
    path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    faults = itertools.count() if case != "no faults" else itertools.repeat(0)
    monkeypatch.setattr(prefetch, "major_faults", lambda: next(faults))
    if case == "little memory":
        monkeypatch.setattr(block_readahead, "memory_bytes", lambda: 100_000)
    plan = plan_over(path, local=case != "no locality")
    loader = TokenLoader(plan, rank=0, world_size=1, readahead=0 if case == "readahead=0" else 4)
    for _ in range(30):
        next(loader)
    wait_until_asked()
    assert not asked
