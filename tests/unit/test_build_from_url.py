"""Builds from inputs at URLs: the documents of the same files on a disk, whatever the format and whatever fails."""

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, parquet

from tests.data.texts import TEXTS
from tests.support.servers.range_server import RangeServer
from tests.support.stores.building import mixed_corpus
from tokenstore.builder import BuildOptions, BuildResult, build_store, build_task, preview_build
from tokenstore.builder.reading import remote_inputs
from tokenstore.builder.reading.remote_inputs import RemotePath, objects_of, open_input
from tokenstore.builder.schedule import Task
from tokenstore.errors import BuildError, ConfigError

BUCKET = "s3://bucket/data"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 300 bytes, errors after four seconds, and nothing kept from another test."""
    monkeypatch.setattr(remote_inputs, "_BLOCK", 300)
    monkeypatch.setenv("TOKENSTORE_DEADLINE", "4")
    remote_inputs._client.cache_clear()
    remote_inputs._block.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path, range_server: RangeServer) -> Path:
    """Files of every format in a folder, and the same as objects."""
    folder = mixed_corpus(tmp_path / "in")
    table = pyarrow.table({"text": TEXTS * 3})
    parquet.write_table(table, folder / "f.parquet", row_group_size=5)
    feather.write_feather(table, folder / "g.arrow", compression="uncompressed")
    (folder / "h.csv").write_text("text\none\ntwo\n")
    (folder / "notes.md").write_text("not an input")
    (folder / ".hidden.txt").write_text("hidden")
    range_server.add_folder("bucket/data", folder)
    return folder


def build_of(source: str | Path, output: Path, **options: Any) -> BuildResult:
    """A build with small shards that allows the corpus' bad records."""
    return build_store(BuildOptions((str(source),), output, "bytes", max_bad=3, shard_bytes=2000, **options))


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_at_a_url_gives_the_store_of_the_same_folder(
    corpus: Path, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """Every file of the store, its inputs' names and checksums included, and the list of bad records."""
    small_units(700)
    there, here = build_of(BUCKET, tmp_path / "there"), build_of(corpus, tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert there.rejects.read_bytes() == here.rejects.read_bytes()
    assert build_of(BUCKET, tmp_path / "there").was_there


def test_workers_and_tasks_read_urls_too(corpus: Path, tmp_path: Path, small_units: Callable[[int], None]) -> None:
    """Each process has its own connections."""
    small_units(4000)
    build_of(corpus, tmp_path / "here")
    build_of(BUCKET, tmp_path / "workers", workers=2)
    assert contents(tmp_path / "workers") == contents(tmp_path / "here")
    options = BuildOptions((BUCKET,), tmp_path / "tasks", "bytes", max_bad=3, shard_bytes=2000)
    for number in range(2):
        build_task(options, Task(number, 2))
    build_store(options, complete=True)
    assert contents(tmp_path / "tasks") == contents(tmp_path / "here")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jsonl", {"a.jsonl", "e.jsonl"}),
        (
            "*",
            {
                "a.jsonl",
                "c.jsonl.gz",
                "d.txt.gz",
                "e.jsonl",
                "f.parquet",
                "g.arrow",
                "h.csv",
                "notes.md",
                ".hidden.txt",
            },
        ),
        ("**/*.txt", {"b/one.txt", "b/two.txt", "b/three.txt", ".hidden.txt"}),
        ("b/t*", {"b/two.txt", "b/three.txt"}),
        ("[ae].jsonl", {"a.jsonl", "e.jsonl"}),
        ("[!a].jsonl", {"e.jsonl"}),
        ("?.csv", {"h.csv"}),
        ("a.jsonl", {"a.jsonl"}),
        ("b", {"b/one.txt", "b/two.txt", "b/three.txt"}),
        ("missing/*", set()),
    ],
)
def test_patterns_name_objects(corpus: Path, pattern: str, names: set[str]) -> None:
    """As patterns of files do; a folder stands for what is below it, without hidden objects."""
    assert {str(path).removeprefix(f"{BUCKET}/") for path in objects_of(f"{BUCKET}/{pattern}")} == names


def test_a_folder_may_be_named_like_the_folder_around_it(range_server: RangeServer) -> None:
    """s3://bucket/data/data/ is another folder than s3://bucket/data/."""
    range_server.put("bucket/data/data/x.jsonl", b"")
    assert [str(path) for path in objects_of(BUCKET)] == [f"{BUCKET}/data/x.jsonl"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"{BUCKET}/none.jsonl", "names no object with a known ending"),
        (f"{BUCKET}/notes.md", r"notes\.md has no known ending .*--text-endings"),
        (f"{BUCKET}/*.md", "names no object with a known ending"),
        ("s3://me:SECRET@bucket/x", "without user, password"),
    ],
)
def test_a_url_that_names_no_input_is_refused(corpus: Path, tmp_path: Path, source: str, message: str) -> None:
    """The message says what would work, and shows no secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        build_of(source, tmp_path / "s")
    assert "SECRET" not in str(caught.value)


def test_an_input_that_is_replaced_during_a_build_is_an_error(
    corpus: Path, range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never half of the old and half of the new object; the next build takes the new one."""
    range_server.fail("replaced", key="a.jsonl", after=2)
    with pytest.raises(BuildError, match=r"a\.jsonl"):
        build_of(f"{BUCKET}/a.jsonl", tmp_path / "s")
    assert not (tmp_path / "s").exists()
    range_server.faults.clear()
    build_of(f"{BUCKET}/a.jsonl", tmp_path / "s")
    build_of(corpus / "a.jsonl", tmp_path / "here")
    assert contents(tmp_path / "s") == contents(tmp_path / "here")


@pytest.mark.parametrize("kind", ["slow_down", "reset", "truncated", "short"])
def test_faults_that_pass_do_not_matter(corpus: Path, range_server: RangeServer, tmp_path: Path, kind: str) -> None:
    """Requests are repeated until the bytes are right."""
    range_server.fail(kind, times=5, share=0.5)
    build_of(f"{BUCKET}/*.jsonl", tmp_path / "there")
    build_of(f"{corpus}/*.jsonl", tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_server_that_stays_down_is_named(corpus: Path, range_server: RangeServer, tmp_path: Path) -> None:
    """The build stops, keeps its parts, and can be resumed."""
    range_server.fail("error", times=None, key="e.jsonl")
    with pytest.raises(BuildError, match=r"s3://bucket/data/e\.jsonl cannot be read \(.*500.*run the same command"):
        build_of(BUCKET, tmp_path / "s")


def test_a_dry_run_reads_urls(corpus: Path, tmp_path: Path) -> None:
    """The same expectation as for files."""
    there, here = (
        preview_build(BuildOptions((str(each),), tmp_path / "s", "bytes", max_bad=3)) for each in (BUCKET, corpus)
    )
    assert (there.num_tokens, there.files) == (here.num_tokens, here.files)


def test_an_object_reads_like_a_file(range_server: RangeServer, tmp_path: Path) -> None:
    """Reads and seeks at random, past the end too."""
    data = os.urandom(2500)
    range_server.put("bucket/data/x.bin", data)
    draw = random.Random(1)
    with open_input(RemotePath(f"{BUCKET}/x.bin")) as ours, io.BytesIO(data) as real:
        for _ in range(200):
            if draw.random() < 0.5:
                place, whence = draw.randrange(3000), draw.choice([io.SEEK_SET, io.SEEK_CUR])
                assert ours.seek(place, whence) == real.seek(place, whence)
            if draw.random() < 0.1:
                assert ours.seek(-100, io.SEEK_END) == real.seek(-100, io.SEEK_END)
            size = draw.randrange(700)
            got = b""
            while len(got) < size and (more := ours.read(size - len(got))):
                got += more
            assert got == real.read(size)
    assert io.BufferedReader(open_input(RemotePath(f"{BUCKET}/x.bin"))).read() == data
