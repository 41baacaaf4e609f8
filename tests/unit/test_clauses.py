"""Every clause of the two specifications is cited by a test that checks it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import tokenstore.format
import tokenstore.order

TESTS = Path(__file__).parents[1]


@cache
def cited() -> set[str]:
    """The clauses in the docstrings of all tests, with ranges such as ORD-12..15 and lists such as FMT-1, 2 expanded."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            for kind, first, last in re.findall(
                r"(FMT|ORD)-(\d+)(?:(?:\.\.| to (?:FMT|ORD)-)(\d+))?", ast.get_docstring(node) or ""
            ):
                found |= {f"{kind}-{number}" for number in range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("specification", [tokenstore.format, tokenstore.order], ids=["format", "order"])
def test_every_clause_is_cited_by_a_test(specification: object) -> None:
    """A clause without a test is a promise that nothing checks."""
    clauses = set(re.findall(r"^((?:FMT|ORD)-\d+) ", specification.__doc__ or "", re.MULTILINE))
    assert len(clauses) >= 13
    assert not clauses - cited()
