"""A builder that is killed, or whose disk fails, at any instant: no store or a whole one, and the same bytes afterwards."""

import builtins
import errno
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS
from tokenstore.build import BuildOptions, BuildResult, build_store, pipeline
from tokenstore.build.units import cut_units
from tokenstore.errors import BuildError, TokenStoreError

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60  # until what must happen has happened; only a hanging process reaches it
MARK = "TOKENSTORE_TEST_MARK"  # in the environment of a builder and so of all its children

# A builder with small units, so that a small corpus has many; its arguments are on the command line, as JSON.
DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
from tokenstore.build import BuildOptions, build_store, pipeline
from tokenstore.build.units import cut_units
from tokenstore.errors import BuildError

if __name__ == "__main__":
    inputs, output, unit_bytes, options = json.loads(sys.argv[1])
    pipeline.cut_units = partial(cut_units, unit_bytes=unit_bytes)
    try:
        build_store(BuildOptions((inputs,), Path(output), **options), note=print)
    except BuildError as error:
        sys.exit(str(error))
"""


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_corpus(folder: Path, copies: int) -> Path:
    """Texts as one large .jsonl, many small files and compressed ones."""
    folder.mkdir()
    rng = random.Random(7)
    for number in range(4):
        lines = [json.dumps({"text": " ".join(rng.choices(TEXTS, k=3))}) for _ in range(copies * 20)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    for number in range(copies):
        (folder / f"{number}.txt").write_text("".join(rng.choices(TEXTS, k=5)))
    return folder


class Builder:
    """A builder in a process of its own."""

    def __init__(self, corpus: Path, output: Path, unit_bytes: int, **options: object):
        self.mark = uuid.uuid4().hex
        arguments = json.dumps([str(corpus), str(output), unit_bytes, options])
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "PYTHONWARNINGS": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit code and what was printed, at its own end."""
        out, err = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out, err

    def kill(self) -> None:
        """End the builder as the kernel does when memory is out: at once, without its children knowing."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_SECONDS)

    def left(self) -> list[int]:
        """Processes that belong to this builder, workers and helpers, and still run."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes():  # empty for a zombie
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        return found

    def wait_for_children(self) -> None:
        """All processes of this builder end by themselves."""
        end = time.monotonic() + WAIT_SECONDS
        while left := self.left():
            assert time.monotonic() < end, f"processes {left} outlive their builder"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about three megabytes."""
    return write_corpus(tmp_path_factory.mktemp("kill") / "corpus", 50)


UNIT_BYTES = 100_000


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build of `corpus` writes when nothing happens to it."""
    output = tmp_path_factory.mktemp("undisturbed") / "store"
    code, out, err = Builder(corpus, output, UNIT_BYTES, tokenizer=str(tokenizer_file), shard_bytes=300_000).finish()
    assert (code, out, err) == (0, "", "")
    assert tokenstore.verify(output) == []
    return contents(output)


def check_kills(
    corpus: Path,
    tokenizer: Path,
    folder: Path,
    undisturbed: dict[str, bytes],
    seed: int,
    kills: int,
    workers: list[int],
) -> None:
    """Kill builders at random moments of their lives and compare what the next one makes of it.

    The moments are spread over the time a whole build takes here, so that every phase is hit: start, parts, shards, commit.
    """
    rng = random.Random(seed)
    options = {"tokenizer": str(tokenizer), "shard_bytes": 300_000}
    output = folder / "store"
    begin = time.monotonic()
    Builder(corpus, folder / "timed", UNIT_BYTES, workers=workers[0], **options).finish()
    whole_seconds = time.monotonic() - begin
    resumed = 0
    for number in range(kills):
        options["workers"] = workers[number % len(workers)]
        builder = Builder(corpus, output, UNIT_BYTES, **options)
        time.sleep(whole_seconds * (number + rng.random()) / kills)
        builder.kill()
        if output.exists():
            assert tokenstore.verify(output) == []
        builder.wait_for_children()
        code, out, err = Builder(corpus, output, UNIT_BYTES, **options).finish()
        assert (code, err) == (0, "")
        resumed += "resuming" in out
        assert contents(output) == undisturbed
        assert [path.name for path in folder.iterdir() if path.name.startswith("store")] == ["store"]
        shutil.rmtree(output)
    assert resumed  # else the moments missed the work, and this test proves little


def test_a_build_killed_at_random_moments_gives_the_bytes_of_an_undisturbed_one(
    corpus: Path, tokenizer_file: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """P8: kill -9 at any moment leaves no store or a whole one and no worker, and the same command ends in the same bytes."""
    check_kills(corpus, tokenizer_file, tmp_path, undisturbed, seed=1, kills=6, workers=[2])


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_build_killed_at_fifty_random_moments_gives_the_bytes_of_an_undisturbed_one(
    corpus: Path, tokenizer_file: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """P8: the same at 50 moments, with 1, 2 and 3 workers in turn."""
    check_kills(corpus, tokenizer_file, tmp_path, undisturbed, seed=2, kills=50, workers=[1, 2, 3])


def test_a_build_killed_again_and_again_comes_to_its_end(
    corpus: Path, tokenizer_file: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """P8: every run adds to what the ones before it made: killed after each new part, a build still ends, in the same bytes."""
    options = {"tokenizer": str(tokenizer_file), "shard_bytes": 300_000}
    parts = tmp_path / "store.building" / "parts"

    def done() -> int:
        return len(list(parts.glob("*.json")))

    for _ in range(3):
        builder = Builder(corpus, tmp_path / "store", UNIT_BYTES, **options)
        before, end = done(), time.monotonic() + WAIT_SECONDS
        while done() == before:
            assert builder.process.poll() is None
            assert time.monotonic() < end
        builder.kill()
        assert not (tmp_path / "store").exists()
        with pytest.raises(TokenStoreError, match="unfinished build"):
            tokenstore.open_store(tmp_path / "store")
    there = done()
    code, out, err = Builder(corpus, tmp_path / "store", UNIT_BYTES, **options).finish()
    assert (code, err) == (0, "")
    assert out.startswith(f"resuming: {there} of ")
    assert there >= 3
    assert contents(tmp_path / "store") == undisturbed


# ---- a disk that fails


class FailingDisk:
    """Counts what goes to the disk and fails the n-th call: with `for_good` all that come after it too, like a full disk.

    Counted are: opening a file to write, writing to it (what its buffer hands down), fsync, rename, replace, mkdir, chmod.
    """

    CALLS = ("fsync", "rename", "replace", "mkdir", "chmod")

    def __init__(self, fail_at: int | None, for_good: bool):
        self.fail_at, self.for_good = fail_at, for_good
        self.calls: list[str] = []

    def step(self, call: str) -> None:
        self.calls.append(call)
        number = len(self.calls) - 1
        if self.fail_at is not None and (number == self.fail_at or (self.for_good and number > self.fail_at)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def mounted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        disk, real_open = self, builtins.open

        class Raw(io.FileIO):
            def write(self, data: object) -> int:
                disk.step("write")
                return super().write(data)

        def open_file(path: object, mode: str = "r", buffering: int = -1, **options: object) -> object:
            if mode != "wb":
                return real_open(path, mode, buffering, **options)
            disk.step("open")
            return io.BufferedWriter(Raw(path, mode), buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE)

        def counted(name: str) -> Callable:
            real = getattr(os, name)

            def call(*arguments: object, **options: object) -> object:
                if name != "mkdir" or not os.path.isdir(arguments[0]):  # a folder that is there needs nothing written
                    disk.step(name)
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patched:
            for name in self.CALLS:
                patched.setattr(os, name, counted(name))
            patched.setattr(builtins, "open", open_file)
            yield


@pytest.fixture
def tiny_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], BuildResult]:
    """Build a store of two parts, three shards and a list of bad records at a given path, in this process."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"text": "first"}\n{"text": "second"}\nbad\n')
    (folder / "b.txt").write_text("third")
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=45))
    return lambda output: build_store(BuildOptions((str(folder),), output, "bytes", shard_bytes=16, max_bad=1))


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_a_disk_that_fails_at_any_call_leaves_no_store_and_the_build_resumes(
    tiny_build: Callable[[Path], BuildResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool
) -> None:
    """P8: whichever open, write, fsync or rename fails, a BuildError says so, and the same command ends in the same bytes.

    No store is left, unless what failed came after the store's name was given: then it is whole.
    """
    tiny_build(tmp_path / "compiled")  # or a kernel that goes into numba's cache would be counted as well
    disk = FailingDisk(None, False)
    with disk.mounted(monkeypatch):
        expected = contents(tiny_build(tmp_path / "undisturbed").path)
    rejects = (tmp_path / "undisturbed.rejects.jsonl").read_bytes()
    named = len(disk.calls) - 1 - disk.calls[::-1].index("rename")
    assert {"open", "write", "fsync", "rename", "replace", "mkdir", "chmod"} == set(disk.calls)
    assert len(disk.calls) > 40
    for number in range(len(disk.calls)):
        output = tmp_path / f"{number}"
        failing = FailingDisk(number, for_good)
        with (
            failing.mounted(monkeypatch),
            pytest.raises(BuildError, match=r"disk: expected to write .*No space left") as caught,
        ):
            tiny_build(output)
        assert failing.calls[: number + 1] == disk.calls[: number + 1]
        assert "MB free" in str(caught.value)
        assert "it resumes" in str(caught.value)
        assert output.exists() == (number > named), f"call {number}, {disk.calls[number]}"
        result = tiny_build(output)
        assert result.was_there == (number > named)
        assert contents(output) == expected
        assert result.rejects.read_bytes() == rejects
        assert sorted(path.name for path in tmp_path.glob(f"{number}.*")) == [f"{number}.rejects.jsonl"]


@pytest.mark.parametrize("left_bytes", [-1, -100, -1000, -3000, -4095, -4097, -20_000])
def test_a_part_whose_last_bytes_find_no_room_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_bytes: int
) -> None:
    """P8: a limit on file size that cuts off any of a part's last bytes is an error, and no part is believed afterwards.

    The C library keeps up to 4,096 bytes back and says nothing when it cannot write them.
    """
    source = tmp_path / "in.txt"
    source.write_text("abcdefgh" * 2000)
    options = BuildOptions((str(source),), tmp_path / "store", "bytes", eos=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * source.stat().st_size + left_bytes, hard))
    try:
        with pytest.raises(BuildError, match=r"disk: expected to write .*File too large"):
            build_store(options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    notes: list[str] = []
    build_store(options, note=notes.append)
    assert notes == []
    with tokenstore.open_store(tmp_path / "store") as store:
        assert store.decode(0) == source.read_text()


@pytest.mark.parametrize("limit", [100, 150_000, 250_000])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_on_file_size_ends_the_command_with_exit_code_1_and_it_resumes(
    corpus: Path, tmp_path: Path, limit: int, workers: int
) -> None:
    """P8: a real failure of a real write, in the builder or in a worker, is exit code 1 and a message, and no store."""
    # 100 bytes: not even the recipe; 150,000: some part's tokens; 250,000: all parts fit, and the shard does not.
    code = f"import tokenstore.build.pipeline as p, functools as f; p.cut_units = f.partial(p.cut_units, unit_bytes={UNIT_BYTES})\nfrom tokenstore.commands.app import main\nif __name__ == '__main__': main()"  # fmt: skip
    command = [sys.executable, "-c", code, "build", corpus, "--tokenizer", "bytes", "--output", tmp_path / "store", "--workers", workers]  # fmt: skip

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    run = partial(
        subprocess.run, list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    failed = run(preexec_fn=limited)  # no threads are running here
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: disk: expected to write ")
    assert "File too large" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "store").exists()
    again = run()
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr or limit < 250_000
    assert tokenstore.verify(tmp_path / "store") == []
