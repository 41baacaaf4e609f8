"""What a signal does to a command, and that nothing of it remains."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import cyclopts
import pytest

from tests.support.processes.command_lines import run as run_process
from tokenstore.commands.app import app, run
from tokenstore.commands.exit_codes import INTERRUPTED
from tokenstore.views.search_tokens import Hit

inspect = import_module("tokenstore.commands.inspect")  # the package has the command under this name

# The first import of a module sends the signal, as a user does who has changed their mind at once
IMPORTS_INTERRUPTED = """
import signal, sys
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == wanted:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
from tokenstore.commands.entry import main
sys.argv[1:] = ["plan", "none.yaml"]
main()
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of the tests' own process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def command(number: int) -> int:
    """The exit code of a command that is sent a signal."""
    application = cyclopts.App(suppress_keyboard_interrupt=False)
    application.default(lambda: signal.raise_signal(number))
    return run(application, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_a_command_in_one_line(number: int, capsys: pytest.CaptureFixture) -> None:
    """Only what resumes says so; handlers are those of before."""
    before = signal.getsignal(number)
    assert command(number) == INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted\n")
    assert signal.getsignal(number) is before


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    """A shell's job started with `&` is not ended by the Ctrl-C that is meant for another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert command(signal.SIGINT) == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    """Before the command has begun, and in what it imports late."""
    for module in ("cyclopts", "numba"):
        done = run_process(sys.executable, "-c", f"wanted = {module!r}\n{IMPORTS_INTERRUPTED}")
        assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "interrupted\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_search_prints_what_it_found(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, as_json: bool
) -> None:
    """Under --json as the one object there is, which says that it is not complete."""
    path = make_store("s", [[1, 2, 3], [4, 5, 6]])

    def some(*arguments: object) -> Iterator[Hit]:
        yield Hit(0, 0, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "documents_with_tokens", some)
    code = run(app, ["inspect", str(path), "--search-tokens", "1,2", *["--json"] * as_json])
    out, err = capsys.readouterr()
    assert (code, err) == (INTERRUPTED, "interrupted\n")
    if as_json:
        assert (len(json.loads(out)["found"]), json.loads(out)["complete"]) == (1, False)
    else:
        assert "1 document found; there may be more" in out
