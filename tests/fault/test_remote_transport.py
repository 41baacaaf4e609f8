"""Faults of object storage and of the cache under a run: the right batches, or one error that names object and remedy."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.privileges import open_folder, unprivileged
from tests.support.servers.patience import patient, set_deadline
from tests.support.servers.range_server import RangeServer
from tests.support.stores.at_urls import cached_files, files_of, plan_at
from tokenstore import Plan, TokenLoader
from tokenstore.batches import remote_rows
from tokenstore.errors import ConfigError, CorruptionError, RemoteError, TokenStoreError
from tokenstore.store.block_checksums import add_block_checksums
from tokenstore.store.remote import mirror, mirror_file
from tokenstore.store.remote.mirror import MirrorWarning
from tokenstore.store.remote.token_files import TokenFiles
from tokenstore.store.workers import are_idle

URL = "s3://bucket/s"
TRANSPORTS = ["spans", "mirror"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two shards and six blocks, with checksums of blocks."""
    path = write_store(tmp_path_factory.mktemp("s") / "s", random_documents(5, 900, 200, 70_000), 70_000, 200_000)
    add_block_checksums(path)
    return path


@pytest.fixture
def local(path: Path) -> Plan:
    """The plan over the local store."""
    return Plan.of(str(path), sequence_length=64, global_batch_size=8, seed=3, num_steps=40, packing="concat")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenFiles, "block_bytes", 1 << 16)


@pytest.fixture
def run(range_server: RangeServer, path: Path, tmp_path: Path) -> Callable[..., Plan]:
    """run(transport, **options) is the plan over the store at its URL."""
    range_server.add_folder("bucket/s", path)
    return lambda transport, **options: plan_at(URL, tmp_path / "cache", transport=transport, **options)


def check_batches(plan: Plan, local: Plan, count: int = 12) -> None:
    """Compare batches with those of the local store."""
    loader = TokenLoader(plan, rank=0, world_size=1)
    for step in range(count):
        assert np.array_equal(next(loader)["input_ids"].numpy(), local.batch(step)["input_ids"])
    loader.close()


def drain(loader: TokenLoader, count: int = 39) -> None:
    """Take batches."""
    for _ in range(count):
        next(loader)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "kind",
    [
        "slow_down",
        "truncated",
        *(
            pytest.param(kind, marks=pytest.mark.deep)
            for kind in ("error", "reset", "reset_early", "short", "hang_in_body")
        ),
    ],
)
def test_faults_that_pass_change_nothing(
    run: Callable,
    range_server: RangeServer,
    local: Plan,
    kind: Any,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = kind == "hang_in_body"
    patient(monkeypatch, answers=not hangs)
    plan = run(transport, deadline=6 if hangs else 60)
    range_server.fail(kind, times=4, key="tokens-", after=1)
    check_batches(plan, local)
    assert TokenLoader(plan, rank=0, world_size=1).metrics()["data/remote/retries"] >= 4


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("slow_down", RemoteError, "SlowDown in .* attempts; check the network"),
        ("hang", RemoteError, "no complete answer"),
        ("expired", RemoteError, "ExpiredToken; check that the credentials"),
        ("missing", CorruptionError, "NoSuchKey.* copy or build the store again"),
        ("replaced", CorruptionError, "it was replaced while in use"),
    ],
)
def test_faults_that_last_are_one_error_within_the_deadline(
    run: Callable,
    range_server: RangeServer,
    kind: Any,
    error: type[Exception],
    says: str,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient(monkeypatch, answers=kind != "hang")
    plan = run(transport)
    loader = TokenLoader(plan, rank=0, world_size=1)
    set_deadline(plan, 1)
    range_server.fail(kind, times=None, key="tokens-")
    began = time.monotonic()
    with pytest.raises(error, match=says) as caught:
        drain(loader)
    assert time.monotonic() - began < 20  # far above the deadline of 1: other tests run
    assert "bytes " in str(caught.value)
    assert f"{URL}/tokens-0000" in str(caught.value)
    range_server.faults.clear()
    if error is RemoteError:  # the run can go on
        set_deadline(plan, 60)
        next(loader)


def test_a_replaced_store_is_detected_without_entity_tags_by_its_size(
    run: Callable, range_server: RangeServer, path: Path
) -> None:
    """For servers without ETags, and for objects that a run has not read yet."""
    plan = run("spans", deadline=2)
    range_server.put("bucket/s/tokens-00000.bin", (path / "tokens-00000.bin").read_bytes() + b"more")
    range_server.put("bucket/s/tokens-00001.bin", b"less")
    files_of(plan)._infos.clear()
    with pytest.raises(CorruptionError, match=r"expected \d+ bytes, as when the store was opened"):
        next(TokenLoader(plan, rank=0, world_size=1))


@pytest.mark.parametrize("kind", ["flipped", "shifted"])
def test_a_mirror_refuses_wrong_bytes(run: Callable, range_server: RangeServer, local: Plan, kind: Any) -> None:
    """They are fetched again, and if that does not help, the error names the block."""
    range_server.fail(kind, times=2, key="tokens-")
    check_batches(run("mirror"), local)


def test_a_damaged_object_is_an_error_that_names_its_block(
    run: Callable, range_server: RangeServer, local: Plan
) -> None:
    range_server.fail("flipped", times=None, key="tokens-00000.bin")
    with pytest.raises(CorruptionError, match=rf"bytes \d+\.\.\d+: expected the checksum .*{URL}/tokens-00000.bin"):
        check_batches(run("mirror"), local)


def test_ids_outside_the_vocabulary_never_reach_a_model(run: Callable, range_server: RangeServer) -> None:
    """Without a mirror, ids are what can be checked besides length and ETag."""
    plan = run("spans")
    key = range_server.objects.get("bucket", "s/tokens-00000.bin")
    range_server.objects.buckets["bucket"]["s/tokens-00000.bin"] = type(key)(
        b"\xff" * len(key.data), key.etag, key.modified
    )
    with pytest.raises(CorruptionError, match=rf"expected token ids below 70000, found .*{URL}/tokens-00000.bin"):
        drain(TokenLoader(plan, rank=0, world_size=1))


# ---- the cache


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_cache_disk_that_is_full_or_fails_turns_to_spans(
    run: Callable, local: Plan, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """With a warning, and blocks that are there stay in use."""
    write, left = mirror_file.write_at, [2]

    def full(descriptor: int, data: memoryview, offset: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        write(descriptor, data, offset)

    monkeypatch.setattr(mirror_file, "write_at", full)
    with pytest.warns(MirrorWarning, match=r"cannot write .*; tokens are fetched from the bucket instead"):
        check_batches(run("mirror"), local, 40)


def test_a_torn_write_is_not_used(run: Callable, local: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in the middle of a block leaves it absent."""
    write = mirror_file.write_at

    def torn(descriptor: int, data: memoryview, offset: int) -> None:
        write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.EIO, "killed")

    monkeypatch.setattr(mirror_file, "write_at", torn)
    with pytest.warns(MirrorWarning):
        check_batches(run("mirror"), local)
    monkeypatch.setattr(mirror_file, "write_at", write)
    check_batches(run("mirror"), local, 40)


def test_a_read_only_cache_is_used_as_far_as_it_goes(
    run: Callable, local: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are read, and others are fetched as spans. Nothing is written."""
    monkeypatch.setattr(remote_rows, "FIRST_ROWS", 1)
    with open_folder() as folder:
        cache = folder / "cache"
        check_batches(plan_at(URL, cache, transport="mirror"), local, 1)
        while not are_idle():
            time.sleep(0.01)
        before = {file: file.read_bytes() for file in cached_files(cache)}
        for file in [*cache.rglob("*"), cache]:
            file.chmod(0o555 if file.is_dir() else 0o444)
        expected = [local.batch(step)["input_ids"] for step in range(40)]
        with unprivileged():
            loader = TokenLoader(plan_at(URL, cache, transport="auto"), rank=0, world_size=1)
            assert all(np.array_equal(next(loader)["input_ids"].numpy(), ids) for ids in expected)
            assert loader.metrics()["data/remote/cache_hits"] > 0 < loader.metrics()["data/remote/cache_misses"]
            with pytest.raises(ConfigError, match="the cache is read-only and does not have the whole store"):
                next(TokenLoader(plan_at(URL, cache, transport="mirror"), rank=0, world_size=1))
        assert {file: file.read_bytes() for file in cached_files(cache)} == before


def test_a_cache_that_is_removed_under_a_run_changes_nothing(run: Callable, local: Plan, tmp_path: Path) -> None:
    plan = run("mirror")
    loader = TokenLoader(plan, rank=0, world_size=1)
    next(loader)

    def use_without_files() -> None:
        for file in cached_files(tmp_path / "cache"):
            file.unlink()
        drain(loader, 5)
        check_batches(plan, local, 40)

    with pytest.warns(MirrorWarning, match="No such file"):  # once, whoever notices it first
        use_without_files()


def test_a_cut_cache_file_is_an_error_not_zeros(run: Callable, local: Plan, tmp_path: Path) -> None:
    check_batches(run("mirror"), local, 40)
    loader = TokenLoader(run("mirror"), rank=0, world_size=1)
    next(loader)
    for file in cached_files(tmp_path / "cache"):
        os.truncate(file, 0)
    with pytest.raises(TokenStoreError, match=r"cache: expected \d+ readable bytes, found fewer"):
        drain(loader)
    check_batches(run("mirror"), local, 40)  # it is made again


def test_a_claim_of_a_process_that_hangs_delays_but_does_not_stop(
    run: Callable, local: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PATIENCE", 0.2)
    plan = run("mirror")
    other = files_of(run("mirror")).mirror
    assert other is not None
    with other.file(0).claimed(0) as first, other.file(0).claimed(1) as second:
        assert first
        assert second
        check_batches(plan, local, 40)


@pytest.mark.deep
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_faults_at_once_change_nothing(
    run: Callable, range_server: RangeServer, local: Plan, transport: str
) -> None:
    """A third of all requests for tokens fail in one way or another, in several runs over the same cache."""
    kinds: list[Any] = ["slow_down", "error", "reset", "reset_early", "truncated", "short", "hang_in_body"]
    kinds += ["flipped", "shifted"] if transport == "mirror" else []
    for seed, kind in enumerate(kinds):
        range_server.fail(kind, times=None, key="tokens-", share=0.04, seed=seed)
    for _ in range(4):
        plan = run(transport, deadline=32)
        check_batches(plan, local, 40)
