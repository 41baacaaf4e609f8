"""Figures of the site show what the pages print, and can be read without seeing them."""

import re
from xml.etree import ElementTree

import pytest

from docs.build import _FIGURE
from docs.figures import PAGE, figures
from tests.support.processes.command_lines import ROOT


@pytest.fixture(scope="module", params=["interleave", "packing"])
def figure(request: pytest.FixtureRequest) -> tuple[str, ElementTree.Element]:
    """The name of a figure, and the figure: it is well-formed, with no empty line, which would end it in Markdown."""
    text = figures()[request.param]
    assert "\n\n" not in text
    return request.param, ElementTree.fromstring(text)


def test_every_figure_is_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(_FIGURE.findall(pages)) == sorted(figures())


def test_a_figure_has_a_text(figure: tuple[str, ElementTree.Element]) -> None:
    """A screen reader reads it in place of the drawing; a caption says how to read the drawing."""
    svg = figure[1].find("svg")
    assert svg.get("role") == "img"
    assert len(svg.get("aria-label")) > 100
    assert figure[1].findtext("figcaption").endswith(".")


def test_a_figure_has_no_colour_of_its_own(figure: tuple[str, ElementTree.Element]) -> None:
    """All colours are variables of the theme, which differ in light and dark."""
    style = figure[1].findtext("style")
    assert set(re.findall(r"(?:fill|stroke|color): ([^;]+);", style)) <= {
        "none", *re.findall(r"var\(--color-[\w-]+\)", style)
    }  # fmt: skip
    assert not [each for each in figure[1].iter() if {"fill", "stroke", "style"} & set(each.keys())]


def test_the_interleave_is_the_one_the_page_prints() -> None:
    svg = ElementTree.fromstring(figures()["interleave"]).find("svg")
    steps = svg.get("aria-label").partition(": ")[2].rstrip(".").split("; ")
    assert f"\n{' '.join(step.replace(' ', '') for step in steps)}\n" in PAGE.read_text()


def test_the_packing_is_the_one_the_page_prints() -> None:
    svg = ElementTree.fromstring(figures()["packing"]).find("svg")
    rows = [row.split(", ") for row in svg.get("aria-label").partition(": ")[2].rstrip(".").split("; ")]
    shown = ["".join((w[0] if w[0] != "padding" else ".") * int(w[1]) for w in map(str.split, row)) for row in rows]
    assert "\n".join(shown) in PAGE.read_text()
