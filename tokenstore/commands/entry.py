"""Entry points of the commands. They import the rest late, so that Ctrl-C ends also the imports with one line."""

import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """The `tokenstore` command."""
    _start(None)


def run_command(name: str) -> None:
    """One subcommand as a program of its own (`python -m tools.build_store`)."""
    _start(name)


def _start(name: str | None) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in a job behind `&`
        signal.signal(signal.SIGINT, _leave)
    from tokenstore.commands import app

    code = app.run(app.app if name is None else app.single(name))
    if code == INTERRUPTED:  # an interrupt inside exec() makes Python end itself by a signal, with no exit code
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """Nothing has begun. An exception would be printed, or swallowed, by the library that is being imported."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
