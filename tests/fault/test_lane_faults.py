"""Faults under a run that reads the blocks of lanes: the right batches, or one error; and processes that are killed."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.servers.patience import patient
from tests.support.servers.range_server import RangeServer
from tokenstore import Plan, PlanConfig, RemoteOptions, TokenLoader
from tokenstore.errors import CorruptionError, RemoteError
from tokenstore.store.block_checksums import add_block_checksums

STEPS, BATCH, LANES = 120, 12, 6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with checksums of blocks: 2,300 sequences in 12 blocks of 77 KB."""
    path = write_store(tmp_path_factory.mktemp("s") / "s", random_documents(2, 1500, 300, 70_000), 70_000, 400_000)
    add_block_checksums(path)
    return path


@pytest.fixture
def plan_at(path: Path, range_server: RangeServer, tmp_path: Path) -> Callable[..., Plan]:
    """plan_at(place, cache, deadline, block) is the plan over the store at `place`; block: sequences per block."""
    range_server.add_folder("bucket/s", path)

    def plan(place: str = "s3://bucket/s", cache: str = "cache", deadline: float = 20, block: int = 200) -> Plan:
        source: Any = {"path": place, "locality": {"block_sequences": block, "lanes": LANES}}
        config = PlanConfig(
            sequence_length=96,
            global_batch_size=BATCH,
            sources={"s": source},
            packing="concat",
            num_steps=STEPS,
        )
        return Plan(config, remote=RemoteOptions(cache=tmp_path / cache, deadline=deadline, transport="blocks"))

    return plan


@pytest.fixture
def expected(plan_at: Callable[..., Plan], path: Path) -> list[np.ndarray]:
    """The tokens of all steps."""
    local = plan_at(str(path))
    return [local.batch(step)["input_ids"] for step in range(STEPS)]


@pytest.mark.parametrize(
    "kind", ["slow_down", "truncated", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("reset", "short"))]
)
def test_faults_that_pass_change_nothing(
    plan_at: Callable[..., Plan], expected: list[np.ndarray], range_server: RangeServer, kind: Any
) -> None:
    loader = TokenLoader(plan_at(), rank=0, world_size=1)
    range_server.fail(kind, times=6, key="tokens-", after=2)
    assert all(np.array_equal(next(loader)["input_ids"], expected[step]) for step in range(30))
    assert loader.metrics()["data/remote/retries"] >= 1  # some requests may be given up: their block is not needed
    loader.close()


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("slow_down", RemoteError, "SlowDown in .* attempts"),
        # A row that is fetched by itself, in the first turn of all lanes, has no checksum
        ("flipped", CorruptionError, "expected the checksum|expected token ids below 70000"),
        ("replaced", CorruptionError, "it was replaced while in use"),
    ],
)
def test_faults_that_last_are_one_error(
    plan_at: Callable[..., Plan],
    path: Path,
    range_server: RangeServer,
    kind: Any,
    error: type[Exception],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the deadline; where it may help, the run goes on."""
    patient(monkeypatch)
    # 120 blocks, of which 12 have a place at a time: most of them are still to be fetched when the faults begin
    local, loader = plan_at(str(path), block=20), TokenLoader(plan_at(deadline=1, block=20), rank=0, world_size=1)
    for step in range(4):
        assert np.array_equal(next(loader)["input_ids"], local.batch(step)["input_ids"])
    range_server.fail(kind, times=None, key="tokens-")
    began = time.monotonic()
    with pytest.raises(error, match=says):
        list(loader)
    assert time.monotonic() - began < 20  # far above the deadline of 1: other tests run
    range_server.faults.clear()
    if error is RemoteError:
        step = loader.step
        assert np.array_equal(next(loader)["input_ids"], local.batch(step)["input_ids"])


@pytest.mark.parametrize("nodes", [2, 3])
def test_each_node_fetches_its_own_lanes(
    plan_at: Callable[..., Plan], path: Path, range_server: RangeServer, nodes: int
) -> None:
    """All nodes together fetch what one would; each has a share of the blocks on its disk."""
    local, world_size = plan_at(str(path)), 6
    options: dict[str, Any] = {"world_size": world_size, "nodes": nodes}
    loaders = [
        TokenLoader(plan_at(cache=f"node{rank * nodes // world_size}"), rank=rank, **options) for rank in range(6)
    ]
    folders = [Path(loader.plan.remote.cache) for loader in loaders]
    range_server.log.clear()
    for step in range(STEPS):
        for rank, loader in enumerate(loaders):
            assert np.array_equal(
                next(loader)["input_ids"], local.batch(step, rank, world_size, nodes=nodes)["input_ids"]
            )
        assert all(len(list(folder.rglob("*.block"))) <= 2 * LANES // nodes for folder in folders)
    assert not any(list(folder.rglob("*.block")) for folder in folders)
    whole = [record for record in range_server.gets("tokens-") if record.num_bytes > 10_000]
    assert len(whole) <= 2 * (STEPS * BATCH / 200 + 2 * LANES)  # a block may be in two shards


def rank(plan: Plan, number: int, expected: list[np.ndarray], seed: int) -> int:
    """Start a rank of 3 that reads from a random step on; it exits with 0 if its batches are right."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        step = random.Random(seed).randrange(STEPS // 2)
        loader, rows = TokenLoader(plan, rank=number, world_size=3, step=step), slice(4 * number, 4 * number + 4)
        code = 0 if all(np.array_equal(next(loader)["input_ids"], expected[k][rows]) for k in range(step, STEPS)) else 3
    finally:
        os._exit(code)


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.deep)])
def test_ranks_that_are_killed(
    plan_at: Callable[..., Plan], expected: list[np.ndarray], range_server: RangeServer, tmp_path: Path, kills: int
) -> None:
    """The others go on, whatever the dead ones were fetching; a later run removes what they left."""
    range_server.latency, range_server.bandwidth = 0.01, 4e6
    rng, running = random.Random(kills), dict[int, int]()
    try:
        for _ in range(kills):
            for number in range(3):
                if number not in running:
                    running[number] = rank(plan_at(), number, expected, rng.randrange(10**6))
            time.sleep(rng.random() * 0.4)
            victim = rng.randrange(3)
            os.kill(running[victim], signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(running.pop(victim), 0)[1])
            assert code in (0, -signal.SIGKILL)
        range_server.bandwidth = None
        for child in running.values():
            assert os.waitpid(child, 0)[1] == 0
    finally:
        for child in running.values():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert os.waitpid(rank(plan_at(), 0, expected, 1), 0)[1] == 0
    assert not list(tmp_path.rglob("*.block"))


def test_ranks_of_a_node_share_their_blocks(
    plan_at: Callable[..., Plan], expected: list[np.ndarray], range_server: RangeServer
) -> None:
    """Three processes that start together fetch each block once."""
    range_server.latency = 0.02
    children = [rank(plan_at(), number, expected, 7) for number in range(3)]
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    whole = [(record.key, record.range) for record in range_server.gets("tokens-") if record.num_bytes > 10_000]
    assert len(whole) <= 1.3 * len(set(whole))  # a stretch ends in a block where another one begins
