"""Report pages in a browser: readable at any width and in dark mode, by pointer, touch and keyboard; nothing in them runs."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import random_documents, write_store
from tests.data.texts import TEXTS
from tests.support.report_pages import ATTACKS, SCRIPTS, Box, Page, hostile_store, make_plan, texts_store
from tokenstore import open_store
from tokenstore.report.plan_page import plan_page
from tokenstore.report.plan_report import plan_report
from tokenstore.report.store_report import store_page, store_report

pytestmark = pytest.mark.browser
WIDTHS, SCHEMES, NAMES = (375, 1200), ("light", "dark"), ("hostile", "chat", "plan", "many")
# For every element with text: the contrast between its colour, with opacity, and its background
CONTRASTS = """() => {
  const parts = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const over = (top, alpha, below) => below.map((each, i) => alpha * top[i] + (1 - alpha) * each);
  const background = (element) => {
    if (!element) return [255, 255, 255];
    const [r, g, b, alpha = 1] = parts(getComputedStyle(element).backgroundColor);
    return over([r, g, b], alpha, alpha === 1 ? [r, g, b] : background(element.parentElement));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    let alpha = 1;
    for (let each = element; each; each = each.parentElement) alpha *= getComputedStyle(each).opacity;
    const below = background(element);
    const [a, b] = [light(over(parts(getComputedStyle(element).color), alpha, below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${element.tagName} ${element.className} in ${element.parentElement.className}`;
    found[name] = Math.min(found[name] ?? 99, ratio);
  }
  return found;
}"""
FOCUSED = "() => document.activeElement.className || document.activeElement.tagName"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a store of hostile texts, of a store with masks, of a plan with two stages, and of many sources."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = hostile_store(folder)
    texts_store(folder / "chat", TEXTS)
    write_store(folder / "b", random_documents(1, 80, 20, 259), 259, length_index=True)
    sources = {
        SCRIPTS[0]: {"path": str(hostile), "weight": "0.6"},
        "b \u202e": {"path": str(folder / "b"), "weight": "0.4"},
    }
    stages = [{"from_step": 60, "weights": {SCRIPTS[0]: "1", "b \u202e": "3"}, "global_batch_size": 8}]
    plan = make_plan(sources, num_steps=100, stages=stages, sequence_length=40, skip_steps=[[30, 35]])
    several = {f"{ATTACKS[i % len(ATTACKS)][:30]} {i}": {"path": str(folder / "b"), "weight": "1"} for i in range(40)}
    many = make_plan(several, global_batch_size=16)
    with open_store(hostile) as one, open_store(folder / "chat") as two:
        made = {
            "hostile": store_page(store_report(one, 20)),
            "chat": store_page(store_report(two)),
            "plan": plan_page(plan_report(plan, warned=("a likely mistake",))),
            "many": plan_page(plan_report(many)),
        }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in made}


class Tab:
    """A page in a browser, with its console messages and its requests."""

    def __init__(self, page: Any, path: Path):
        self.page, self.path = page, path
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", lambda dialog: self.messages.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        self.read = Page(path.read_text("utf-8"))

    def detail(self) -> str:
        """The details shown for a token or a point; empty if none are."""
        shown = self.page.locator("#detail")
        return " ".join(shown.inner_text().split()) if shown.is_visible() else ""

    def open(self) -> "Tab":
        """Open all sections, including samples."""
        self.page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        return self

    def press(self, *keys: str) -> str:
        for key in keys:
            self.page.keyboard.press(key)
        return self.detail()

    def check(self) -> None:
        """The page was silent, requested nothing, and no text in it has run."""
        assert self.messages == []
        assert [url for url in self.requests if url != "data:,"] == [self.path.as_uri()]
        assert self.page.evaluate("typeof window.pwned") == "undefined"


def place(box: Box, at: int) -> str:
    """The beginning of the details of an element of a text."""
    first = box.start + sum(map(len, box.ids[:at]))
    stop = first + len(box.ids[at])
    where = f"token {first}" if stop == first + 1 else f"tokens {first}:{stop}"
    return f"{where}, id {', '.join(map(str, box.ids[at]))}, "


@pytest.fixture
def tab(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Tab]]:
    """Open a page; at the end, check that it was silent."""
    opened = []

    def go(name: str, width: int = 1200, scheme: str = "light", **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        opened.append((context, Tab(context.new_page(), pages[name])))
        return opened[-1][1]

    yield go
    for context, each in opened:
        each.check()
        context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_pages_are_readable(tab: Callable[..., Tab], name: str, width: int, scheme: str) -> None:
    """Every text has enough contrast, and nothing is wider than the screen, with all sections open."""
    page = tab(name, width, scheme).open().page
    contrasts = page.evaluate(CONTRASTS)
    assert {"I dim in tokens", "I  in tokens", "P quiet in ", "P warning in "} & set(contrasts)
    assert {kind: ratio for kind, ratio in contrasts.items() if ratio < 4.5} == {}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_parses_the_file_as_written(tab: Callable[..., Tab], name: str) -> None:
    """The same elements, and the same text of tokens."""
    seen = tab(name)
    tags = seen.page.evaluate("[...document.querySelectorAll('*')].map((each) => each.tagName.toLowerCase())")
    assert tags == [tag for tag, _ in seen.read.elements]
    texts = seen.page.evaluate("[...document.querySelectorAll('.tokens')].map((each) => each.textContent)")
    assert texts == ["".join(box.texts) for box in seen.read.boxes]


class TestKeys:
    @pytest.mark.parametrize("name", NAMES)
    def test_tab_reaches_everything(self, tab: Callable[..., Tab], name: str) -> None:
        """First a link to the content, then links, charts, texts and scrolling tables, with a visible focus."""
        seen = tab(name).open()
        wanted = seen.page.evaluate(
            "[...document.querySelectorAll('a, [tabindex], summary')].filter((each) => each.checkVisibility()).length"
        )
        reached = []
        for _ in range(wanted):
            seen.press("Tab")
            reached.append(seen.page.evaluate(FOCUSED))
            assert seen.page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "2px"
        seen.press("Tab")
        assert reached[0] == "skip"
        assert "BODY" not in reached
        kinds = {"hostile": {"tokens", "scroll", "scroll whole", "SUMMARY"}, "chat": {"tokens", "scroll whole"}}
        assert kinds.get(name, {"tokens", "plot", "scroll", "SUMMARY", "PRE"}) <= set(reached)

    def test_arrow_keys_move_between_tokens(self, tab: Callable[..., Tab]) -> None:
        """From end to end and not beyond; the details equal the file."""
        seen = tab("chat").open()
        for number in (0, 3):
            box = seen.read.boxes[number]
            seen.page.locator(".tokens").nth(number).focus()
            assert seen.detail() == ""
            for at in range(12):
                shown = seen.press("ArrowRight")
                in_loss = ", not in the loss" if "dim" in box.classes[at] else ""
                assert shown == f"{place(box, at)}{json.dumps(box.texts[at], ensure_ascii=False)}{in_loss}"
                assert seen.page.locator(".tokens .at").count() == 1
            assert seen.press("ArrowLeft").startswith(place(box, 10))
            assert seen.press("ArrowRight", "Alt+ArrowLeft", "Control+ArrowLeft") == shown
            last = seen.press("End")
            assert last.startswith(place(box, -1 % len(box.ids)))
            assert seen.press("ArrowRight") == last
            assert seen.press("Home", "ArrowLeft").startswith(place(box, 0))
            assert seen.press("Tab") == ""
            assert seen.page.locator(".at").count() == 0
        assert any("dim" in classes for box in seen.read.boxes for classes in box.classes)

    def test_the_selected_token_is_in_view(self, tab: Callable[..., Tab]) -> None:
        """And its text is not parsed as markup in the details."""
        seen = tab("hostile", 375, reduced_motion="reduce").open()
        number = max(range(len(seen.read.boxes)), key=lambda n: len(seen.read.boxes[n].tokens))
        seen.page.locator(".tokens").nth(number).focus()
        seen.press("End")
        inside = "([a, b, c]) => b.top >= a.top - 1 && b.bottom <= a.bottom + 1 && b.top >= 0 && b.bottom <= c.top"
        places = seen.page.evaluate(
            "['.tokens:focus', '.tokens:focus .at', '#detail'].map((each) => document.querySelector(each).getBoundingClientRect().toJSON())"
        )
        assert seen.page.evaluate(inside, places)
        for number in range(len(seen.read.boxes)):
            seen.page.locator(".tokens").nth(number).focus()
            seen.press(*["ArrowRight"] * 3)
            assert seen.page.locator("#detail *:not(span)").count() == 0

    def test_arrow_keys_move_between_points(self, tab: Callable[..., Tab]) -> None:
        """The details equal the file."""
        seen = tab("plan")
        for number, data in enumerate(seen.read.data):
            seen.page.locator(".plot").nth(number).focus()
            for at in [0, 1, 2, len(data["steps"]) - 1]:
                shown = seen.press("End") if at > 2 else seen.press("ArrowRight")
                parts = [f"step {data['steps'][at]:,}"]
                for line, name in enumerate(data["names"]):
                    target = f" (target {data['targets'][line][at]})" if data["targets"] else ""
                    parts.append(f"{name} {data['values'][line][at]}{target}")
                assert shown == ", ".join(parts)
                left = seen.page.locator(".cursor").nth(number).evaluate("(each) => each.style.left")
                assert float(left.removesuffix("%")) == pytest.approx(100 * data["steps"][at] / data["steps"][-1])
            assert seen.press("Tab") == ""


class TestPointers:
    def test_hovering_shows_details(self, tab: Callable[..., Tab]) -> None:
        """Of a token or a chart point, until the pointer leaves, whatever has the focus."""
        seen = tab("plan").open()
        seen.page.locator(".plot").first.focus()
        tokens = seen.page.locator("#samples details[open] .tokens").first
        tokens.locator("i").nth(2).hover()
        box = next(box for box in seen.read.boxes if box.label == tokens.get_attribute("aria-label"))
        assert seen.detail().startswith(place(box, 2))
        tokens.click(position={"x": 3, "y": 3})  # the chart loses the focus, and hides no detail of the token
        tokens.locator("i").nth(1).hover()
        assert seen.detail().startswith(place(box, 1))
        seen.page.locator("#samples h2").hover()
        assert seen.detail() == ""
        area = seen.page.locator(".area").first
        area.hover(position={"x": area.bounding_box()["width"] / 2, "y": 20})
        assert re.match(r"step (50|60), ", seen.detail())
        area.hover(position={"x": 1, "y": 20})
        assert seen.detail().startswith("step 10, ")
        seen.page.locator("h1").hover()
        assert seen.detail() == ""

    def test_details_stay_after_a_touch(self, tab: Callable[..., Tab]) -> None:
        """Until another place is touched."""
        seen = tab("plan", 375, has_touch=True, is_mobile=True).open()
        tokens = seen.page.locator("#samples details[open] .tokens")
        for number in (0, 1, 0):
            tokens.nth(number).locator("i").nth(4).tap()
            box = next(box for box in seen.read.boxes if box.label == tokens.nth(number).get_attribute("aria-label"))
            assert seen.detail().startswith(place(box, 4))
            assert seen.page.locator(".at").count() == 1
        seen.page.locator(".area").first.tap()
        assert seen.detail().startswith("step ")
        assert seen.page.locator(".at").count() == 0
        seen.page.locator("h1").tap()
        assert seen.detail() == ""


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_have_names(tab: Callable[..., Tab], width: int) -> None:
    """At the ends of the lines on wide screens, without overlap; else in a list below. Axes have titles."""
    page = tab("many", width).page
    for chart in page.locator(".chart").all():
        ends = [each.bounding_box() for each in chart.locator(".ends span").all() if each.is_visible()]
        listed = [each for each in chart.locator(".legend .line").all() if each.is_visible()]
        assert (len(ends), len(listed)) == ((9, 0) if width > 640 else (0, 9))
        ends.sort(key=lambda box: box["y"])
        assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in pairwise(ends))
        assert all(box["x"] + box["width"] <= width for box in ends)
        assert [each.inner_text() for each in chart.locator(".axis").all()][1] == "step"


def test_skipped_steps_are_visible(tab: Callable[..., Tab]) -> None:
    """A mark in every chart, and a legend; samples are closed at first."""
    page = tab("plan").page
    for chart in page.locator(".chart").all():
        assert chart.locator("rect.skipped").bounding_box()["width"] > 10
        assert chart.locator(".legend").inner_text() == "skipped steps"
    assert not page.locator("#samples .tokens").first.is_visible()


@pytest.mark.parametrize("name", NAMES)
def test_without_scripts_only_details_are_missing(
    tab: Callable[..., Tab], name: str, browser: Any, pages: dict[str, Path]
) -> None:
    """The text is the same, and the numbers of charts are in tables."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages[name].as_uri())
    with_scripts = tab(name).page
    assert page.locator("body").inner_text() == with_scripts.locator("body").inner_text()
    assert not page.locator("#detail").is_visible()
    for summary in page.locator(".chart summary").all():
        summary.click()
    for chart, table in zip(Page(pages[name].read_text("utf-8")).data, page.locator(".chart table").all(), strict=True):
        assert chart["values"][0][-1] in table.inner_text()
    context.close()
