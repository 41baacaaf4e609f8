"""Links between the documentation's files lead somewhere, also where they are read outside the site, as on GitHub."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.command_lines import ROOT
from tokenstore.commands.app import GUIDES

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("benches/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"^(```+).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links_of(page: Path) -> Iterator[str]:
    """Targets of the links of a page that are files or anchors."""
    for match in LINK.finditer(CODE.sub("", page.read_text())):
        if not re.match(r"https?://", match["target"]):
            yield match["target"]


def anchors_of(page: Path) -> set[str]:
    """The anchors GitHub and the site give to headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^(```+).*?^\1", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in links_of(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors_of(file), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Tests, benches and tools in backticks, such as `tests/unit/test_loader.py`."""
    for name in re.findall(r"`((?:tests|benches|tools)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("page", "heading"), sorted(set(GUIDES.values())))
def test_guides_that_help_names_exist(page: str, heading: str) -> None:
    assert re.search(rf"^#+ {heading}$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
