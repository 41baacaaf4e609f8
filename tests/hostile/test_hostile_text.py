"""Texts, ids, file names and source names that could control a terminal, a markup reader or JSON are only displayed."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from tests.support.processes.command_lines import run_here
from tests.support.stores.written import build_stores

ATTACKS = [
    "\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1H cleared",
    "\x1b]0;new title\x07 \x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\ \x1bP+q\x1b\\",
    "\x9b31m \x90q\x9c \x84 \x85 C1 controls",
    "bell\x07 back\x08\x08\x08space\rreturn \x0b\x0c vertical \x00 nul \x7f del",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200e\u200f\u061c marks",
    "zero\u200bwidth \u2060 \ufeff \U000e0041\U000e007f tags \u00ad soft",
    "\u2028line\u2029paragraph",
    "[red]markup[/red] [/] [link=http://example.org]x[/link] :smile: [bold",
    "<script>alert(1)</script> & \" ' `$(rm -rf /)` %s {0} \\x1b",
    "\ue000 private \U0010ffff \ufffe none",
    "x" * 20_000,
    "ﷺ" * 50 + "🦊" * 50 + "e" + "\u0301" * 500,
]
KEPT = "\n\t\u200c\u200d"


def is_harmless(text: str) -> bool:
    """Whether it contains no character that controls a terminal."""
    return not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in KEPT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the attacks as texts, ids and file names, and a plan over it with such source names."""
    folder = tmp_path_factory.mktemp("hostile")
    source = folder / "in \x1b[5m[red]\u202e"
    source.mkdir()
    rows = [{"text": text, "id": text[:60] + str(n)} for n, text in enumerate(ATTACKS)]
    (source / "a\x1b[5m\x07\n[b].jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_stores(folder / "s\x1b[1m", source, id_field="id")
    path = str(folder / "s\x1b[1m")
    names = {"\x1b[31ma[/]": 1, ":smile:\u202e": 2}
    sources = {name: {"path": path, "weight": weight} for name, weight in names.items()}
    plan = {"sequence_length": 64, "global_batch_size": 8, "num_steps": 60, "sources": sources}
    (folder / "plan.yaml").write_text(json.dumps(plan))
    stage = [{"from_step": 3, "weights": {"\x1b[31ma[/]": 1}}]
    (folder / "other\x1b[1m.yaml").write_text(json.dumps({**plan, "stages": stage}))
    return folder


QUESTIONS = {
    "store": ("inspect", "s\x1b[1m"),
    **{f"document {n}": ("inspect", "s\x1b[1m", "--document", n) for n in range(len(ATTACKS))},
    **{f"tokens {n}": ("inspect", "s\x1b[1m", "--document", n, "--tokens") for n in range(0, len(ATTACKS), 3)},
    "id": ("inspect", "s\x1b[1m", "--id", ATTACKS[0][:60] + "0"),
    "search": ("inspect", "s\x1b[1m", "--search", "e"),
    "search nothing": ("inspect", "s\x1b[1m", "--search", "\x1b]9"),
    "search tokens": ("inspect", "s\x1b[1m", "--search-tokens", "27"),
    "plan": ("plan", "plan.yaml", "--world-size", 3),
    "epochs": ("plan", "plan.yaml", "--epochs", 100),
    "diff": ("plan", "plan.yaml", "--diff", "other\x1b[1m.yaml"),
    "step": ("trace", "plan.yaml", "--step", 0, "--whole"),
    "step tokens": ("trace", "plan.yaml", "--step", 1, "--tokens", "--row", 2),
    "document": ("trace", "plan.yaml", "--document", "\x1b[31ma[/]:4"),
    "document by id": ("trace", "plan.yaml", "--document", ":smile:\u202e:" + ATTACKS[4][:60] + "4"),
}
MISTAKES = {
    "no store": ("inspect", "none\x1b[1m"),
    "id": ("inspect", "s\x1b[1m", "--id", "\x1b[1m\u202e"),
    "no document": ("inspect", "s\x1b[1m", "--document", 99),
    "no source": ("plan", "plan.yaml", "--epochs", 1, "--source", "\x1b[1m"),
    "no emoji": ("plan", "plan.yaml", "--epochs", 1, "--source", ":smile:"),
    "no such document": ("trace", "plan.yaml", "--document", "\x1b[1m:3"),
    "no plan": ("trace", "none\x1b[1m", "--step", 1),
}


def ask(folder: Path, question: tuple, *more: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    command, path, *rest = question
    rest = [folder / word if str(word).startswith("other") else word for word in rest]
    done = run_here(command, folder / path, *rest, *more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", QUESTIONS)
def test_output_cannot_control_a_terminal(folder: Path, name: str) -> None:
    """Every command, piped: escapes are visible, markup and emoji codes are unchanged."""
    code, out, err = ask(folder, QUESTIONS[name])
    assert (code, err) == (0, "")
    assert is_harmless(out)


@pytest.mark.parametrize("name", ["store", "document 0", "document 7", "tokens 3", "search", "plan", "diff", "step"])
def test_coloured_output_cannot_control_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The only escapes are our colours: without them, nothing is left."""
    for width in ("40", "120"):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", width)
        code, out, _ = ask(folder, QUESTIONS[name])
        assert code == 0
        assert "\x1b[" in out
        assert is_harmless(re.sub(r"\x1b\[[0-9;]*m", "", out))


@pytest.mark.parametrize("name", QUESTIONS)
def test_json_is_ascii_and_exact(folder: Path, name: str) -> None:
    """One line of printable ASCII from which all values can be recovered."""
    whole = ("--head", "30000") if name.startswith("document ") and name != "document by id" else ()
    code, out, _ = ask(folder, QUESTIONS[name], *whole, "--json")
    assert code == 0
    assert out.endswith("\n")
    assert out[:-1].isascii()
    assert out[:-1].isprintable()
    value = json.loads(out)
    if whole:
        assert value["document"]["excerpt"]["text"].removesuffix("<|endoftext|>") == ATTACKS[int(name[9:])]


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_safe_too(folder: Path, name: str) -> None:
    """Messages contain what was requested and what was found."""
    code, out, err = ask(folder, MISTAKES[name])
    assert code in (1, 2)
    assert out == ""
    assert err.startswith("error: ")
    assert is_harmless(err)
    assert (":smile:" in err) == (name in ("no emoji", "no source", "no such document"))


def test_text_that_resembles_markup_is_shown_unchanged(folder: Path) -> None:
    """Square brackets, emoji codes, percent signs and braces."""
    for n in (7, 8):
        assert ATTACKS[n] in ask(folder, QUESTIONS[f"document {n}"])[1]
    assert all(":smile:" in ask(folder, QUESTIONS[name])[1] for name in ("plan", "epochs", "step"))
    assert r"\x1b[31ma[/]" in ask(folder, QUESTIONS["plan"])[1]


def test_a_long_line_is_not_wrapped_in_a_pipe(folder: Path) -> None:
    """And only as much of it is shown as was requested."""
    _, out, _ = ask(folder, QUESTIONS["document 10"])
    assert "x" * 1000 + "\n" in out
    assert "x" * 1001 not in out
