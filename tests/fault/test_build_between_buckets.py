"""Builds from one bucket to another while requests fail: the objects of a local build, or no manifest."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenstore
from tests.support.processes.stopping import Child
from tests.support.servers.moto_server import moto_server
from tests.support.servers.range_server import RangeServer
from tests.support.stores.building import mixed_corpus
from tokenstore.builder import BuildOptions, build_store
from tokenstore.builder.reading import remote_inputs
from tokenstore.errors import TokenStoreError

SOURCE, TARGET = "s3://in/corpus", "s3://out/stores/web"
SPLIT = {"split": "a=0.5,b=0.5"}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of some hundred bytes, errors after some seconds, and nothing kept from another test."""
    monkeypatch.setattr(remote_inputs, "_BLOCK", 1000)
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENSTORE_DEADLINE", "20")
    remote_inputs._client.cache_clear()
    remote_inputs._block.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files of every format."""
    return mixed_corpus(tmp_path / "in")


def build(source: str | Path, output: str | Path, **options: Any) -> object:
    """A build in several shards."""
    return build_store(BuildOptions((str(source),), output, "bytes", max_bad=3, shard_bytes=2000, **options))


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objects(server: RangeServer) -> dict[str, bytes]:
    """The objects of the store, or stores, by the rest of their names."""
    found = server.objects.buckets["out"]
    return {key.removeprefix("stores/web/"): bytes(each.data) for key, each in found.items()}


@pytest.fixture
def server(range_server: RangeServer, corpus: Path) -> RangeServer:
    """A server with the corpus in one bucket, and another bucket."""
    range_server.add_folder("in/corpus", corpus)
    range_server.objects.buckets["out"] = {}
    return range_server


def check_complete(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """A store with a manifest has all its objects. An error may come after the commit."""
    for manifest in (name for name in found if name.endswith("manifest.json")):
        of_store = {name for name in expected if name.startswith(manifest.removesuffix("manifest.json"))}
        assert {name: found.get(name) for name in of_store} == {name: expected[name] for name in of_store}


def check_faults(server: RangeServer, expected: dict[str, bytes], seed: int, **options: Any) -> None:
    """Let requests fail at random. A build that ends with an error leaves no incomplete store; the last one makes the store."""
    draw = random.Random(seed)
    server.objects.buckets["out"] = {}
    for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
        kind = draw.choice(["slow_down", "error", "reset", "reset_early", "truncated", "expired", "forbidden"])
        after, times = draw.randrange(40 if method in ("GET", "PUT") else 4), draw.randrange(1, 4)
        server.fail(kind, method=method, times=times, after=after, share=draw.choice([0.3, 1.0]), seed=seed)
    if draw.random() < 0.3:
        server.fail(draw.choice(["slow_down", "expired", "truncated"]), only_lists=True)
    for _ in range(12):
        try:
            build(SOURCE, TARGET, **options)
            break
        except TokenStoreError:
            check_complete(objects(server), expected)
    else:
        pytest.fail("the faults passed, but no build succeeded")
    server.faults.clear()
    assert objects(server) == expected


@pytest.fixture(params=[{}, SPLIT], ids=["store", "splits"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of the build."""
    return request.param


@pytest.fixture
def expected(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> dict[str, bytes]:
    """The files of a local build."""
    build(corpus, tmp_path / "local", **options)
    return tree(tmp_path / "local")


def test_faults_of_any_request_do_not_change_the_objects(
    server: RangeServer, expected: dict[str, bytes], options: dict[str, Any]
) -> None:
    """P8: reads, writes and lists fail; the command is repeated until it succeeds."""
    check_faults(server, expected, 1, **options)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_many_faults_do_not_change_the_objects(
    server: RangeServer, expected: dict[str, bytes], options: dict[str, Any]
) -> None:
    """P8: the same with other faults."""
    for seed in range(10, 25):
        check_faults(server, expected, seed, **options)


def check_kill(server: RangeServer, said: Path, expected: dict[str, bytes], method: str, number: int) -> bool:
    """Kill a build at the server's n-th request to write; repeat it. False if it ended before that request."""
    server.objects.buckets["out"] = {}
    server.log.clear()
    work: Callable[[], object] = lambda: build(SOURCE, TARGET)  # noqa: E731
    real, left, child = server._of_verb, [number], list[Child]()

    def of_verb(request: Any) -> Any:
        answer = real(request)
        if request.method == method and request.bucket == "out":
            left[0] -= 1
            if left[0] == 0:
                child[0].signal(signal.SIGKILL)
        return answer

    server._of_verb = of_verb  # type: ignore[method-assign]
    try:
        child.append(Child(work, said))
        ended = child[0].wait()
    finally:
        server._of_verb = real  # type: ignore[method-assign]
    if ended == "done":
        return False
    assert ended == "killed"
    check_complete(objects(server), expected)
    build(SOURCE, TARGET)
    assert objects(server) == expected
    assert not any((said.parent / "cache/builds").iterdir())
    return True


@pytest.mark.parametrize("options", [{}], ids=["store"])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.deep)])
def test_a_build_killed_during_the_upload_is_continued(
    server: RangeServer, expected: dict[str, bytes], tmp_path: Path, step: int
) -> None:
    """P8: no manifest before all objects are there; the same command continues."""
    number = 1
    while check_kill(server, tmp_path / "said", expected, "PUT", number):
        number += step
    assert number > 10


@pytest.mark.parametrize("options", [{}], ids=["store"])
def test_a_real_server_serves_both_buckets(
    corpus: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read from S3 and written to S3."""
    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.add_folder("corpus", corpus)
        build("s3://bucket/corpus", "s3://bucket/stores/web")
        assert tokenstore.verify("s3://bucket/stores/web") == []
        with tokenstore.open_store("s3://bucket/stores/web") as there:
            with tokenstore.open_store(tmp_path / "local") as local:
                assert there.digest == local.digest
