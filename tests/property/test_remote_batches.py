"""Batches of stores at URLs equal those of the local stores, by every transport, from any step, on any number of nodes."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import random_documents, write_store
from tests.support.servers.moto_server import moto_server
from tests.support.servers.range_server import RangeServer
from tests.support.stores.at_urls import cached_files, files_of
from tests.support.stores.masked import random_masked, write_masked
from tokenstore import Evaluation, Plan, PlanConfig, RemoteOptions, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.store.block_checksums import add_block_checksums
from tokenstore.store.remote.token_files import TokenFiles

LENGTH, BATCH = 96, 16
CASES: dict[str, dict[str, Any]] = {
    "concat": {"packing": "concat"},
    "stages": {
        "packing": "concat",
        "weights": (2, 1),
        "stages": [{"from_step": 40, "weights": {"b": 1}, "global_batch_size": 8}],
    },
    "best_fit": {"packing": "best_fit", "skip_steps": [[20, 30]]},
    "pool": {"packing": "best_fit", "pool": True},
    "none": {"packing": "none", "shuffle": False},
    "evaluation": {"packing": "concat", "num_steps": "all_exhausted"},
    "cross": {"packing": "concat", "cross_document_targets": True},
}
USUAL = ("concat", "pool")  # the others are deep tests


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two stores of several shards and several blocks, one with masks."""
    folder = tmp_path_factory.mktemp("stores")
    masked = random_masked(1, [random.Random(1).randint(1, 300) for _ in range(1500)], 70_000)
    paths = {
        "a": write_masked(folder / "a", masked, vocab_size=70_000, shard_bytes=300_000, length_index=True),
        "b": write_store(folder / "b", random_documents(2, 1500, 300, 70_000), 70_000, 400_000, length_index=True),
    }
    add_block_checksums(paths["b"])
    return paths


@pytest.fixture
def at_url(
    stores: dict[str, Path], range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Plan, Plan]]:
    """at_url(case, transport) returns the same plan over local stores and over stores at a URL."""
    monkeypatch.setattr(TokenFiles, "block_bytes", 1 << 16)
    for name, path in stores.items():
        range_server.add_folder(f"bucket/{name}", path)

    def plans(case: str, transport: str) -> tuple[Plan, Plan]:
        both = []
        for place in ("{path}", "s3://bucket/{name}"):
            fields = dict(CASES[case])
            sources: dict[str, Any] = {
                name: {"path": place.format(name=name, path=path)} for name, path in stores.items()
            }
            for name, weight in zip(sources, fields.pop("weights", ()), strict=False):
                sources[name]["weight"] = weight
            if fields.pop("pool", False):
                sources["ab"] = {"pool": {"a": 1.5, "b": 1}}
            config = PlanConfig(
                sequence_length=LENGTH, global_batch_size=BATCH, seed=3, sources=sources, **{"num_steps": 100, **fields}
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                remote = RemoteOptions(transport=transport, cache=tmp_path / "cache", deadline=60)
                both.append(Plan(config, remote=remote))
        return both[0], both[1]

    return plans


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("transport", ["spans", "mirror"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in USUAL else pytest.mark.deep) for case in CASES]
)
def test_batches_equal_those_of_the_local_store(at_url: Callable, case: str, transport: str) -> None:
    """Resumed at random steps and inside them, on 1, 2 and 8 ranks, with masks and uint32."""
    local, remote = at_url(case, transport)
    assert (local.fingerprint, local.history(7)) == (remote.fingerprint, remote.history(7))
    rng = random.Random(case)
    for world_size in 1, 2, 8:
        rank, step = rng.randrange(world_size), rng.randrange(60)
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "microbatch_size": 1,
            "inside_step": "continue",
        }
        loaders = [
            TokenLoader(plan, fields=["input_ids", "targets", "document_ids"], **options) for plan in (local, remote)
        ]
        state = local.state(step)
        for _ in range(2):
            for loader in loaders:
                loader.load_state_dict(state)
            for _ in range(20):
                assert equal(*(next(loader) for loader in loaders))
            assert loaders[0].state_dict() == loaders[1].state_dict()
            state = loaders[1].state_dict()
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("transport", ["spans", "mirror"])
def test_other_ways_to_read_a_plan(at_url: Callable, transport: str) -> None:
    """`Plan.batch`, a prefetching thread, sequences by number, and workers that were forked."""
    local, remote = at_url("best_fit", transport)
    assert all((local.batch(5)[name] == remote.batch(5)[name]).all() for name in ("input_ids", "targets"))
    assert local.documents(5) == remote.documents(5)
    expected = [batch for batch, _ in zip(TokenLoader(local, rank=0, world_size=1), range(6), strict=False)]
    loader = TokenLoader(remote, rank=0, world_size=1, prefetch=2)
    assert all(equal(next(loader), batch) for batch in expected)
    loader.close()
    rows = SequenceDataset(remote).__getitems__([3, 1])
    assert all(equal(row, {name: expected[0][name][n] for name in row}) for row, n in zip(rows, (3, 1), strict=True))
    dataset = TokenDataset(remote, rank=0, world_size=1)
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    assert all(equal(next(batches), batch) for batch in expected)


def test_an_evaluation_at_a_url_reads_every_token(at_url: Callable) -> None:
    """Also those after the last window of each stream."""
    local, remote = at_url("evaluation", "spans")
    fields = ("input_ids", "targets", "document_ids")
    evaluations = [Evaluation(plan, microbatch_size=100, fields=fields) for plan in (local, remote)]
    num_tokens = 0
    for one, other in zip(*evaluations, strict=True):
        assert equal(one, other)
        num_tokens += int((other["document_ids"] >= 0).sum())
    assert num_tokens == sum(store.num_tokens for store in local.stores.values())


@pytest.mark.deep
@pytest.mark.parametrize("transport", ["spans", "mirror"])
def test_workers_that_are_spawned(at_url: Callable, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They open the URL again, with the same options; a state continues in them."""
    monkeypatch.setattr(TokenFiles, "block_bytes", 1 << 20)  # as in the children
    local, remote = at_url("concat", transport)
    expected = list(TokenLoader(local, rank=0, world_size=1, step=94))
    dataset = TokenDataset(remote, rank=0, world_size=1, step=94)
    # To the end, so that no worker is stopped while it sends a batch: on a busy machine one aborted then
    batches = list(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn"))
    assert len(batches) == 6
    assert all(map(equal, batches, expected))


@pytest.mark.parametrize("transport", ["spans", "mirror"])
def test_a_real_s3_server(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """The same batches from moto."""
    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.add_folder("b", stores["b"])
        fields: dict[str, Any] = {"sequence_length": LENGTH, "global_batch_size": 4}
        remote = RemoteOptions(transport=transport, cache=tmp_path / "cache")
        loader = TokenLoader(Plan.of("s3://bucket/b", **fields, remote=remote), rank=0, world_size=1)
        local = TokenLoader(Plan.of(str(stores["b"]), **fields), rank=0, world_size=1)
        assert all(equal(next(loader), next(local)) for _ in range(5))
        loader.close()


def test_spans_fetch_what_is_used_and_keep_nothing(at_url: Callable, range_server: RangeServer, tmp_path: Path) -> None:
    """Bytes per byte used stay below 1.02, and no file is written."""
    _, remote = at_url("cross", "spans")
    loader = TokenLoader(remote, rank=0, world_size=1)
    used = sum(4 * next(loader)["input_ids"].numel() for _ in range(40))
    ahead = loader._maker.sampler.remote.ahead_rows * (4 * LENGTH + 4)  # requested, and not used yet
    masks = 0.04 * used  # one bit per token of 32, of every other source
    fetched = sum(record.num_bytes for record in range_server.gets("tokens-") + range_server.gets("mask-"))
    assert used <= fetched <= 1.02 * used + masks + ahead
    assert not cached_files(tmp_path / "cache")


def test_a_mirror_fetches_each_block_once(at_url: Callable, range_server: RangeServer) -> None:
    """Later epochs and other loaders make no request; the bytes are those of the store, and few more for the first rows."""
    local, remote = at_url("concat", "mirror")
    loader = TokenLoader(remote, rank=0, world_size=1, format="hf")
    expected = TokenLoader(local, rank=0, world_size=1, format="hf")
    for _ in range(100):
        assert equal(next(loader), next(expected))
    total = sum(int(files_of(remote, name).num_bytes.sum()) for name in "ab")
    blocks = range_server.gets("tokens-") + range_server.gets("mask-")
    assert sum(record.num_bytes for record in blocks) <= 1.05 * total
    range_server.log.clear()
    again = TokenLoader(at_url("concat", "mirror")[1], rank=0, world_size=1, format="hf")
    first = TokenLoader(local, rank=0, world_size=1, format="hf")
    assert all(equal(next(again), next(first)) for _ in range(100))
    assert not range_server.gets("tokens-") + range_server.gets("mask-")
    metrics = again.metrics()
    assert metrics["data/remote/cache_hits"] > 0 == metrics["data/remote/cache_misses"]
    assert "data/remote/bytes" not in first.metrics()
