"""The `tokenstore` command: its subcommands, and errors -> messages and exit codes."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cyclopts
from rich.console import Console

import tokenstore
from tokenstore.commands.append import append
from tokenstore.commands.build import build
from tokenstore.commands.index import index
from tokenstore.commands.inspect import inspect
from tokenstore.commands.plan import plan
from tokenstore.commands.report import report
from tokenstore.commands.trace import trace
from tokenstore.commands.verify import verify
from tokenstore.errors import BadRecordsError, ConfigError, TokenStoreError
from tokenstore.views.text import safe

FAILED, USAGE, BAD_RECORDS, DAMAGE, INTERRUPTED = 1, 2, 3, 4, 130

_STYLE = {
    "version": tokenstore.__version__,
    "help_format": "markdown",
    "suppress_keyboard_interrupt": False,  # `run` says what an interruption means
}
app = cyclopts.App(name="tokenstore", help="Build, check and read token stores for training language models.", **_STYLE)
app.command(build)
app.command(append)
app.command(index)
app.command(verify)
app.command(inspect)
app.command(plan)
app.command(trace)
app.command(report)
app.register_install_completion_command()


def main() -> None:
    """Entry point of `tokenstore`."""
    sys.exit(run(app))


def run_command(command: Callable, name: str) -> None:
    """Entry point of one command under its own name (`python -m tools.build_store`)."""
    single = cyclopts.App(name=name, **_STYLE)
    single.default(command)
    sys.exit(run(single))


def run(application: Any, arguments: list[str] | None = None) -> int:
    """Run a command line; return its exit code. Errors go to standard error as one message, without a traceback."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    try:
        with _interruptible():
            code = application(arguments, error_console=errors, exit_on_error=False, result_action="return_value")
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError:
        return USAGE  # cyclopts has printed what was wrong
    except KeyboardInterrupt as stop:
        errors.print("; ".join(["interrupted", *getattr(stop, "__notes__", [])]))
        return INTERRUPTED
    except TokenStoreError as error:
        errors.print(f"error: {safe(str(error), lines=True)}")
        return (
            BAD_RECORDS if isinstance(error, BadRecordsError) else USAGE if isinstance(error, ConfigError) else FAILED
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and a scheduler's SIGTERM are KeyboardInterrupt; Ctrl-C not where a shell has it ignored, as behind `&`."""
    heard = [signal.SIGTERM] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGTERM, signal.SIGINT]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    warnings.simplefilter("ignore", ResourceWarning)  # a file opened at this very moment is closed as the process ends
    raise KeyboardInterrupt
