"""The work folder beside a store: one writer at a time, free whenever its holder is gone, and removed when it is empty."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.opened import open_files
from tokenstore.errors import StoreBusyError, TokenStoreError
from tokenstore.store import work
from tokenstore.store.work import MARK_NAME, exclusive_work

HOLD = """
import sys
from pathlib import Path
from tokenstore.store.work import exclusive_work
with exclusive_work(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def held_by(folder: Path) -> int:
    """The process that the mark of a work folder names."""
    return json.loads((folder / MARK_NAME).read_text())["pid"]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lock file until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "web")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_builder_is_refused_at_once(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: two builds never write one output: the second is told which process holds it, the first is not disturbed."""
    for _ in range(2):
        with pytest.raises(
            StoreBusyError, match=rf"found process {holder.pid} at work on it \(.*web\.tokenstore\); wait for it"
        ):
            with exclusive_work(tmp_path / "web"):
                pytest.fail("two holders")
    assert (tmp_path / "web.tokenstore").exists()
    assert holder.poll() is None


def test_the_lock_is_free_when_its_holder_is_done(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: a holder that ends removes the file; the next one gets the lock."""
    holder.communicate()
    assert holder.returncode == 0
    assert not (tmp_path / "web.tokenstore").exists()
    with exclusive_work(tmp_path / "web"):
        assert held_by(tmp_path / "web.tokenstore") == os.getpid()
    assert not (tmp_path / "web.tokenstore").exists()


def test_the_lock_is_free_when_its_holder_is_killed(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: SIGKILL leaves the file behind and no lock: the next build goes on, and removes the file at its end."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "web.tokenstore").exists()
    with exclusive_work(tmp_path / "web"):
        assert held_by(tmp_path / "web.tokenstore") == os.getpid()
    assert not (tmp_path / "web.tokenstore").exists()


def test_the_lock_is_free_after_an_error_inside(tmp_path: Path) -> None:
    """P8: a build that fails gives the lock back, and can be tried again in the same process."""

    def fail() -> None:
        with exclusive_work(tmp_path / "web"):
            raise KeyError("an error of the build")

    for _ in range(2):
        with pytest.raises(KeyError, match="an error of the build"):
            fail()
        assert list(tmp_path.iterdir()) == []


def test_a_lock_file_removed_between_opening_and_locking_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: a lock on a file that another holder has just removed is no lock: it is taken again on the file that is there."""
    folder = tmp_path / "web.tokenstore"
    turns = []
    real = work.fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        turns.append(descriptor)
        if len(turns) == 1:
            (folder / MARK_NAME).unlink()
            folder.rmdir()
        real(descriptor, operation)

    monkeypatch.setattr(work.fcntl, "flock", remove_first)
    with exclusive_work(tmp_path / "web"):
        assert len(turns) == 2
        monkeypatch.setattr(work.fcntl, "flock", real)
        with pytest.raises(StoreBusyError), exclusive_work(tmp_path / "web"):
            pytest.fail("two holders")
    assert not folder.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """P8: as some network file systems are; two builders at once could not see one another there."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(work.fcntl, "flock", refuse)
    before = open_files(tmp_path)
    message = r"lock: expected a file system with locks, found .*web\.tokenstore\); write the store on a local disk"
    with pytest.raises(TokenStoreError, match=message), exclusive_work(tmp_path / "web"):
        pytest.fail("a lock that is none")
    assert open_files(tmp_path) == before
    assert list(tmp_path.iterdir()) == []
