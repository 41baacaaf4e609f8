"""The templates of pages: whatever text is put into one, it is made safe."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.report_pages import is_harmless
from tokenstore.report.page import render


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put a text in the place of the template `store.html`."""
    from tokenstore.report import page

    original = page._asset

    def put(text: str) -> None:
        monkeypatch.setattr(page, "_asset", lambda name: text if name == "store.html" else original(name))
        page._environment.cache_clear()

    yield put
    monkeypatch.undo()
    page._environment.cache_clear()


def test_every_text_is_made_safe(template: Callable[[str], None]) -> None:
    """Wherever it stands in a template, joined, formatted, in an attribute, or given to a part of another file."""
    template('{% from "parts.html" import facts %}{{ a }}<p title="{{ a ~ 1 }}">{{ [a]|join(a) }}{{ facts([(a, a)]) }}')
    made = render("store.html", a="<\u202e\x00\ud800'\"&")
    assert is_harmless(made)
    assert made.count("&lt;\\u202e\\x00\\ud800&#39;&#34;&amp;") == 5
