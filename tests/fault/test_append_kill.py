"""Appends (FMT-13) while the disk fails or the process is killed: at any call the store is the old version or the new one."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.stores.grown import Kind, check_documents, contents, documents_of, grow, prepare, write
from tokenstore.errors import TokenStoreError
from tokenstore.store import open_store, verify, versions
from tokenstore.store.next_version import commit_append

OLD, NEW = documents_of(1, [3, 1, 40, 7]), documents_of(2, [2, 9, 30])
CALLS = ("replace", "fsync", "fchmod", "open", "unlink")


class Killed(BaseException):
    """Replaces a kill; nothing catches it."""


@contextmanager
def failing(patch: pytest.MonkeyPatch, at: int, made: list[str], error: BaseException, after: bool) -> None:
    """Make call number `at` into the operating system fail before or, with `after`, after doing its work."""

    def counted(name: str) -> Callable:
        real = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            made.append(name)
            if len(made) - 1 != at:
                return real(*arguments, **options)
            if after:
                with suppress(FileNotFoundError):  # nothing was in the way
                    real(*arguments, **options)
            raise error

        return call

    with patch.context() as inner:
        for name in CALLS:
            inner.setattr(os, name, counted(name))
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of one version, in some shards, with all that one can have."""
    return write(tmp_path / "s", OLD, shard_bytes=40)


def check_whole(path: Path) -> bool:
    """The store has its old version, or that and the new one, complete; returns whether it has grown."""
    found = versions(path)
    assert found in ([1], [1, 2])
    for version in found:
        assert verify(path, version=version) == []
        check_documents(open_store(path, version=version), OLD if version == 1 else OLD + NEW)
    assert open_store(path).version == found[-1]
    return len(found) == 2


ERRORS = [
    pytest.param(OSError(errno.EIO, os.strerror(errno.EIO)), False, id="the disk fails"),
    pytest.param(Killed(), False, id="killed before"),
    pytest.param(Killed(), True, id="killed after"),
]


@pytest.mark.parametrize(("error", "after"), ERRORS)
def test_a_commit_interrupted_at_any_call(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: bool
) -> None:
    """P8, FMT-13: whichever call is the last, the store is complete in its old or new version, and trying again makes
    the same bytes.
    """
    spare = path.with_name("spare")
    shutil.copytree(path, spare)
    grow(spare, NEW, shard_bytes=40)
    expected = contents(spare)
    ends = {False: 0, True: 0}
    at = 0
    while True:
        shutil.rmtree(spare)
        shutil.copytree(path, spare)
        working = prepare(spare, NEW, shard_bytes=40)
        made: list[str] = []
        with failing(monkeypatch, at, made, error, after):
            try:
                commit_append(spare, working)
                break
            except (OSError, TokenStoreError, Killed):
                pass
        has_grown = check_whole(spare)
        ends[has_grown] += 1
        if not has_grown:
            grow(spare, NEW, shard_bytes=40)
        assert check_whole(spare)
        after_all = contents(spare)
        assert {name: after_all[name] for name in expected} == expected
        assert {name for name in after_all if name not in expected} <= {"manifest-v1.json.tokenstore-tmp"}
        at += 1
    assert set(made) == {"replace", "fsync", "fchmod", "open", "unlink"}
    assert ends[False] > 10
    assert ends[True] >= 1  # the directory's own sync comes after the step


def test_the_manifest_is_replaced_last(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMT-13: all files are moved and synced, then the old manifest is kept and synced, then one rename."""
    working = prepare(path, NEW, shard_bytes=40)
    names = {file.name for file in working.iterdir()}
    steps: list[str] = []
    replace, sync = os.replace, os.fsync

    def noted(source: Path, target: Path, **folders: int) -> None:
        steps.append(Path(target).name)
        replace(source, target, **folders)

    def synced(descriptor: int) -> None:
        steps.append("sync")
        sync(descriptor)

    monkeypatch.setattr(os, "replace", noted)
    monkeypatch.setattr(os, "fsync", synced)
    commit_append(path, working)
    moved = len(names) - 1
    assert set(steps[:moved]) == names - {"manifest.json"}
    assert steps[moved:] == ["sync", "sync", "manifest-v1.json", "sync", "manifest.json", "sync"]


@pytest.mark.parametrize(("error", "after"), ERRORS)
def test_files_written_next_to_the_store_never_touch_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: bool
) -> None:
    """P8: until the commit, a failing or killed writer leaves every byte of the store."""
    before = contents(path)
    at = 0
    while True:
        made: list[str] = []
        with failing(monkeypatch, at, made, error, after):
            try:
                prepare(path, NEW, shard_bytes=40)
                break
            except (OSError, TokenStoreError, Killed):
                pass
        assert contents(path) == before
        at += 3
    assert at > 30
    grow(path, NEW, shard_bytes=40)
    assert check_whole(path)


def test_earlier_versions_survive_a_killed_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMT-13: a killed commit of the third version leaves the first two unchanged."""
    plain = Kind()
    grow(path, NEW, plain)
    before = contents(path)
    for at in range(0, 12, 3):
        working = prepare(path, OLD, plain)
        with failing(monkeypatch, at, [], Killed(), True), pytest.raises(Killed):
            commit_append(path, working)
        assert check_whole(path)
        now = contents(path)
        assert {name: now[name] for name in before} == before
    grow(path, OLD, plain)
    check_documents(open_store(path), OLD + NEW + OLD)


KILLER = """
import os, signal, sys
from pathlib import Path
from tokenstore.store.next_version import commit_append
left = int(sys.argv[3])
def count(name):
    real = getattr(os, name)
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)
for name in ("replace", "fsync"):
    count(name)
commit_append(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("left", [0, 5, -5, -4, -3, -2, -1])
def test_kill_nine(path: Path, left: int) -> None:
    """P8: a process is killed in the middle of a commit, `left` calls after its beginning or before its end."""
    working = prepare(path, NEW, shard_bytes=40)
    calls = (
        len(list(working.iterdir())) + 5
    )  # each file is moved; two syncs of names, and three calls for the old manifest
    command = [sys.executable, "-c", KILLER, str(path), str(working), str(left % calls)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert check_whole(path) == (left == -1)
    if left != -1:
        grow(path, NEW, shard_bytes=40)
    assert check_whole(path)
