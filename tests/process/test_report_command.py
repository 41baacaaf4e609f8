"""`tokenstore report` as a user runs it: the output file, what is refused, `--json`, and one clear message per failure."""

import errno
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tests.support.processes.command_lines import ok, run, run_here
from tests.support.report_pages import check_page
from tests.support.stores.grown import documents_of, grow, write
from tokenstore.report import plan_report, store_report
from tokenstore.report.page import BEGINS
from tokenstore.store import files, writing


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with all optional files, in two versions."""
    path = write(tmp_path / "s", documents_of(3, [30, 4, 60, 9, 12, 40]))
    grow(path, documents_of(4, [5, 6]))
    return path


@pytest.fixture
def plan(make_store: Callable[..., Path], tmp_path: Path) -> Path:
    """Two sources, and skipped steps."""
    for seed, name in enumerate("ab"):
        make_store(name, random_documents(seed, 60, 20), length_index=True)
    (tmp_path / "plan.yaml").write_text(
        "sequence_length: 16\nglobal_batch_size: 4\nnum_steps: 60\nsources:\n"
        "  a: {path: a, weight: 0.5}\n  b: {path: b, weight: 0.5}\nskip_steps: [[4, 6]]\n"
    )
    return tmp_path / "plan.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def refused(code: int, message: str, *command: object) -> None:
    """Check the exit code and the message; no file is written and no traceback printed."""
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    done = run_here("report", *command)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


class TestOutput:
    def test_the_default_name(self, store: Path, plan: Path, folder: Path) -> None:
        """The name of the store or plan, in the working directory; the size is printed."""
        for path, name in (store, "s.report.html"), (plan, "plan.report.html"):
            out = ok("report", path)
            assert out == f"{name}: {(folder / name).stat().st_size / 1000:.3g} kB\n"
            check_page((folder / name).read_text("utf-8"))
        assert sorted(path.name for path in folder.iterdir()) == ["plan.report.html", "s.report.html"]
        ok("report", store, "-o", "other.html")
        assert (folder / "other.html").read_bytes() == (folder / "s.report.html").read_bytes()

    def test_the_store_may_be_the_working_directory(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store given as `.` has its name as title."""
        monkeypatch.chdir(store)
        assert ok("report", ".", "-o", "../here/x.html").startswith("../here/x.html")
        assert "<h1><bdi>s</bdi></h1>" in Path("../here/x.html").read_text("utf-8")

    def test_an_earlier_report_is_replaced(self, store: Path, plan: Path, folder: Path) -> None:
        """Whatever it was a report of."""
        ok("report", store, "-o", "x.html")
        ok("report", plan, "-o", "x.html")
        assert "A sampling plan" in (folder / "x.html").read_text("utf-8")

    @pytest.mark.parametrize("data", [b"", b"<!doctype html>\n<p>mine", b"x" * 1000, BEGINS.encode()[:-1]])
    def test_another_file_is_kept_without_overwrite(self, store: Path, folder: Path, data: bytes) -> None:
        """Also one that begins like a report."""
        (folder / "x.html").write_bytes(data)
        refused(2, r"output: x.html exists and is not a report; use --overwrite", store, "-o", "x.html")
        ok("report", store, "-o", "x.html", "--overwrite")
        check_page((folder / "x.html").read_text("utf-8"))

    def test_only_regular_files_are_replaced(self, store: Path, folder: Path) -> None:
        """Never a folder, a pipe or a device, even with --overwrite; and the command does not block."""
        files.os.mkfifo(folder / "pipe")
        for output, found in (
            (folder, "a folder"),
            (folder / "pipe", "not a regular file"),
            ("/dev/full", "not a regular file"),
        ):
            for more in (), ("--overwrite",):
                refused(2, f"output: .* is {found}; choose another output", store, "-o", output, *more)
        assert (folder / "pipe").is_fifo()

    @pytest.mark.parametrize("output", ["no/such/folder/x.html", "x" * 300, "x" * 253, "s/manifest.json/x.html"])
    def test_an_impossible_output_is_refused(self, store: Path, output: str) -> None:
        """A missing folder, a name that is too long, a file used as a folder."""
        refused(1, r"error: output: cannot write .*: .*; choose another output", store, "-o", output)

    def test_an_unreadable_output_is_kept(self, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may not be a report."""
        (folder / "x.html").write_bytes(b"mine")
        monkeypatch.setattr("builtins.open", failing(open, "x.html", errno.EACCES))
        refused(2, "output: x.html exists and is not a report", store, "-o", "x.html")

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
    def test_a_failing_disk_leaves_no_partial_page(
        self, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """An earlier report stays complete."""
        ok("report", store, "-o", "x.html")
        monkeypatch.setattr(writing, "sync", raising(number))
        refused(1, "output: cannot write x.html: ", store, "-o", "x.html")
        refused(1, "output: cannot write y.html: ", store, "-o", "y.html")
        assert [path.name for path in folder.iterdir()] == ["x.html"]

    def test_control_characters_in_names_are_escaped(self, store: Path) -> None:
        """In the line that names the file."""
        assert ok("report", store, "-o", "\x1b[31m\u202e[red].html").startswith(r"\x1b[31m\u202e[red].html: ")


def raising(number: int) -> Callable:
    def fail(*_: object) -> None:
        raise OSError(number, "a reason")

    return fail


def failing(real: Callable, name: str, number: int) -> Callable:
    """`open` that fails for files with this name."""

    def opened(path: object, *rest: object, **options: object) -> object:
        if str(path).endswith(name):
            raise OSError(number, "a reason", str(path))
        return real(path, *rest, **options)

    return opened


class TestJson:
    def test_keys(self, store: Path, plan: Path, folder: Path) -> None:
        """Scripts depend on these keys. No page is written, and an existing file does not matter."""
        (folder / "s.report.html").write_text("mine")
        found = json.loads(ok("report", store, "--json"))
        assert set(found) == {f.name for f in fields(store_report.StoreReport)} == {"store", "samples", "no_text"}
        assert len(found["samples"]) == 6
        assert set(found["samples"][0]) == {
            "number",
            "id",
            "origin",
            "num_tokens",
            "num_in_loss",
            "excerpt",
            "metadata",
        }
        found = json.loads(ok("report", plan, "--json"))
        assert (
            set(found)
            == {f.name for f in fields(plan_report.PlanReport)}
            == {"title", "file", "plan", "ranks", "mixture", "locality", "stores", "samples", "config", "no_text"}
        )
        assert (
            set(found["stores"][0])
            == {f.name for f in fields(plan_report.StoreRow)}
            == {"name", "path", "version", "digest", "slice", "num_tokens", "num_documents", "lengths"}
        )
        assert set(found["samples"][0]) == {f.name for f in fields(plan_report.SampledStep)} == {"step", "rows"}
        assert set(found["mixture"][0]) == {"step", "sequences", "epochs", "shares", "token_shares", "weights"}
        assert [sample["step"]["step"] for sample in found["samples"]] == [0, 30, 59]
        assert [len(sample["rows"]) for sample in found["samples"]] == [4, 4, 4]
        assert [path.name for path in folder.iterdir()] == ["s.report.html"]

    def test_options_limit_the_content(self, store: Path, plan: Path) -> None:
        """Samples, tokens, steps, ranks, and the version."""
        found = json.loads(ok("report", store, "--json", "--samples", 2, "--max-tokens", 3, "--version", 1))
        assert (len(found["samples"]), found["samples"][0]["excerpt"]["stop"], found["store"]["version"]) == (2, 3, 1)
        more = ("--steps", 10, "--step", 59, "--step", 3, "--samples", 1, "--world-size", 2, "--microbatch-size", 1)
        found = json.loads(ok("report", plan, "--json", *more))
        assert [sample["step"]["step"] for sample in found["samples"]] == [59, 3]
        assert (found["plan"]["steps"], found["ranks"]["world_size"]) == (10, 2)
        assert json.loads(ok("report", plan, "--json", "--samples", 0))["samples"] == []


class TestMistakes:
    @pytest.mark.parametrize(
        ("question", "code", "message"),
        [
            (["{store}", "--step", "3"], 2, "report: .* is a store; --title, --steps, --step and the sizes are only valid for a plan"),
            (["{store}", "--world-size", "3"], 2, "report: .* is a store"),
            (["{store}", "--version", "9"], 1, "store version: expected one of 1, 2, found 9"),
            (["{plan}", "--version", "1"], 2, "report: .* is a plan; --version is only valid for a store"),
            (["{plan}.not", "--version", "1"], 2, "plan: cannot read .*No such file"),
            (["{plan}", "--steps", "61"], 2, "steps: expected 1 to 60"),
            (["{plan}", "--steps", "0"], 2, "steps: expected 1 to 60, the steps of the plan, found 0"),
            (["{plan}", "--step", "60"], 2, "step: expected a step below 60"),
            (["{plan}", "--step", "-1"], 2, "step: expected a step in 0..60, found -1"),
            (["{plan}", "--step", "4"], 2, "step: 4 is skipped"),
            (["{plan}", "--step", "x"], 2, "Invalid value"),
            (["{plan}", "--samples", "-1"], 2, "report: --samples and --max-tokens must be 0 or more"),
            (["{store}", "--max-tokens", "-1"], 2, "report: --samples and --max-tokens"),
            (["{plan}", "--world-size", "0"], 2, "world_size: expected 1 or more"),
            (["{plan}", "--world-size", "3"], 2, "expected"),
            (["{plan}", "--microbatch-size", "0"], 2, "microbatch_size: expected 1 or more"),
            (["{plan}.not"], 2, "plan: cannot read .*No such file"),
            (["{store}/manifest.json"], 2, "plan: "),
            (["{store}/.."], 1, "no store at "),
            (["/dev/null"], 2, "plan: cannot read /dev/null: a device"),
            ([], 2, "PATH is missing"),
        ],
    )  # fmt: skip
    def test_codes_and_messages(self, store: Path, plan: Path, question: list, code: int, message: str) -> None:
        """2 for wrong usage, 1 for unreadable files; one message, no page."""
        refused(code, message, *(word.format(store=store, plan=plan) for word in question))

    def test_damage_is_reported(self, store: Path) -> None:
        """With the message of the other commands."""
        name = next(path for path in store.glob("tokens-*"))
        name.write_bytes(b"\xff" * name.stat().st_size)
        refused(1, "expected token ids below 300, found 65535", store)


@pytest.mark.deep
def test_the_tool_is_the_same_command(plan: Path, folder: Path) -> None:
    """`python -m tools.report` has the same help and writes the same page."""
    done = run(sys.executable, "-m", "tools.report", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tokenstore report stores/web" in done.stdout
    assert all(option in done.stdout for option in ("--output", "--samples", "--steps", "--overwrite", "--json"))
    done = run(sys.executable, "-m", "tools.report", plan, "-o", folder / "tool.html")
    assert (done.returncode, done.stderr) == (0, "")
    ok("report", plan, "-o", "command.html")
    assert (folder / "tool.html").read_bytes() == (folder / "command.html").read_bytes()
