"""Ranks that share a mirror are killed while it fills: no rank ever gets a wrong token, and no wrong block is ever marked."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.servers.range_server import RangeServer
from tests.support.stores.at_urls import cached_files, plan_at
from tokenstore import Plan, TokenLoader
from tokenstore.store.remote.mirror_file import PAGE_BYTES
from tokenstore.store.remote.token_files import TokenFiles

URL, BLOCK, RANKS, STEPS = "s3://bucket/s", 1 << 16, 3, 60
FIELDS = {"sequence_length": 128, "global_batch_size": 12, "num_steps": STEPS}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("s") / "s", random_documents(5, 8000, 300), 300, 800_000)


def check_marked(cache: Path, path: Path) -> float:
    """Compare every block that is marked as present with the store; returns the share of such blocks."""
    marked = total = 0
    for file in cached_files(cache):
        data = (path / file.name.removesuffix(".blocks")).read_bytes()
        tail = -(-len(data) // PAGE_BYTES) * PAGE_BYTES
        marks = file.read_bytes()[tail + PAGE_BYTES :]  # first the marks, then the bytes: other ranks go on
        found = file.read_bytes()
        assert len(marks) == -(-len(data) // BLOCK)
        for block in np.flatnonzero(np.frombuffer(marks, np.uint8)).tolist():
            place = slice(block * BLOCK, min((block + 1) * BLOCK, len(data)))
            assert found[place] == data[place], f"{file.name}, block {block}"
            marked += 1
        total += len(marks)
    return marked / total if total else 0.0


def rank(number: int, cache: Path, expected: np.ndarray, seed: int) -> int:
    """Start a rank that reads batches from a random step on; it exits with 0 if they are right."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        step = random.Random(seed).randrange(STEPS // 2)
        plan = plan_at(URL, cache, FIELDS, transport="mirror")
        loader = TokenLoader(plan, rank=number, world_size=RANKS, step=step)
        share = FIELDS["global_batch_size"] // RANKS
        rows = slice(number * share, (number + 1) * share)
        code = 0 if all(np.array_equal(next(loader)["input_ids"], expected[k][rows]) for k in range(step, STEPS)) else 3
    finally:
        os._exit(code)


@pytest.fixture
def ranks() -> Iterator[dict[int, int]]:
    """Running ranks: number -> process. What still runs at the end is killed."""
    running: dict[int, int] = {}
    yield running
    for child in running.values():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.deep)])
def test_ranks_that_are_killed_while_a_mirror_fills(
    path: Path,
    range_server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: dict[int, int],
    kills: int,
) -> None:
    monkeypatch.setattr(TokenFiles, "block_bytes", BLOCK)
    range_server.add_folder("bucket/s", path)
    local = Plan.of(str(path), seed=3, packing="concat", **FIELDS)
    expected = np.stack([local.batch(step)["input_ids"] for step in range(STEPS)])
    range_server.latency, range_server.bandwidth = 0.01, 4e6
    rng, shares = random.Random(kills), []
    for kill in range(kills):
        cache = tmp_path / f"cache{kill // 10}"
        for number in range(RANKS):
            if number not in ranks:
                ranks[number] = rank(number, cache, expected, rng.randrange(10**6))
        time.sleep(rng.random() * 0.4)
        victim = rng.randrange(RANKS)
        os.kill(ranks[victim], signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(ranks.pop(victim), 0)[1])
        assert code in (0, -signal.SIGKILL), code
        for number, child in list(ranks.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                assert ranks.pop(number) == child
                assert status == 0
        shares.append(check_marked(cache, path))
    range_server.bandwidth = None
    for number in range(RANKS):  # what is there now is enough, and all of it is right
        child = ranks.pop(number, 0) or rank(number, cache, expected, kills)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert any(0 < share < 1 for share in shares)  # ranks were killed while the mirror filled


def test_ranks_of_a_node_share_what_they_fetch(
    path: Path, range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: dict[int, int]
) -> None:
    """Together they fetch little more than the store once."""
    monkeypatch.setattr(TokenFiles, "block_bytes", BLOCK)
    range_server.add_folder("bucket/s", path)
    range_server.latency = 0.02
    local = Plan.of(str(path), seed=3, packing="concat", **FIELDS)
    expected = np.stack([local.batch(step)["input_ids"] for step in range(STEPS)])
    for number in range(RANKS):
        ranks[number] = rank(number, tmp_path / "cache", expected, 0)
    for number in range(RANKS):
        assert os.waitstatus_to_exitcode(os.waitpid(ranks.pop(number), 0)[1]) == 0
    total = sum(file.stat().st_size for file in path.glob("tokens-*"))
    assert sum(record.num_bytes for record in range_server.gets("tokens-")) <= 1.05 * total
