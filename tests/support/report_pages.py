"""Reads pages of `tokenstore report` back; and stores and plans with hostile texts."""

import base64
import hashlib
import json
import re
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.support.stores.grown import Document, Kind, write
from tests.support.stores.written import build_stores
from tokenstore import Plan, PlanConfig
from tokenstore.report.store_report import store_page, store_report
from tokenstore.store import Store

SCRIPTS = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=2>",
    "</script><script>window.pwned=3</script>",
    "</style></title></textarea><svg onload=window.pwned=4>",
    "\" onfocus=window.pwned=5 autofocus x='` ' onmouseover=window.pwned=6 y=\"",
    "<!-- --> ]]> <!-- <script> &lt;script&gt;window.pwned=7&lt;/script&gt; &#60; &amp;lt;",
    "{{ 7*7 }} {% raw %} {# gone #} ${window.pwned=8} javascript:window.pwned=9",
]
ATTACKS = [
    *SCRIPTS,
    "\x1b[31mred\x1b[0m \x07 \x9b31m \x00nul \x7fdel \x85next\r\nline \x0b\x0c",
    "abc \u202e reversed \u2066 isolate \u200b \ufeff \u2028 \u2029 \U000e0041 \ue000 \ufffe",
    "مرحبا بالعالم هذا نص 123 (abc)",
    "שלום, עולם",
    "👩‍👩‍👧 🦊🇪🇺 e\u0301 日本語 हर दस्तावेज़",
    "x" * 20_000,
    "a\tb\n\n  c \u00a0\u3000 d\\u202e &nbsp;",
]
KEPT = "\n\t\u200c\u200d"
VOID = {"meta", "link", "br", "img", "input", "hr"}


def is_harmless(text: str) -> bool:
    """Whether the text has no control or format character that could move, hide or reverse text."""
    return not [
        c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and c not in KEPT
    ]


# ---- a page, read back


@dataclass
class Box:
    """The tokens of an excerpt: the number of the first; ids, text and classes of each element."""

    start: int
    label: str
    ids: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    classes: list[list[str]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The ids of all elements."""
        return [id for ids in self.ids for id in ids]


class Page(HTMLParser):
    """A parsed page. Every element is closed.

    Attributes:
        elements: [(tag, attributes)].
        scripts: texts of the scripts that run.
        data: content of the JSON scripts.
        boxes: the token boxes.
        pres: texts of <pre>.
        text: all text; `shown` is the same with single spaces.
    """

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.source, self.open = page, []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.data: list[Any] = []
        self.boxes: list[Box] = []
        self.pres: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []
        self.shown = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), "an attribute is repeated"
        self.elements.append((tag, given))
        if tag not in VOID:
            self.open.append((tag, given))
        if given.get("class") == "tokens":
            self.boxes.append(Box(int(given["data-start"]), given["aria-label"]))
        if "data-i" in given:
            self.boxes[-1].ids.append([int(each) for each in given["data-i"].split()])
            self.boxes[-1].classes.append((given.get("class") or "").split())
            self.boxes[-1].texts.append("")
        if tag == "pre":
            self.pres.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, given = self.open[-1] if self.open else ("", {})
        if tag == "script":
            self.scripts.append(data) if not given.get("type") else self.data.append(json.loads(data))
        elif tag != "style":
            self.text += data
        if "data-i" in given:
            self.boxes[-1].texts[-1] += data
        if tag == "pre":
            self.pres[-1] += data

    def handle_comment(self, data: str) -> None:
        assert data == " a page of `tokenstore report` "


def check_page(source: str) -> Page:
    """Parse a page and check that it is inert: one script, ours; no address, no handler, no odd character."""
    page = Page(source)
    assert is_harmless(source)
    assert source.encode().decode() == source
    assert is_harmless(page.text)
    (policy,) = (given["content"] for _, given in page.elements if "Content-Security-Policy" in given.values())
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    names = [given["id"] for _, given in page.elements if "id" in given]
    assert len(set(names)) == len(names)
    for tag, given in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img", "image", "use", "a:href")
        for name, value in given.items():
            assert not name.startswith("on")
            assert is_harmless(value or "")
            if name in ("href", "src", "action", "formaction", "xlink:href", "srcset", "ping", "data"):
                assert value == "data:," or (value[0] == "#" and value[1:] in names), value
            if name == "style":
                assert re.fullmatch(r"(width|bottom|left|flex-grow):\d+(\.\d+)?%?", value), value
    assert not re.search(r"url\(|@import|https?:|//[a-z]", re.sub(r"<body>.*</body>", "", source, flags=re.S))
    return page


# ---- stores and plans for pages


def hostile_store(folder: Path) -> Path:
    """A store with hostile texts, ids, input names and path; its documents have origins and ids."""
    source = folder / "in\x1b[5m <b>\u202e"
    source.mkdir(parents=True)
    for part, name in enumerate(["<script>window.pwned=11<!--.jsonl", "b\x07\n\u2066 '\"onload=x.jsonl"]):
        rows = [{"text": text, "id": text[:60] + str(n)} for n, text in enumerate(ATTACKS) if n % 2 == part]
        (source / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "s <script>window.pwned=12<!-- $(touch x) '\x1b\u202e"
    build_stores(path, source, id_field="id", text_endings=(".a<script>\x1b",))
    return path


def texts_store(path: Path, texts: Sequence[str], kind: Kind | None = None, masked: bool = True) -> Path:
    """A store of texts as bytes; if `masked`, every second word is not in the loss."""
    documents = []
    for number, text in enumerate(texts):
        tokens = list(text.encode())
        words = [text.encode()[:i].count(b" ") % 2 == 0 for i in range(len(tokens))]
        documents.append(
            Document(tokens, words if masked else [True] * len(tokens), "chat.jsonl", number + 1, f"<i>{number}")
        )
    return write(path, documents, kind or Kind())


def make_plan(sources: dict[str, dict], **fields: Any) -> Plan:
    """A plan of 16 tokens per sequence, 4 sequences per step and 40 steps by default, without its warnings."""
    given = {"sequence_length": 16, "global_batch_size": 4, "num_steps": 40, "sources": sources, **fields}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Plan(PlanConfig(**given))


def page_of(store: Store, samples: int = 100, max_tokens: int = 30_000) -> Page:
    return check_page(store_page(store_report(store, samples, max_tokens)))


def facts(page: Page) -> dict[str, str]:
    """The names and values listed on a page."""
    found = {}
    for part in page.source.split("<dt>")[1:]:
        name, rest = part.split("</dt><dd><bdi>", 1)
        found[name] = rest.split("</bdi></dd>", 1)[0]
    return found
