"""Builders that can be killed, and a disk that fails at a given call."""

import builtins
import errno
import io
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tokenstore
from tests.data.texts import TEXTS

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 240  # reached only by a process that hangs, even on a busy machine
MARK = "TOKENSTORE_TEST_MARK"  # in the environment of a builder, which its children inherit

# A builder with small units, so that a small corpus has many. Its arguments are on the command line, as JSON.
# With options it builds a store; without options it appends to one.
DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
from tokenstore.builder import BuildOptions, append_store, build_store, pipeline
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BuildError

if __name__ == "__main__":
    inputs, output, unit_bytes, workers, options = json.loads(sys.argv[1])
    pipeline.cut_units = partial(cut_units, unit_bytes=unit_bytes)
    try:
        if options is None:
            append_store(output, inputs, workers, note=print)
        else:
            build_store(BuildOptions(tuple(inputs), Path(output), workers=workers, **options), note=print)
    except BuildError as error:
        sys.exit(str(error))
"""


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store, or of all stores in a folder of splits."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_whole(folder: Path) -> None:
    """Check that a store, or each store of a folder of splits, is undamaged."""
    stores = [folder] if (folder / "manifest.json").exists() else sorted(folder.iterdir())
    assert stores
    assert [finding for path in stores for finding in tokenstore.verify(path)] == []


def write_corpus(folder: Path, copies: int) -> Path:
    """Texts, some of them equal, as large .jsonl files with ids and as many small .txt files."""
    folder.mkdir()
    rng = random.Random(7)
    for number in range(4):
        records = ({"text": " ".join(rng.choices(TEXTS, k=3)), "id": f"{number}-{i}"} for i in range(copies * 20))
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, records)))
    for number in range(copies):
        (folder / f"{number}.txt").write_text("".join(rng.choices(TEXTS, k=5)))
    return folder


class Builder:
    """A builder in a separate process."""

    def __init__(
        self,
        inputs: list[str],
        output: Path,
        unit_bytes: int,
        workers: int = 1,
        options: dict[str, object] | None = None,
        stop: str = "",
    ):
        """Start it. `stop` is code of `stopping_after`."""
        self.mark = uuid.uuid4().hex
        arguments = json.dumps([inputs, str(output), unit_bytes, workers, options])
        self.process = subprocess.Popen(
            [sys.executable, "-c", stop + DRIVER, arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "PYTHONWARNINGS": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and the output."""
        out, err = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out, err

    def kill(self) -> None:
        """Kill the builder as the OOM killer does: at once, without notice to its children."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_SECONDS)

    def left(self) -> list[int]:
        """Running processes of this builder: workers and helpers."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes():  # empty for a zombie
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        return found

    def workers(self) -> list[int]:
        """Those of them that tokenize."""
        commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in self.left()}
        return [pid for pid, path in commands.items() if path.exists() and b"spawn_main" in path.read_bytes()]

    def wait_for_children(self) -> None:
        """Wait until all processes of this builder have ended by themselves."""
        end = time.monotonic() + WAIT_SECONDS
        while left := self.left():
            assert time.monotonic() < end, f"processes {left} outlive their builder"
            time.sleep(0.01)


class FailingDisk:
    """Counts calls to the disk and fails the n-th one, with `for_good` also all later ones, like a full disk.

    Counted are opening a file to write, writing to it (when its buffer is flushed), fsync, rename, replace, mkdir, fchmod and
    posix_fallocate.
    """

    CALLS = ("fsync", "rename", "replace", "mkdir", "fchmod", "posix_fallocate")

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
            if mode != "xb":
                return real_open(path, mode, buffering, **options)
            disk.step("open")
            return io.BufferedWriter(Raw(path, mode, **options), buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE)

        def counted(name: str) -> Callable:
            real = getattr(os, name)

            def call(*arguments: object, **options: object) -> object:
                if name != "mkdir" or not os.path.isdir(arguments[0]):  # an existing folder needs no write
                    disk.step(name)
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patched:
            for name in self.CALLS:
                patched.setattr(os, name, counted(name))
            patched.setattr(builtins, "open", open_file)
            yield
