"""What a notebook shows of a store and a plan: the numbers that a person asks for, and hostile names as text only."""

import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.report_pages import ATTACKS, is_harmless, make_plan
from tests.support.stores.grown import Kind, documents_of, write
from tokenstore import Plan
from tokenstore.store import Store, open_store
from tokenstore.text import clip, html_table


class Cells(HTMLParser):
    """The text of every cell, by row; any other tag than those of a table fails."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.title, self.inside = "", ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list) -> None:
        assert (tag, attributes) in [(each, []) for each in ("div", "p", "strong", "table", "tr", "th", "td")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "strong":
            self.title += data
        elif self.inside in ("th", "td"):
            self.rows[-1][-1] += data
        else:
            assert not data.strip()


def test_a_store_is_shown_with_its_numbers(tmp_path: Path) -> None:
    """Documents, tokens, tokenizer, files, what else it has, version and digest."""
    path = write(tmp_path / "web", documents_of(1, [3, 10, 7]), Kind(origins=False))
    store = open_store(path)
    cells = Cells(store._repr_html_())
    assert cells.title == f"Store {path}"
    shown = dict(cells.rows)
    assert shown["documents"] == "3"
    assert shown["tokens"] == f"{store.num_tokens} as uint16, {store.num_tokens / 3:.1f} per document"
    assert shown["also has"] == "length index, loss masks, ids"
    assert (shown["version"], shown["digest"]) == ("1", store.digest[:12])


def test_a_plan_is_shown_with_its_sources(make_store: Callable[..., Path]) -> None:
    """Shares, sequences and epochs are those of the schedule."""
    paths = [make_store(name, [[1] * 16] * 30, length_index=True) for name in "ab"]
    sources = {"a": {"path": str(paths[0]), "weight": 3}, "b": {"path": str(paths[1]), "weight": 1}}
    plan = make_plan(sources, skip_steps=[(2, 4)], stages=[{"from_step": 30, "global_batch_size": 8}])
    cells = Cells(plan._repr_html_())
    parts = ["Plan: 40 steps of 4 sequences of 16 tokens", "packing best_fit", "seed 0", "2 stages", "2 steps skipped"]
    assert cells.title == ", ".join(parts)
    assert cells.rows[0] == ["source", "stores", "share at step 0", "sequences per epoch", "in the run", "epochs"]
    assert cells.rows[1:] == [
        ["a", str(paths[0]), "75.0 %", "30", "150", "5.00"],
        ["b", str(paths[1]), "25.0 %", "30", "50", "1.67"],
    ]


def test_an_endless_plan_of_many_sources_is_cut(make_store: Callable[..., Path]) -> None:
    """It has no numbers of the run, and shows 20 sources and how many more there are."""
    path = make_store("a", [[1] * 16], length_index=True)
    with pytest.warns(UserWarning, match="are the same store"):
        plan = Plan.of({f"s{n:02}": path for n in range(23)}, 16, 4)
    rows = Cells(plan._repr_html_()).rows
    assert (len(rows), rows[-1], {len(row) for row in rows}) == (22, ["and 3 more", "", "", ""], {4})


@pytest.mark.parametrize("name", ATTACKS)
def test_names_are_text(name: str, make_store: Callable[..., Path], tmp_path: Path) -> None:
    """Names of sources and paths of stores are neither markup nor control characters."""
    path = shutil.copytree(
        make_store("s", [[1] * 16] * 3, length_index=True), tmp_path / name.replace("/", "").replace("\0", "")[:60]
    )
    plan = make_plan({name: {"path": str(path)}})
    for html in (plan._repr_html_(), plan.stores[name]._repr_html_()):
        assert is_harmless(html)
        Cells(html)
    assert is_harmless(repr(plan))
    assert len(repr(plan)) < 200
    row = Cells(plan._repr_html_()).rows[1]
    assert row[:2] == [clip(name, 200), clip(str(path), 200)]


def test_a_lone_surrogate_can_be_encoded() -> None:
    """A notebook is a JSON file in UTF-8: a name that is not valid Unicode must not make saving it fail."""
    assert b"ud800" in html_table("\ud800", [("\udfff", 1)]).encode()


def test_nothing_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook shows a store without touching the disk, so also after its files have gone."""
    shutil.rmtree(store.path)
    monkeypatch.setattr(Store, "array", None)
    assert str(store.path) in store._repr_html_()
