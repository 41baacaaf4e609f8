"""Commands as a user runs them."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenstore.commands import app

ROOT = Path(__file__).resolve().parents[3]
MAIN = [sys.executable, "-c", "from tokenstore.commands.entry import main; main()"]
WAIT_SECONDS = 240  # reached only by a process that hangs, even on a busy machine
Start = Callable[..., subprocess.Popen]
INTERRUPTIONS = pytest.mark.parametrize(  # the signal, and the number of workers
    ("name", "workers"),
    [
        ("SIGINT", 2),
        pytest.param("SIGINT", 1, marks=pytest.mark.deep),
        pytest.param("SIGTERM", 2, marks=pytest.mark.deep),
        pytest.param("SIGTERM", 1, marks=pytest.mark.deep),
    ],
)


def environment() -> dict[str, str]:
    """Our environment without the variables that make rich assume a terminal."""
    terminal = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    return {**{k: v for k, v in os.environ.items() if k not in terminal}, "PYTHONWARNINGS": "error"}


def run(*command: object) -> subprocess.CompletedProcess:
    """Run a command in the root of the clone to its end."""
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )  # fmt: skip


_SMALL_UNITS = """
import functools, tokenstore.builder.pipeline as pipeline
from tokenstore.commands.entry import main
pipeline.cut_units = functools.partial(pipeline.cut_units, unit_bytes=200_000)
"""
PART_MADE = "tokenstore.builder.executors.processes", "make_part"  # by the building process, without workers
PART_TAKEN = "tokenstore.builder.assemble.Tally", "add"


def stopping_after(owner: str, name: str) -> str:
    """Code that makes a process stop itself after its first call of a function, PART_MADE or PART_TAKEN.

    So it still builds, however long the test then takes.
    """
    return f"""
import os, signal, tokenstore.builder.assemble, tokenstore.builder.executors.processes
owner, real = {owner}, {owner}.{name}

def stop(*given):
    owner.{name} = real
    done = real(*given)
    os.kill(os.getpid(), signal.SIGSTOP)
    return done

owner.{name} = stop
"""


def in_small_units(*command: object, stops: bool = False) -> list[object]:
    """`tokenstore` with one small file per unit, so that a build can be resumed and has work for two workers.

    stops: the process stops itself after the first part.
    """
    code = _SMALL_UNITS + (stopping_after(*PART_TAKEN) if stops else "") + "if __name__ == '__main__': main()"
    return [sys.executable, "-c", code, *command]


def wait_until_stopped(process: subprocess.Popen) -> None:
    """Wait until a process has stopped itself."""
    what = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, process.pid, what))
    assert process.poll() is None, process.communicate()


def interrupt(process: subprocess.Popen, name: str) -> None:
    """Signal a build that has stopped, and its workers, and let it continue; it prints only how to resume."""
    wait_until_stopped(process)
    for each in (getattr(signal, name), signal.SIGCONT):
        os.killpg(process.pid, each)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, err
    assert (err, out) == ("interrupted; the same command resumes\n", "")
    wait_until(lambda: not group_members(process.pid))


def ok(*command: object) -> str:
    """The output of a successful `run_here`."""
    done = run_here(*command)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def run_here(*command: object) -> subprocess.CompletedProcess:
    """Run `tokenstore` with these arguments in this process, which is faster."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run(app.app, list(map(str, command)))
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def wait_until(condition: Callable[[], object]) -> None:
    """Poll until `condition` holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.005)


def group_members(group: int) -> list[int]:
    """Running processes of a process group."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            members.append(int(stat.parent.name))
    return members
