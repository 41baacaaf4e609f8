"""Builds whose output is a URL: the bytes of a local build, complete or absent, and nothing left on this machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.processes.command_lines import run_here
from tests.support.servers.moto_server import MotoServer, moto_server
from tests.support.servers.range_server import RangeServer
from tokenstore.builder import BuildOptions, build_store, build_task
from tokenstore.builder.schedule import Task
from tokenstore.errors import ConfigError, RemoteError

URL = "s3://bucket/stores/web"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for scratch and downloads."""
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENSTORE_DEADLINE", "4")
    return tmp_path / "cache"


@pytest.fixture
def source(jsonl: Callable[..., Path]) -> Path:
    """A file of texts."""
    return jsonl("in.jsonl", TEXTS)


def options_of(source: Path, output: str | Path, **options: Any) -> BuildOptions:
    """Options of a build of `source`."""
    return BuildOptions((str(source),), output, "bytes", **options)


def objects(server: RangeServer, prefix: str = "stores/web/") -> dict[str, bytes]:
    """The objects below a prefix, by the rest of their names."""
    found = server.objects.buckets["bucket"].items()
    return {key.removeprefix(prefix): bytes(each.data) for key, each in found if key.startswith(prefix)}


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("options", [{}, {"split": "a=0.5,b=0.5"}], ids=["store", "splits"])
def test_a_url_gets_the_bytes_of_a_local_build(
    range_server: RangeServer, tmp_path: Path, cache: Path, source: Path, options: dict[str, Any]
) -> None:
    """P8: the same objects as files; the scratch folder is removed; the same command again does nothing."""
    made = build_store(options_of(source, URL, **options))
    assert made.path == URL
    assert [part.path for part in made.splits] == [f"{URL}/{part.path.rpartition('/')[2]}" for part in made.splits]
    local = build_store(options_of(source, tmp_path / "local", **options))
    assert objects(range_server) == tree(tmp_path / "local")
    assert made.num_documents == local.num_documents
    assert not any((cache / "builds").iterdir())
    writes = [record for record in range_server.log if record.method == "PUT"]
    assert build_store(options_of(source, URL, **options)).was_there
    assert [record for record in range_server.log if record.method == "PUT"] == writes
    if not options:
        with tokenstore.open_store(URL) as store:
            assert store.decode(0).startswith(TEXTS[0])


def test_another_store_at_the_url_is_refused(
    range_server: RangeServer, source: Path, jsonl: Callable[..., Path]
) -> None:
    """As a local one; --overwrite replaces it."""
    build_store(options_of(source, URL))
    before = objects(range_server)
    with pytest.raises(ConfigError, match=rf"{URL} holds a store that was built .* with other options: .*eos"):
        build_store(options_of(source, URL, eos=False))
    source.write_bytes(source.read_bytes().replace(b"a", b"b"))
    with pytest.raises(ConfigError, match="changed since the store was built"):
        build_store(options_of(source, URL))
    assert objects(range_server) == before
    assert build_store(options_of(source, URL, overwrite=True)).digest != ""
    assert objects(range_server) != before


def test_an_upload_that_fails_is_continued_without_tokenizing_again(
    range_server: RangeServer, source: Path, cache: Path
) -> None:
    """P8: no store at the URL meanwhile; the same command only uploads."""
    range_server.fail("forbidden", times=None, method="PUT", key="boundaries")
    with pytest.raises(RemoteError, match=r"cannot write s3://bucket/stores/web/boundaries\.bin: 403"):
        build_store(options_of(source, URL))
    assert "manifest.json" not in objects(range_server)
    (made,) = cache.glob("builds/*/web/tokens-00000.bin")
    inode = made.stat().st_ino
    range_server.faults.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tokenstore.builder.pipeline._build", lambda *_: pytest.fail(f"built again ({inode})"))
        build_store(options_of(source, URL))
    assert tokenstore.verify(URL) == []


def test_tasks_of_a_build_to_a_url_share_a_scratch_folder(
    range_server: RangeServer, tmp_path: Path, source: Path
) -> None:
    """Parts are files, so tasks need a folder in common."""
    with pytest.raises(ConfigError, match="give it with --scratch"):
        build_task(options_of(source, URL), Task(0, 2))
    shared = options_of(source, URL, scratch=tmp_path / "shared")
    for number in (1, 0):
        build_task(shared, Task(number, 2))
    build_store(shared, complete=True)
    build_store(options_of(source, tmp_path / "local"))
    assert objects(range_server) == tree(tmp_path / "local")
    assert not any((tmp_path / "shared").iterdir())


def test_the_command_takes_a_url(range_server: RangeServer, source: Path) -> None:
    """It prints the URL; a dry run writes nothing."""
    command = ("build", str(source), "-o", URL, "--tokenizer", "bytes")
    assert "nothing was written" in run_here(*command, "--dry-run").stdout
    assert not objects(range_server)
    done = run_here(*command)
    assert done.returncode == 0
    assert f"store        {URL}\n" in done.stdout
    assert run_here("build", str(source), "-o", "ftp://x/y", "--tokenizer", "bytes").returncode == 2


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoServer]:
    """A real S3 server."""
    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_real_server_gets_a_store(moto: MotoServer, source: Path) -> None:
    """Built, verified and read from S3."""
    build_store(options_of(source, URL))
    assert tokenstore.verify(URL) == []
    assert build_store(options_of(source, URL)).was_there
