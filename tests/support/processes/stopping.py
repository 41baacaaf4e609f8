"""Processes that end, or stop, at a given call to the disk: real signals at moments that a test chooses."""

import builtins
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenstore.errors import TokenStoreError

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "open")
NEVER = 1 << 60


class Child:
    """A forked process that calls `work`, and gets a signal just before its n-th call to the disk.

    Attributes:
        pid: of the process.
    """

    def __init__(
        self, work: Callable[[], object], said: Path, number: int = NEVER, signal_number: int = signal.SIGKILL
    ):
        self._said = said
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                _send(signal_number, number)
                work()
                code = 0
            except TokenStoreError as error:
                said.write_text(str(error))
                code = 1
            except BaseException as error:  # a bug
                said.write_text(repr(error))
            finally:
                os._exit(code)

    def wait(self) -> str:
        """Wait until the process ends or stops: "killed", "stopped", "done", or the message of its error."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return "stopped"
        self.pid = 0
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return "killed"
        code = os.WEXITSTATUS(status)
        assert code in (0, 1), self._said.read_text()
        return self._said.read_text() if code else "done"

    def go_on(self) -> str:
        """Continue a stopped process, and wait for its end."""
        os.kill(self.pid, signal.SIGCONT)
        return self.wait()

    def signal(self, number: int) -> None:
        """Send it a signal; `wait` says what that did."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _send(signal_number: int, number: int) -> None:
    """Send this process a signal before the n-th call."""
    left = [number]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal_number)
            return real(*arguments, **options)

        return call

    patched = pytest.MonkeyPatch()  # never undone: the process ends
    for name in CALLS:
        patched.setattr(os, name, counted(getattr(os, name)))
    patched.setattr(builtins, "open", counted(builtins.open))
