"""Figures of "How it works", drawn from what the plans on that page return. Colours are those of the site's theme, light or dark."""

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from pathlib import Path

import tokenstore
from tests.support.code_blocks import run_page

PAGE = Path(__file__).parent / "how-it-works.md"
_STYLE = """
.figure-of-page { margin: 1.5rem 0; }
.figure-of-page svg { width: 100%; max-width: 36rem; height: auto; font: 15px sans-serif; }
.figure-of-page text { fill: var(--color-foreground-primary); text-anchor: middle; dominant-baseline: central; }
.figure-of-page .name { text-anchor: end; }
.figure-of-page rect { stroke: var(--color-foreground-muted); fill: none; }
.figure-of-page .one { fill: var(--color-brand-primary); fill-opacity: 0.15; }
.figure-of-page .two { fill: var(--color-brand-primary); fill-opacity: 0.4; }
.figure-of-page .padding { stroke-dasharray: 4 4; }
.figure-of-page figcaption { color: var(--color-foreground-secondary); font-size: 0.9em; }
"""
_LEFT, _ROW = 76, 34  # units: width of the names on the left, height of a row


@cache
def figures() -> dict[str, str]:
    """Each figure as HTML, by name. The stores are made by running the page."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tokenstore-docs-") as folder:
        try:
            os.chdir(folder)
            with contextlib.redirect_stdout(io.StringIO()):
                run_page(PAGE.read_text(), Path(folder))
            stores = {"a": "stores/letters", "b": "stores/digits"}
            shares = {"a": 0.7, "b": 0.3}
            mixed = tokenstore.Plan.of(stores, sequence_length=16, global_batch_size=4, weights=shares, seed=1)
            packed = tokenstore.Plan.of("stores/letters", sequence_length=16, global_batch_size=8, seed=1)
            return {"interleave": interleave(mixed, 10), "packing": packing(packed, 0)}
        finally:
            os.chdir(before)


def sources_of(plan: tokenstore.Plan, step: int) -> list[str]:
    """The source of each row of a step."""
    return [row[0].source for row in plan.documents(step)]


def interleave(plan: tokenstore.Plan, num_steps: int) -> str:
    """The source of each row in the first steps, a column per step; below, the sequences of b so far and its exact share."""
    width, rows = 46, plan.global_batch_size(0)
    steps = [sources_of(plan, step) for step in range(num_steps)]
    shares = plan.schedule.stage(0).shares
    share = shares["b"] / sum(shares.values())

    def draw() -> Iterator[str]:
        for row in range(rows):
            yield _name(f"row {row}", row)
        for number, name in enumerate(["step", "b so far", f"its {share:.0%}"]):
            yield _name(name, rows + number)
        so_far = 0
        for step, names in enumerate(steps):
            so_far += names.count("b")
            for row, name in enumerate(names):
                yield _box(_LEFT + step * width, row, width - 4, "two" if name == "b" else "one", name)
            for number, text in enumerate([f"{step}", f"{so_far}", f"{share * rows * (step + 1):.1f}"]):
                yield _text(_LEFT + step * width + (width - 4) / 2, rows + number, text)

    text = f"The source of each row in steps 0 to {num_steps - 1}: {'; '.join(' '.join(names) for names in steps)}."
    caption = "A column is a step. After every step, source b is within one sequence of its share."
    return _figure(text, caption, _LEFT + num_steps * width, rows + 3, draw)


def packing(plan: tokenstore.Plan, step: int) -> str:
    """The rows of a step: a box per document with its letter and its tokens, and dashed boxes for padding."""
    width, length = 30, plan.config.sequence_length
    pieces, batch = plan.documents(step), plan.batch(step)["input_ids"]
    described = []

    def draw() -> Iterator[str]:
        for row, (documents, tokens) in enumerate(zip(pieces, batch, strict=True)):
            yield _name(f"row {row}", row)
            first, labels = 0, []
            for number, piece in enumerate(documents):
                size, whole = piece.stop - piece.start, len(plan.stores[piece.source][piece.document])
                labels.append(f"{chr(tokens[first])} {size}" + (f" of {whole}" if size < whole else ""))
                kind = "two" if number % 2 else "one"
                yield _box(_LEFT + first * width, row, size * width - 4, kind, labels[-1])
                first += size
            if first < length:
                labels.append(f"padding {length - first}")
                yield _box(_LEFT + first * width, row, (length - first) * width - 4, "padding", "")
            described.append(", ".join(labels))

    drawn = list(draw())
    text = f"The documents in each row of a step, with their tokens: {'; '.join(described)}."
    caption = f"A row has {length} tokens. A box is a document, with its letter and its number of tokens; dashed boxes are padding."
    return _figure(text, caption, _LEFT + length * width, len(pieces), lambda: iter(drawn))


def _figure(text: str, caption: str, width: float, rows: int, draw: Callable[[], Iterator[str]]) -> str:
    """A figure in HTML without an empty line, which would end it in Markdown. `text` says what it shows, for a screen reader."""
    opening = f'<svg role="img" viewBox="0 0 {width} {rows * _ROW}" aria-label="{escape(text)}">'
    style = f"<style>{' '.join(_STYLE.split())}</style>"
    lines = [style, opening, *draw(), "</svg>", f"<figcaption>{escape(caption)}</figcaption>"]
    return "\n".join(['<figure class="figure-of-page">', *lines, "</figure>"])


def _box(x: float, row: int, width: float, kind: str, text: str) -> str:
    box = f'<rect class="{kind}" x="{x}" y="{row * _ROW + 2}" width="{width}" height="{_ROW - 4}" rx="3"/>'
    return box + _text(x + width / 2, row, text)


def _text(x: float, row: int, text: str) -> str:
    return f'<text x="{x}" y="{row * _ROW + _ROW / 2}">{escape(text)}</text>'


def _name(text: str, row: int) -> str:
    return f'<text class="name" x="{_LEFT - 8}" y="{row * _ROW + _ROW / 2}">{escape(text)}</text>'
