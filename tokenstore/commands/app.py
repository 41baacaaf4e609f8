"""The `tokenstore` command: its subcommands, and how errors become messages and exit codes."""

import itertools
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cyclopts
from rich.console import Console

import tokenstore
from tokenstore.commands.adopt import adopt
from tokenstore.commands.amend import amend
from tokenstore.commands.append import append
from tokenstore.commands.build import STANDARD_INPUT_PATH, build
from tokenstore.commands.demo import demo
from tokenstore.commands.drop import drop
from tokenstore.commands.examples import examples
from tokenstore.commands.exit_codes import BAD_RECORDS, EXIT_CODES, FAILED, INTERRUPTED, USAGE
from tokenstore.commands.export import export
from tokenstore.commands.index import index
from tokenstore.commands.inspect import inspect
from tokenstore.commands.merge import merge
from tokenstore.commands.plan import plan
from tokenstore.commands.report import report
from tokenstore.commands.screen import write_json
from tokenstore.commands.trace import trace
from tokenstore.commands.verify import verify
from tokenstore.errors import BadRecordsError, ConfigError, TokenStoreError
from tokenstore.text import safe

COMMANDS: tuple[Callable[..., int], ...] = (
    build,
    adopt,
    export,
    append,
    merge,
    drop,
    index,
    verify,
    inspect,
    plan,
    amend,
    trace,
    report,
    demo,
    examples,
)
GUIDES = {  # by command: a page in docs/ and the heading in it, which finds it on the site too
    "build": ("guides/building.md", "Building stores"),
    "adopt": ("guides/tokens-you-have.md", "Adopting files"),
    "export": ("guides/tokens-you-have.md", "Exporting a store"),
    "append": ("guides/building.md", "Adding documents"),
    "merge": ("guides/python-writer.md", "Parallel writers"),
    "drop": ("guides/operating.md", "Removing documents"),
    "index": ("guides/packing.md", "Stores without a length index"),
    "verify": ("guides/operating.md", "Operating stores"),
    "inspect": ("guides/operating.md", "Operating stores"),
    "plan": ("guides/plans.md", "Plans and mixtures"),
    "amend": ("guides/changing-a-run.md", "Changing a run"),
    "trace": ("guides/tracing.md", "Debugging a loss spike"),
    "report": ("guides/plans.md", "Checking a plan"),
    "demo": ("first-steps.md", "First steps"),
    "examples": ("guides/training.md", "Complete examples"),
}


def _guide(command: str | None) -> str:
    page, heading = ("first-steps.md", "First steps") if command is None else GUIDES[command]
    return f'Guide: "{heading}" in the documentation (docs/{page})'


def _epilogue(command: str | None) -> str:
    return f"{_guide(command)}\n\n{EXIT_CODES}"


def _new_app(name: str, text: str | None = None, command: str | None = None) -> cyclopts.App:
    return cyclopts.App(
        name=name,
        help=text,
        version=tokenstore.__version__,
        help_format="markdown",
        help_epilogue=_epilogue(command),
        suppress_keyboard_interrupt=False,  # `run` handles interrupts
    )


app = _new_app("tokenstore", "Build, check and read token stores for training language models.")
for each in COMMANDS:
    app.command(each, help_epilogue=_epilogue(each.__name__))
app.register_install_completion_command()


def single(name: str) -> cyclopts.App:
    """One command as a separate program, as in `python -m tools.build_store`."""
    made = _new_app(f"tokenstore {name}", command=name)
    made.default(next(command for command in COMMANDS if command.__name__ == name))
    return made


def run(application: cyclopts.App, arguments: list[str] | None = None) -> int:
    """Run a command line (default: sys.argv) and return its exit code.

    An error is printed as one line on standard error, without wrapping. With --json it is also printed as an object on
    standard output: {"error": {"kind", "message", "exit_code"}}.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Cyclopts takes a lone - for an option; `build` and `append` know standard input by this path too
    given = [STANDARD_INPUT_PATH if argument == "-" else argument for argument in arguments]
    try:
        with _interruptible():
            code = application(given, print_error=False, exit_on_error=False, result_action="return_value")
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError as error:
        chain = " ".join([*application.name[:1], *(error.command_chain or ())])
        return _fail(arguments, "UsageError", f"{_usage(error)} Run `{chain} --help`.", USAGE)
    except KeyboardInterrupt as stop:
        message = "; ".join(["interrupted", *getattr(stop, "__notes__", [])])
        return _fail(arguments, "Interrupted", message, INTERRUPTED)
    except MemoryError as error:
        more = f" ({error})" if str(error) else ""
        return _fail(arguments, "MemoryError", f"not enough memory{more}; free some, or raise its limit", FAILED)
    except TokenStoreError as error:
        kinds = {BadRecordsError: BAD_RECORDS, ConfigError: USAGE}
        return _fail(arguments, type(error).__name__, str(error), kinds.get(type(error), FAILED))


def _usage(error: cyclopts.CycloptsError) -> str:
    """What is wrong with a command line.

    Cyclopts says of an argument that is missing that it requires an argument, and calls arguments too many unused tokens.
    """
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        return f"Arguments that the command does not take: {' '.join(error.unused_tokens)}."
    if not isinstance(error, cyclopts.MissingArgumentError) or error.argument is None:
        return str(error)
    option = error.keyword or next((token.keyword for token in error.argument.tokens if token.keyword), None)
    return f"{option} needs a value." if option else f"{error.argument.name} is missing."


def _fail(arguments: list[str], kind: str, message: str, code: int) -> int:
    """Print an error; return the exit code."""
    line = message if code == INTERRUPTED else f"error: {message}"
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False).print(safe(line, lines=True))
    if "--json" in itertools.takewhile(lambda argument: argument != "--", arguments):
        write_json({"error": {"kind": kind, "message": message, "exit_code": code}})
    return code


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGTERM (from a scheduler) and Ctrl-C into KeyboardInterrupt; not Ctrl-C where a shell ignores it, after `&`."""
    handled = [signal.SIGTERM] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGTERM, signal.SIGINT]
    before = {number: signal.signal(number, _interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    warnings.simplefilter("ignore", ResourceWarning)  # the process ends and closes its files
    raise KeyboardInterrupt
