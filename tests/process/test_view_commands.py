"""`inspect`, `plan` and `trace` as a user runs them: exit codes, JSON, piped output, terminals of any width."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tests.support.processes.command_lines import MAIN, ROOT, environment, ok, run, run_here
from tests.support.stores.grown import documents_of, write
from tests.support.stores.masked import SMALL, write_masked
from tests.support.stores.written import build_stores
from tokenstore.format.manifest import Manifest
from tokenstore.planning.progress import SourceProgress
from tokenstore.views import (
    documents,
    lengths,
    plan_balance,
    plan_diff,
    plan_epochs,
    plan_ranks,
    plan_summary,
    store_summary,
    trace,
)

ALL_HELP = """
import contextlib, runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_module(name, run_name="__main__")
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with all optional files."""
    return write(tmp_path / "s", documents_of(3, [30, 4, 60, 9, 12, 40]))


@pytest.fixture
def plan(make_store: Callable[..., Path], tmp_path: Path) -> Path:
    """Two sources, two stages, skipped steps, and rows with several pieces."""
    for seed, name in enumerate("ab"):
        make_store(name, random_documents(seed, 60, 20), length_index=True)
    (tmp_path / "plan.yaml").write_text(
        "sequence_length: 16\nglobal_batch_size: 4\nnum_steps: 60\nsources:\n"
        "  a: {path: a, weight: 0.5}\n  b: {path: b, weight: 0.5}\n"
        "stages:\n  - {from_step: 40, weights: {a: 0.3, b: 0.7}, global_batch_size: 8}\nskip_steps: [[4, 6]]\n"
    )
    return tmp_path / "plan.yaml"


def keys(words: str) -> set[str]:
    return set(words.split())


def names(cls: type) -> set[str]:
    return {field.name for field in fields(cls)}


class TestJson:
    def test_keys_of_a_store(self, store: Path) -> None:
        """Scripts depend on these keys."""
        found = json.loads(ok("inspect", store, "--json"))
        assert (
            set(found)
            == names(store_summary.StoreSummary)
            == keys(
                "path version versions digest num_bytes manifest has_length_index num_inputs inputs lengths largest in_loss"
            )
        )
        assert (
            set(found["manifest"])
            == names(Manifest)
            == keys(
                "dtype vocab_size num_tokens num_documents ends_with_eos tokenizer shards files options counts"
                " package_versions"
            )
        )
        assert (
            set(found["lengths"])
            == names(lengths.Lengths)
            == keys("shortest longest mean percentiles half_of_tokens distinct bins")
        )
        assert set(found["lengths"]["bins"][0]) == {"low", "high", "documents", "tokens"}
        assert set(found["lengths"]["percentiles"]) == {"1", "5", "25", "50", "75", "95", "99"}
        assert set(found["largest"][0]) == {"number", "num_tokens", "id", "origin"}
        assert set(found["largest"][0]["origin"]) == {"file", "record"}
        assert set(found["inputs"][0]) == {"file", "documents"}
        assert set(found["in_loss"]) == {"share", "exact"}

    def test_keys_of_a_document_and_of_a_search(self, store: Path) -> None:
        """And their values for an excerpt and for a match."""
        found = json.loads(ok("inspect", store, "--document", 2, "--start", 3, "--head", 5, "--json"))
        assert set(found) == {"path", "version", "document", "no_text"}
        assert (
            set(found["document"])
            == names(documents.DocumentView)
            == keys("number id origin metadata num_tokens num_in_loss excerpt")
        )
        excerpt = found["document"]["excerpt"]
        assert set(excerpt) == {"start", "stop", "text", "segments"}
        assert (excerpt["start"], excerpt["stop"]) == (3, 8)
        assert set(excerpt["segments"][0]) == {"start", "stop", "token_ids", "text", "in_loss"}
        wanted = ",".join(map(str, documents_of(3, [30, 4, 60])[2].tokens[7:10]))
        found = json.loads(ok("inspect", store, "--search-tokens", wanted, "--json"))
        assert set(found) == {"path", "version", "found", "complete"}
        assert set(found["found"][0]) == {"document", "start", "stop", "id", "origin", "text"}
        assert (found["found"][0]["document"], found["found"][0]["start"], found["complete"]) == (2, 7, True)

    def test_keys_of_a_plan(self, plan: Path) -> None:
        """For the summary, --epochs and --diff."""
        found = json.loads(ok("plan", plan, "--json"))
        assert set(found) == {"plan", "ranks", "balance", "locality", "transport"}
        assert found["balance"] == found["locality"] == []
        uneven, *_ = json.loads(ok("plan", plan, "--json", "--world-size", "2"))["balance"]
        assert (
            set(uneven)
            == names(plan_balance.PlanBalance)
            == keys("global_batch_size steps attention linear in_order balanced is_balanced can_gain")
        )
        assert set(uneven["balanced"]) == names(plan_balance.Uneven) == {"in_step", "in_microbatches"}
        assert (
            set(found["plan"])
            == names(plan_summary.PlanSummary)
            == keys(
                "config fingerprint num_steps steps sequences tokens padding alignment skipped_steps skip_steps sources"
                " slices stages dropped warnings notes"
            )
        )
        assert (
            set(found["plan"]["sources"][0])
            == names(plan_summary.SourceRow)
            == keys("name stores progress weight_target token_share max_epochs num_epoch_starts epoch_starts")
        )
        assert set(found["plan"]["sources"][0]["progress"]) == names(SourceProgress)
        assert found["plan"]["config"]["sequence_length"] == 16
        assert set(found["plan"]["stages"][0]) == names(plan_summary.StageRow)
        assert set(found["plan"]["sources"][0]["epoch_starts"][0]) == {"epoch", "step"}
        assert (
            set(found["ranks"])
            == names(plan_ranks.PlanRanks)
            == keys("world_size microbatch_size divides batches world_sizes microbatch_sizes")
        )
        (row,) = json.loads(ok("plan", plan, "--epochs", "1.5", "--source", "a", "--json"))["epoch_steps"]
        assert (
            set(row)
            == names(plan_epochs.EpochSteps)
            == keys("source epochs steps num_steps epochs_at_end steps_if_endless")
        )
        found = json.loads(ok("plan", plan, "--diff", plan, "--json"))
        assert json.loads(ok("trace", plan, "--diff", plan, "--json")) == found
        assert (
            set(found)
            == names(plan_diff.PlanDifference)
            == keys("same first_step common_steps fields num_steps fingerprints balance")
        )

    def test_keys_of_a_trace(self, plan: Path) -> None:
        """For --step, with all rows, and for --document."""
        found = json.loads(ok("trace", plan, "--step", 41, "--json"))
        assert set(found) == {"step", "rank", "rows", "no_text"}
        assert (
            set(found["step"])
            == names(trace.TracedStep)
            == keys("step cursor global_batch_size world_size microbatch_size nodes sequences padding_rows")
        )
        assert [row["row"] for row in found["rows"]] == list(range(8))
        assert (
            set(found["rows"][0])
            == names(trace.TracedRow)
            == keys("row rank microbatch place source sequence epoch pieces padding")
        )
        assert (
            set(found["rows"][0]["pieces"][0])
            == names(trace.TracedPiece)
            == keys("source document id origin metadata start stop num_tokens excerpt padding")
        )
        found = json.loads(ok("trace", plan, "--document", "a:7", "--limit", 2, "--json"))
        assert set(found) == {"source", "document", "appearances", "complete"}
        assert [set(row) for row in found["appearances"]] == [keys("epoch step row rank start stop")] * 2
        assert not found["complete"]


class TestDiff:
    def test_trace_and_plan_print_the_same_difference(self, plan: Path) -> None:
        """With and without --json."""
        other = plan.with_name("other.yaml")
        other.write_text(plan.read_text().replace("from_step: 40", "from_step: 30"))
        out = ok("trace", plan, "--diff", other)
        assert out == ok("plan", plan, "--diff", other)
        assert "30" in out
        assert json.loads(ok("trace", plan, "--diff", other, "--json"))["first_step"] == 30

    def test_plans_that_deal_differently_are_not_called_equal(self, plan: Path) -> None:
        """`balance` changes no step, but ranks get other rows of it."""
        assert ok("plan", plan, "--diff", plan).startswith("the plans are equal, including their ends; fingerprint ")
        other = plan.with_name("other.yaml")
        other.write_text(plan.read_text() + "balance: attention\n")
        steps, dealing, *table = ok("plan", plan, "--diff", other).splitlines()
        assert steps.startswith("all steps have the same content, including their ends; fingerprint ")
        assert dealing == "the rows of a step are dealt to ranks differently"
        assert {"balance", "none", "attention"} <= set(" ".join(table).split())  # also if long names are folded


class TestMistakes:
    @pytest.mark.parametrize(
        ("question", "code", "message"),
        [
            (["inspect", "{store}", "--document", "0", "--search", "x"], 2, "inspect: --document and --search cannot be combined"),
            (["inspect", "{store}", "--document", "6"], 2, "document: the store has 6 documents, found 6"),
            (["inspect", "{store}", "--document", "x"], 2, "Invalid value"),
            (["inspect", "{store}", "--search-tokens", "1,x"], 2, "search-tokens: expected ids such as"),
            (["inspect", "{store}", "--search", "x", "--documents", "5"], 2, "documents: expected A:B"),
            (["inspect", "{store}", "--search", "x", "--documents", "0:7"], 2, "documents: expected a range within 0:6"),
            (["inspect", "{store}", "--head", "-1"], 2, "inspect: --start, --max-tokens and --limit must be 0 or more"),
            (["inspect", "{store}", "--version", "9"], 1, "store version: expected one of 1"),
            (["inspect", "{store}/nothing"], 1, "no store at "),
            (["plan", "{plan}", "--steps", "61"], 2, "steps: expected 1 to 60, the steps of the plan, found 61"),
            (["plan", "{endless}", "--steps", str(10**20)], 2, r"a run has at most 2\*\*62 sequences"),
            (["plan", "{plan}", "--epochs", "1", "--source", "z"], 2, "source: expected one of a, b, found 'z'"),
            (["plan", "{plan}", "--source", "a"], 2, "plan: --source is only valid with --epochs"),
            (["plan", "{plan}", "--epochs", "1", "--diff", "x"], 2, "plan: --epochs and --diff cannot be combined"),
            (["plan", "{plan}", "--world-size", "0"], 2, "world_size: expected 1 or more"),
            (["plan", "{plan}.not"], 2, "plan: cannot read .*No such file"),
            (["trace", "{plan}"], 2, "trace: expected exactly one of --step, --sequence, --document and --diff"),
            (["trace", "{plan}", "--step", "1", "--diff", "{plan}"], 2, "trace: expected exactly one of"),
            (["trace", "{plan}", "--document", "a:1", "--diff", "{plan}"], 2, "trace: expected exactly one of"),
            (["trace", "{plan}", "--diff", "{plan}.not"], 2, "plan: cannot read .*No such file"),
            (["trace", "{plan}", "--step", "60"], 2, "step: expected a step below 60"),
            (["trace", "{plan}", "--step", "4"], 2, "step: 4 is skipped"),
            (["trace", "{plan}", "--step", "0", "--rank", "1"], 2, "rank: expected"),
            (["trace", "{plan}", "--document", "a:60"], 2, "document: expected one of 60"),
            (["trace", "{plan}", "--document", "a:1", "--steps", "9"], 2, "steps: expected A:B"),
        ],
    )  # fmt: skip
    def test_codes_and_messages(self, store: Path, plan: Path, question: list, code: int, message: str) -> None:
        """2 for wrong usage, 1 for unreadable files; one message, and nothing on standard output."""
        endless = plan.with_name("endless.yaml")
        endless.write_text(plan.read_text().replace("num_steps: 60\n", ""))
        done = run_here(*(word.format(store=store, plan=plan, endless=endless) for word in question))
        assert (done.returncode, done.stdout) == (code, "")
        assert re.search(message, done.stderr), done.stderr
        assert "Traceback" not in done.stderr


class TestScreen:
    QUESTIONS = (
        ("inspect", "{store}"),
        ("inspect", "{store}", "--document", "2"),
        ("inspect", "{store}", "--document", "2", "--tokens"),
        ("plan", "{plan}", "--world-size", "2"),
        ("plan", "{plan}", "--epochs", "3"),
        ("trace", "{plan}", "--step", "41", "--max-tokens", "0"),
        ("trace", "{plan}", "--document", "a:7", "--world-size", "2"),
    )

    @pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: " ".join(q[:1] + q[2:3]))
    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_tables_fit_the_terminal(
        self, store: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, question: tuple, width: int
    ) -> None:
        """No column is lost or cut, at the width of a phone."""
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        out = ok(*(word.format(store=store, plan=plan) for word in question))
        assert "…" not in out
        monkeypatch.delenv("FORCE_COLOR")
        monkeypatch.setenv("COLUMNS", "1000")
        wide = ok(*(word.format(store=store, plan=plan) for word in question))
        plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
        if question[0] != "inspect":  # its histogram has fewer columns, and its text wraps by itself
            assert {w for w in wide.split() if len(w) < 12} <= set(plain.split()) | {"rank", "of"}

    def test_no_colour_when_piped_or_with_no_color(
        self, store: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With NO_COLOR, alternate tokens are underlined on a terminal."""
        for question in self.QUESTIONS:
            assert "\x1b" not in ok(*(word.format(store=store, plan=plan) for word in question))
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert "\x1b[36m" in ok("inspect", store, "--document", 2)
        monkeypatch.setenv("NO_COLOR", "1")
        out = ok("inspect", store, "--document", 2)
        assert "\x1b[36m" not in out
        assert "\x1b[4m" in out

    def test_masked_tokens_are_dim_and_listed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Dim on a terminal; their numbers are listed everywhere."""
        store = write_masked(tmp_path / "masked", SMALL)
        assert "3; shown and not in the loss: 0:2, 4:5" in ok("inspect", store, "--document", 2)
        assert ok("inspect", store, "--document", 2, "--tokens").count("masked") == 3
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert "\x1b[2;3m" in ok("inspect", store, "--document", 2)


class TestProcess:
    def test_the_start_does_not_import_numba(self) -> None:
        """Nor torch or pydantic: only `plan` and `trace` import them, when they run."""
        done = run(sys.executable, "-c", "import sys, tokenstore.commands.app; print(*sys.modules)")
        assert not {"numba", "torch"} & set(done.stdout.split())

    def test_tools_are_the_same_commands(self) -> None:
        """`python -m tools.inspect_store` and the others print the help of their command."""
        tools = {"inspect": "inspect_store", "plan": "inspect_plan", "trace": "trace_step"}
        names = [f"tools.{tool}" for tool in tools.values()]
        done = run(sys.executable, "-c", ALL_HELP, *names)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(f" tokenstore {command} " in done.stdout for command in tools)

    def test_a_tool_prints_what_its_command_prints(self, plan: Path) -> None:
        """As a separate process."""
        done = run(sys.executable, "-m", "tools.trace_step", plan, "--step", 3)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == ok("trace", plan, "--step", 3)

    def test_a_closed_pipe_ends_without_a_traceback(self, plan: Path) -> None:
        """As in `trace ... | head -1`."""
        for more in ("", "--json"):
            command = f"{' '.join(map(repr, MAIN[:1]))} -c '{MAIN[2]}' trace {plan} --step 3 {more} | head -c 5"
            done = subprocess.run(command, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
            assert len(done.stdout) == 5
            assert done.stderr == ""

    def test_output_without_utf_8(self, jsonl: Callable[..., Path], tmp_path: Path) -> None:
        """Missing characters are printed as escapes, bars in ASCII."""
        build_stores(tmp_path / "s", jsonl("a.jsonl", ["größer 🦊"]))
        env = {**environment(), "PYTHONIOENCODING": "ascii"}
        for more, shown in (["--document", "0"], r"gr\xf6\xdfer \U0001f98a"), ([], "####"):
            done = subprocess.run([*MAIN, "inspect", tmp_path / "s", *more], cwd=ROOT, env=env, capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")
            assert shown.encode() in done.stdout

    def test_a_search_on_a_terminal(self, store: Path) -> None:
        """The progress bar is gone at the end."""
        main, other = pty.openpty()
        env = {**environment(), "TERM": "xterm-256color", "COLUMNS": "60"}
        done = subprocess.run(
            [*MAIN, "inspect", store, "--search-tokens", "1"], cwd=ROOT, env=env, stdout=other, stderr=other
        )
        os.close(other)
        out = b""
        try:
            while block := os.read(main, 1 << 16):
                out += block
        except OSError:  # on Linux, the other end was closed
            pass
        os.close(main)
        assert done.returncode == 0
        assert b"found" in out
        assert b"Traceback" not in out

    def test_completion_can_be_installed(self, tmp_path: Path) -> None:
        """The script for the shell has the commands and their options."""
        env = {**environment(), "HOME": str(tmp_path)}
        done = subprocess.run(
            [*MAIN, "--install-completion", "--shell", "bash"], cwd=ROOT, env=env, capture_output=True
        )
        assert done.returncode == 0
        written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
        assert all(word in written for word in ("inspect", "--search-tokens", "trace", "--world-size"))
