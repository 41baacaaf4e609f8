"""Builds and appends killed at any time: no store or a complete one, and the same bytes afterwards."""

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tokenstore
from tests.support.processes.command_lines import PART_MADE, PART_TAKEN, stopping_after, wait_until_stopped
from tests.support.processes.killing import WAIT_SECONDS, Builder, check_whole, tree, write_corpus
from tokenstore.errors import TokenStoreError

UNIT_BYTES = 40_000
PLAIN = {"shard_bytes": 200_000}
SPLIT = {**PLAIN, "engine": "reference", "dedup": "exact", "split": "train=0.7,test=0.3", "id_field": "id"}


@dataclass(frozen=True)
class Command:
    """A build, or an append where there are no options, with the bytes it leaves when nothing happens to it."""

    inputs: list[str]
    options: dict[str, Any] | None
    base: Path | None
    undisturbed: dict[str, bytes]
    seconds: float = 0.0  # it takes here then

    def start(self, output: Path, workers: int, stop: str = "") -> Builder:
        return Builder(self.inputs, output, UNIT_BYTES, workers, self.options, stop)

    def prepare(self, output: Path) -> None:
        """What exists before: for an append the store."""
        output.parent.mkdir(exist_ok=True)
        if self.base is not None:
            shutil.copytree(self.base, output)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about half a megabyte."""
    return write_corpus(tmp_path_factory.mktemp("kill") / "corpus", 10)


def command_of(
    folder: Path, inputs: Sequence[object], options: dict[str, Any] | None, base: Path | None = None
) -> Command:
    """A command that is run once without being killed."""
    command = Command([*map(str, inputs)], options, base, {})
    command.prepare(folder / "store")
    begin = time.monotonic()
    assert command.start(folder / "store", 1).finish() == (0, "", "")
    seconds = time.monotonic() - begin
    check_whole(folder / "store")
    return replace(command, undisturbed=tree(folder / "store"), seconds=seconds)


@pytest.fixture(scope="module")
def build(corpus: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A build of the corpus."""
    return command_of(tmp_path_factory.mktemp("build"), [corpus], {**PLAIN, "tokenizer": str(tokenizer_file)})


@pytest.fixture(scope="module")
def build_splits(corpus: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A build of stores of splits, with ids, of equal documents only one."""
    options = {**SPLIT, "tokenizer": str(tokenizer_file)}
    return command_of(tmp_path_factory.mktemp("splits"), [f"{corpus}/*.jsonl"], options)


@pytest.fixture(scope="module", params=[None, "a=0.5,b=0.5"], ids=["store", "splits"])
def append(
    request: pytest.FixtureRequest, corpus: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Command:
    """An append of all but the first file of the corpus."""
    folder = tmp_path_factory.mktemp("append")
    options = {**PLAIN, "tokenizer": str(tokenizer_file), "split": request.param}
    command_of(folder, [f"{corpus}/0.jsonl"], options)
    base = (folder / "store").rename(folder / "base")
    return command_of(folder, [f"{corpus}/[1-3].jsonl", f"{corpus}/*.txt"], None, base)


def wait_for_part(builder: Builder, output: Path) -> None:
    """Wait until a build has finished a part, or ended."""
    parts, end = output.with_name(f"{output.name}.tokenstore") / "building/parts", time.monotonic() + WAIT_SECONDS
    while builder.process.poll() is None and not list(parts.glob("[!.]*/summary.json")):
        assert time.monotonic() < end


def check_kill(command: Command, output: Path, workers: int, seconds: float, has_part: bool) -> bool:
    """Kill it after some time, or after a part and some time, and run it again: the bytes are the same.

    Returns whether the second run resumed.
    """
    command.prepare(output)
    before = {name: data for name, data in tree(output).items() if not name.endswith("manifest.json")}
    builder = command.start(output, workers)
    if has_part:
        wait_for_part(builder, output)
    time.sleep(seconds)
    builder.kill()
    if output.exists():
        check_whole(output)
        assert before.items() <= tree(output).items()
    builder.wait_for_children()
    code, out, err = command.start(output, workers).finish()
    assert (code, err) == (0, "")
    assert tree(output) == command.undisturbed
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    shutil.rmtree(output.parent)
    return "resuming" in out


def check_kills(commands: Sequence[Command], folder: Path, seed: int, kills: int, workers: Sequence[int]) -> None:
    """Kill commands at random moments, two at a time, and compare the bytes that the next run makes.

    Most moments are spread over the duration of a complete run, so that every phase is hit: start, parts, shards, commit. Every
    fifth is soon after the first part: on a busy machine the others may all miss the work.
    """
    rng = random.Random(seed)
    rounds = []
    for number in range(kills):
        command = commands[number % len(commands)]
        moment = 1.4 * command.seconds * (number + rng.random()) / kills  # a little more, as two share the machine
        has_part = number % 5 == 4
        output, num_workers = folder / f"{number}" / "store", workers[number // len(commands) % len(workers)]
        rounds.append((command, output, num_workers, moment / 50 if has_part else moment, has_part))
    with ThreadPoolExecutor(2) as pool:
        resumed = list(pool.map(lambda each: check_kill(*each), rounds))
    assert any(resumed)  # else the moments missed the work, and this test proves little


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_build_killed_at_200_random_moments_makes_the_same_bytes(
    build: Command, build_splits: Command, tmp_path: Path
) -> None:
    """P8: kill -9 leaves no store or a complete one, and no worker; with 1 to 4 workers, without options and with
    splits, ids and dedup.
    """
    check_kills([build, build_splits], tmp_path, seed=2, kills=200, workers=[1, 2, 1, 3, 1, 4, 1, 2])


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_shuffled_build_killed_at_35_random_moments_makes_the_same_bytes(
    corpus: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """P8, FMT-17: the order does not depend on kills, nor on 1 to 7 workers."""
    options = {**SPLIT, "shuffle_documents": 9, "keep": ["id"], "tokenizer": str(tokenizer_file)}
    command = command_of(tmp_path_factory.mktemp("shuffled"), [f"{corpus}/*.jsonl"], options)
    check_kills([command], tmp_path, seed=4, kills=35, workers=[1, 2, 3, 4, 5, 6, 7])


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_an_append_killed_at_random_moments_makes_the_same_bytes(append: Command, tmp_path: Path) -> None:
    """P8, FMT-13: kill -9 leaves the old version or the new one and changes no old file; so for each store of splits."""
    check_kills([append], tmp_path, seed=3, kills=20, workers=[1, 2])


@pytest.mark.deep
def test_a_build_killed_again_and_again_finishes(build: Command, tmp_path: Path) -> None:
    """P8: every run adds to the parts of those before: killed after each new part, it still finishes with the same
    bytes.
    """
    output, parts = tmp_path / "store", tmp_path / "store.tokenstore/building/parts"

    def done() -> int:
        return len(list(parts.glob("[!.]*/summary.json")))

    for _ in range(3):
        before, builder = done(), build.start(output, 1, stopping_after(*PART_MADE))
        wait_until_stopped(builder.process)
        assert done() > before
        builder.kill()
        assert not output.exists()
        with pytest.raises(TokenStoreError, match="is not finished"):
            tokenstore.open_store(output)
    there = done()
    code, out, err = build.start(output, 1).finish()
    assert (code, err) == (0, "")
    assert out.startswith(f"resuming: {there} of ")
    assert there >= 3
    assert tree(output) == build.undisturbed


def test_a_build_with_a_killed_worker_resumes(build: Command, tmp_path: Path) -> None:
    """P8: one worker is killed as the kernel does without memory: a message, no store, no process, no work lost."""
    builder = build.start(tmp_path / "store", 2, stopping_after(*PART_TAKEN))
    wait_until_stopped(builder.process)
    os.kill(builder.workers()[0], signal.SIGKILL)
    os.kill(builder.process.pid, signal.SIGCONT)
    code, out, err = builder.finish()
    assert (code, out) == (1, "")
    assert err.startswith(
        "worker: a worker process was killed (out of memory?); run the same command again with fewer --workers"
    )
    builder.wait_for_children()
    assert not (tmp_path / "store").exists()
    assert build.start(tmp_path / "store", 2).finish()[::2] == (0, "")
    assert tree(tmp_path / "store") == build.undisturbed
