"""The work folder next to a store: one writer at a time, unlocked whenever its holder is gone, removed when it is
empty.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.stores.opened import open_files
from tokenstore.errors import StoreBusyError
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
    """Another process that holds the lock until its input ends."""
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
    """P8: the message names the process that holds the lock, which is not disturbed."""
    for _ in range(2):
        with pytest.raises(
            StoreBusyError, match=rf"process {holder.pid} is writing it \(.*web\.tokenstore\); wait for it"
        ):
            with exclusive_work(tmp_path / "web"):
                pytest.fail("two holders")
    assert (tmp_path / "web.tokenstore").exists()
    assert holder.poll() is None


def test_the_lock_is_free_when_its_holder_is_done(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: a holder that ends removes the folder; the next one gets the lock."""
    holder.communicate()
    assert holder.returncode == 0
    assert not (tmp_path / "web.tokenstore").exists()
    with exclusive_work(tmp_path / "web"):
        assert held_by(tmp_path / "web.tokenstore") == os.getpid()
    assert not (tmp_path / "web.tokenstore").exists()


def test_the_lock_is_free_when_its_holder_is_killed(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: SIGKILL leaves the folder but no lock: the next build gets it, and removes the folder at its end."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "web.tokenstore").exists()
    with exclusive_work(tmp_path / "web"):
        assert held_by(tmp_path / "web.tokenstore") == os.getpid()
    assert not (tmp_path / "web.tokenstore").exists()


def test_the_lock_is_free_after_an_error_inside(tmp_path: Path) -> None:
    """P8: a build that fails releases the lock, and can be tried again in the same process."""

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
    """P8: a lock on a file that another holder has just removed is worthless: it is taken again on the new file."""
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


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Make flock fail as on a file system that does not have it."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(work.fcntl, "flock", refuse)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_takes_the_place_of_locks_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """P8: the second writer is refused and told who holds it; at the end nothing is left."""
    without_locks(monkeypatch, code)
    before = open_files(tmp_path)
    with exclusive_work(tmp_path / "web"):
        message = (
            rf"process {os.getpid()} on \S+ has been writing it since .* UTC \(.*lock\.json\); wait .*--break-lock"
        )
        with pytest.raises(StoreBusyError, match=message), exclusive_work(tmp_path / "web"):
            pytest.fail("two writers at once")
    assert open_files(tmp_path) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b'{"host": "n1", "pid": 7}', b"", b"[]", b'{"host": "\x1b[31m"}', b"x" * 5000])
def test_a_lock_file_left_by_a_dead_writer_is_taken_over_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """P8: whether a process on another host is alive, only a person can know; the file may hold anything."""
    without_locks(monkeypatch, errno.ENOSYS)
    with exclusive_work(tmp_path / "web") as held:
        held.building.mkdir()
    (tmp_path / "web.tokenstore/lock.json").write_bytes(content)
    with pytest.raises(StoreBusyError, match="--break-lock") as caught, exclusive_work(tmp_path / "web"):
        pytest.fail("two writers at once")
    assert "\x1b" not in str(caught.value)
    with exclusive_work(tmp_path / "web", break_lock=True) as held:
        held.building.rmdir()
    assert list(tmp_path.iterdir()) == []


def test_many_writers_never_hold_it_together(tmp_path: Path) -> None:
    """P8: at most one process holds the lock, whoever creates or removes the folder meanwhile, and all finish."""
    holders, most, failures, turns = [], [], [], []

    def write() -> None:
        for _ in range(150):
            try:
                with exclusive_work(tmp_path / "web") as held:
                    holders.append(held)
                    most.append(len(holders))
                    assert (held.folder / MARK_NAME).exists()
                    turns.append(1)
                    holders.pop()
            except StoreBusyError:
                pass
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, max(most)) == ([], 1)
    assert turns  # how many depends on the load of the machine
    assert list(tmp_path.iterdir()) == []


KILL = """
import os, signal, sys
from pathlib import Path
from tokenstore.store import work, writing
left = int(sys.argv[2])
def count(module, name):
    real = getattr(module, name)
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(module, name, call)
for name in ("mkdir", "open", "pwrite", "unlink", "rmdir", "listdir", "close"):
    count(os, name)
count(work.fcntl, "flock")
with work.exclusive_work(Path(sys.argv[1])):
    pass
print(left)
"""


def test_a_holder_that_is_killed_at_any_call_blocks_nobody(tmp_path: Path) -> None:
    """P8: the next run accepts every state between creating the folder, its mark and the lock, and removing them."""

    def run(left: int) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-c", KILL, str(tmp_path / "web"), str(left)], capture_output=True)

    calls = 1000 - int(run(1000).stdout)
    assert 12 < calls < 40
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda left: killed_then_taken(tmp_path / str(left), left), range(calls)))
    assert ends == [-signal.SIGKILL] * calls


def killed_then_taken(folder: Path, left: int) -> int:
    """Kill a holder after so many calls; the next one takes the folder and removes it."""
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", KILL, str(folder / "web"), str(left)], capture_output=True)
    with exclusive_work(folder / "web"):
        assert held_by(folder / "web.tokenstore") == os.getpid()
    assert list(folder.iterdir()) == []
    return done.returncode
