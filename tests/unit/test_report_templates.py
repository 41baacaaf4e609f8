"""Templates of pages: any text in them is made safe."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.report_pages import is_harmless
from tokenstore.report.page import render


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Replace the template `store.html` by a text."""
    from tokenstore.report import page

    original = page._asset

    def put(text: str) -> None:
        monkeypatch.setattr(page, "_asset", lambda name: text if name == "store.html" else original(name))
        page._environment.cache_clear()

    yield put
    monkeypatch.undo()
    page._environment.cache_clear()


def test_every_text_is_made_safe(template: Callable[[str], None]) -> None:
    """Directly, joined, formatted, in an attribute, or passed to a macro of another file."""
    template('{% from "parts.html" import facts %}{{ a }}<p title="{{ a ~ 1 }}">{{ [a]|join(a) }}{{ facts([(a, a)]) }}')
    made = render("store.html", a="<\u202e\x00\ud800'\"&")
    assert is_harmless(made)
    assert made.count("&lt;\\u202e\\x00\\ud800&#39;&#34;&amp;") == 5
