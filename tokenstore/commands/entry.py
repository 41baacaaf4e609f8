"""Entry points of the commands. The rest is imported late, so that Ctrl-C during imports also prints one line."""

import os
import signal
import sys

from tokenstore.commands.exit_codes import INTERRUPTED


def main() -> None:
    """The `tokenstore` command."""
    _start(None)


def run_command(name: str) -> None:
    """Run one subcommand as a separate program (`python -m tools.build_store`)."""
    _start(name)


def _start(name: str | None) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores it for jobs after `&`
        signal.signal(signal.SIGINT, _leave)
    from tokenstore.commands import app

    code = app.run(app.app if name is None else app.single(name))
    if (
        code == INTERRUPTED
    ):  # after an interrupt inside exec(), sys.exit would end Python by the signal, without an exit code
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """End at once: no work has begun, and an exception could be printed or swallowed by the library being imported."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
