"""What the documentation says of the code: nothing is missing, and what is generated is whole."""

import dataclasses
import re

import pytest

import tokenstore
from docs.build import CONTENTS, ELSEWHERE
from docs.generated import commands, formats, plan_fields, specification
from tests.support.processes.command_lines import ROOT
from tokenstore import errors
from tokenstore.commands.app import COMMANDS
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.locality import LocalityConfig
from tokenstore.planning.row_fields import BalanceConfig
from tokenstore.planning.source_config import DocumentRange, SourceConfig
from tokenstore.planning.stage_config import BatchRamp, StageConfig
from tokenstore.torch_data.formats import FORMATS

REFERENCE = ROOT / "docs" / "reference"


def test_navigation_has_every_page() -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    pages |= {name.removesuffix(".md") for name in ELSEWHERE.values()}
    listed = [name for names in CONTENTS.values() for name in names]
    assert sorted(listed) == sorted(pages - {"index"})


@pytest.mark.parametrize("module", ["tokenstore.format", "tokenstore.order"])
def test_every_clause_of_a_specification_has_a_heading(module: str) -> None:
    text = specification(module)
    headings = [int(number) for number in re.findall(r"^## [A-Z]{3}-(\d+)\b", text, re.MULTILINE)]
    assert headings == [*range(headings[0], headings[-1] + 1)]
    assert len(headings) > 10
    assert text.count("```") % 2 == 0


def test_every_field_of_a_plan_is_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) \| (.+) \|$", plan_fields(), re.MULTILINE)
    fields = [
        each.name
        for config in (PlanConfig, SourceConfig, StageConfig, DocumentRange, BatchRamp, BalanceConfig, LocalityConfig)
        for each in dataclasses.fields(config)
    ]
    assert [row[0] for row in rows] == fields


def test_every_command_and_format_is_listed() -> None:
    assert re.findall(r"^## tokenstore (\w+)$", commands(), re.MULTILINE) == [each.__name__ for each in COMMANDS]
    assert all(line.split()[2] != "-m" for line in commands().splitlines() if re.match(r"tokenstore \w+ \S", line))
    assert all(f"| `{name}` |" in formats() for name in FORMATS)


def test_every_public_name_is_in_the_reference() -> None:
    page = (REFERENCE / "python.md").read_text()
    assert [name for name in tokenstore.__all__ if f"tokenstore.{name}" not in page and name != "__version__"] == []


def test_every_error_has_a_section() -> None:
    page = (REFERENCE / "errors.md").read_text()
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and each is not errors.TokenStoreError]
    assert [each.__name__ for each in kinds if f"\n## {each.__name__}\n" not in page] == []


def test_every_category_of_a_warning_is_listed() -> None:
    page = (REFERENCE / "errors.md").read_text()
    package = ROOT / "tokenstore"
    found = [
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}.{name}"
        for path in package.rglob("*.py")
        for name in re.findall(r"^class (\w+)\(\w*Warning\)", path.read_text(), re.MULTILINE)
    ]
    assert found
    assert [name for name in found if f"`{name}`" not in page] == []


def test_every_page_leads_on() -> None:
    """The page says what to read next."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md"]
    assert [page.name for page in pages if "\n## Read next\n" not in page.read_text()] == []
