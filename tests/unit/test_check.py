"""`python -m tools.check`: what its fast tests cover, and what a failing stage prints and stops."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tools import check
from tools.check import FAST_TESTS, ROOT, run_together

PROMISES = {f"P{number}" for number in range(1, 11)}


def docstrings_of_tests(path: Path) -> list[str]:
    """The docstring of each test of a module, after those of its class and its module."""
    module = ast.parse(path.read_text())
    docstrings = []
    for scope in [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]:
        for node in scope.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                parts = dict.fromkeys(ast.get_docstring(each) or "" for each in (module, scope, node))
                docstrings.append("\n".join(parts))
    return docstrings


def test_the_fast_tests_name_every_promise() -> None:
    """Each of P1 to P10 is named by a test that the check runs, and each path exists."""
    named: set[str] = set()
    for name in FAST_TESTS:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
        assert files, f"{name} holds no tests"
        for file in files:
            for docstring in docstrings_of_tests(file):
                named |= set(re.findall(r"\bP\d+\b", docstring))
    assert named >= PROMISES


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which modules for stages can be written."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "passes.py").write_text("print('quiet')")
    (tmp_path / "fails.py").write_text("import sys; print('the reason'); sys.exit(3)")
    (tmp_path / "waits.py").write_text("import signal; signal.pause()")
    return tmp_path


def test_a_stage_that_passes_prints_one_line(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its seconds and its name, not its output."""
    assert run_together({"first": ["passes"], "second": ["passes"]})
    assert re.fullmatch(r"( +\d+\.\d s  (first|second) passed\n){2}", capsys.readouterr().out)


def test_a_stage_that_fails_shows_its_output_and_stops_the_others(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Output, seconds and exit code of the first that fails; `slow` would never end by itself."""
    assert not run_together({"slow": ["waits"], "wrong": ["fails"]})
    assert re.fullmatch(r"the reason\n +\d+\.\d s  wrong failed with exit code 3\n", capsys.readouterr().out)


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says how to install it."""
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == "mypy" else sys)
    assert check.main() == 1
    assert capsys.readouterr().err == "not installed: mypy; run `pip install -c constraints.txt -e '.[test]'`\n"
