"""Stores at URLs that are read in lanes: the batches of the local store, from blocks that are fetched once and kept while needed."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import random_documents, write_store
from tests.support.servers.range_server import RangeServer
from tests.support.stores.at_urls import files_of
from tests.support.stores.masked import random_masked, write_masked
from tokenstore import Plan, PlanConfig, RemoteOptions, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError
from tokenstore.store.block_checksums import add_block_checksums
from tokenstore.store.remote.mirror import MirrorWarning

LENGTH, BATCH, STEPS = 96, 16, 240
LANES, BLOCK = 8, 20
FIELDS = ["input_ids", "targets", "document_ids"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of several shards: a has masks, and c is b with block checksums. The run is more than an epoch of a and b."""
    folder = tmp_path_factory.mktemp("stores")
    masked = random_masked(1, [random.Random(1).randint(1, 300) for _ in range(1500)], 70_000)
    a = write_masked(folder / "a", masked, vocab_size=70_000, shard_bytes=300_000)
    b, c = (write_store(folder / name, random_documents(2, 1500, 300, 70_000), 70_000, 400_000) for name in "bc")
    add_block_checksums(c)
    return {"a": a, "b": b, "c": c}


@pytest.fixture
def plan_at(stores: dict[str, Path], range_server: RangeServer, tmp_path: Path) -> Callable[..., Plan]:
    """plan_at(place, **remote) is the plan over stores at `place`, a pattern; sources in the order a, b."""
    for name, path in stores.items():
        range_server.add_folder(f"bucket/{name}", path)

    def plan(place: str = "s3://bucket/{name}", names: str = "ab", **remote: Any) -> Plan:
        sources: dict[str, Any] = {
            name: {
                "path": place.format(name=name, path=stores[name]),
                "locality": {"block_sequences": BLOCK, "lanes": LANES},
            }
            for name in names
        }
        config = PlanConfig(
            sequence_length=LENGTH,
            global_batch_size=BATCH,
            seed=3,
            sources=sources,
            packing="concat",
            num_steps=STEPS,
            skip_steps=[[60, 66]],
        )
        return Plan(config, remote=RemoteOptions(**{"cache": tmp_path / "cache", "deadline": 60, **remote}))

    return plan


def blocks_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.block"))


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_fetches_each_block_once_and_holds_two_per_lane(
    plan_at: Callable[..., Plan], range_server: RangeServer, tmp_path: Path
) -> None:
    """All batches of two sources, over the ends of epochs and skipped steps; at the end nothing is left in the cache."""
    loaders = [TokenLoader(plan, rank=0, world_size=1, fields=FIELDS) for plan in (plan_at("{path}"), plan_at())]
    range_server.log.clear()
    used = 0
    for one, other in zip(*loaders, strict=True):
        assert equal(one, other)
        used += 4 * other["input_ids"].numel()
        assert len(blocks_in(tmp_path)) <= 2 * 2 * LANES
    assert {files_of(loaders[1].plan, name).transport for name in "ab"} == {"blocks"}
    fetched = range_server.gets("tokens-") + range_server.gets("mask-")
    ranges = Counter((record.key, record.range) for record in fetched)
    assert max(ranges.values()) <= 2  # the block in which a stretch ends and another begins
    assert len(fetched) - len(ranges) <= 2 * 2 * (2 * LANES - 1)  # sources, epochs, tokens and masks
    assert (
        sum(record.num_bytes for record in fetched) <= 1.35 * used
    )  # 11 blocks per lane and epoch, masks, skipped steps
    assert len(fetched) < STEPS * BATCH / 8
    assert not blocks_in(tmp_path)
    metrics = loaders[1].metrics()
    assert metrics["data/remote/cache_hits"] + metrics["data/remote/cache_misses"] > 3 * len(fetched)


@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.deep)])
def test_resumes_on_any_number_of_ranks(plan_at: Callable[..., Plan], world_size: int) -> None:
    """At random steps and inside them, forwards and backwards, with one loader and with a new one."""
    local, remote = plan_at("{path}"), plan_at()
    rng = random.Random(world_size)
    for step in rng.sample(range(STEPS - 30), 4):
        rank = rng.randrange(world_size)
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "microbatch_size": 1}
        loaders = [TokenLoader(plan, fields=FIELDS, inside_step="continue", **options) for plan in (local, remote)]
        for _ in range(2):
            state = local.state(step)
            for _ in range(2):
                for loader in loaders:
                    loader.load_state_dict(state)
                for _ in range(21):
                    assert equal(*(next(loader) for loader in loaders))
                state = loaders[1].state_dict()
            step = rng.randrange(step + 1)
        for loader in loaders:
            loader.close()


def test_other_ways_to_read_a_plan(plan_at: Callable[..., Plan]) -> None:
    """`Plan.batch` reads exact ranges, before and after a loader; a thread and forked workers read blocks."""
    local, remote = plan_at("{path}"), plan_at()
    assert all((local.batch(5)[name] == remote.batch(5)[name]).all() for name in ("input_ids", "targets"))
    expected = [batch for batch, _ in zip(TokenLoader(local, rank=0, world_size=1), range(12), strict=False)]
    loader = TokenLoader(remote, rank=0, world_size=1, prefetch=2)
    assert all(equal(next(loader), batch) for batch in expected)
    loader.close()
    assert np.array_equal(remote.batch(0)["input_ids"], expected[0]["input_ids"].numpy())
    dataset = TokenDataset(remote, rank=0, world_size=1)
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    assert all(equal(next(batches), batch) for batch in expected)


def test_blocks_are_compared_with_checksums(plan_at: Callable[..., Plan], range_server: RangeServer) -> None:
    """Whole checksum blocks are fetched, and wrong bytes are fetched again."""
    local, remote = plan_at("{path}", "c"), plan_at(names="c", transport="blocks")
    loaders = [TokenLoader(plan, rank=0, world_size=1) for plan in (local, remote)]
    for step in range(40):
        assert equal(*(next(loader) for loader in loaders))
        if step == 5:  # the first rows were exact ranges, which have no checksum
            range_server.fail("flipped", times=2, key="tokens-")  # a block is fetched three times at most
            range_server.log.clear()
    for record in range_server.gets("tokens-"):
        # How far ahead the run plans depends on its waits. It may reach a lane that reads only two sequences of a block
        is_small = record.num_bytes <= 4 * (2 * LENGTH + 1)
        assert is_small or int(record.range.removeprefix("bytes=").split("-")[0]) % (1 << 16) == 0
    assert not range_server.faults._rules[0].times
    loaders[1].close()


def test_a_cache_that_is_too_small(plan_at: Callable[..., Plan], range_server: RangeServer, tmp_path: Path) -> None:
    """Rows are fetched one by one, with a warning that says the number; blocks that were demanded are refused."""
    with pytest.raises(ConfigError, match=r"the lanes of this store take [\d,]+ bytes, and the cache may hold 100,000"):
        next(TokenLoader(plan_at(names="a", transport="blocks", cache_limit=100_000), rank=0, world_size=1))
    loader = TokenLoader(plan_at(names="a", cache_limit=100_000), rank=0, world_size=1)
    range_server.log.clear()
    with pytest.warns(MirrorWarning, match=r"a cache_limit of [\d,]+ bytes or more") as caught:
        batch = next(loader)
    assert equal(batch, next(TokenLoader(plan_at("{path}", "a"), rank=0, world_size=1)))
    assert not blocks_in(tmp_path)
    needed = int(str(caught[0].message).split("cache_limit of ")[1].split(" ")[0].replace(",", ""))
    enough = TokenLoader(plan_at(names="a", cache_limit=needed), rank=0, world_size=1)
    assert equal(next(enough), batch)
    assert files_of(enough.plan, "a").transport == "blocks"
    enough.close()


def test_a_store_smaller_than_its_lanes_is_mirrored(plan_at: Callable[..., Plan]) -> None:
    """With checksums, 16 small blocks take more than the store."""
    plan = plan_at(names="c")
    next(TokenLoader(plan, rank=0, world_size=1))
    assert files_of(plan, "c").transport == "mirror"
