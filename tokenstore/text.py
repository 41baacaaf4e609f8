"""Layer 0: untrusted text and numbers, in the form in which people read them."""

from collections.abc import Iterable, Sequence
from math import log10
from unicodedata import category

_CELL = 200  # characters of a cell of a table
_JOINERS = "\u200c\u200d"  # Persian, Hindi and many emoji need them; they do not move other text


def safe(text: str, lines: bool = False) -> str:
    r"""`text` with everything a terminal might act on as a visible escape such as \x1b, \u202e or \ud800.

    Escaped are control, format (bidirectional overrides, zero widths, tags) and private-use characters, lone surrogates,
    line and paragraph separators, and unassigned code points. Letters of all scripts, emoji and spaces are kept.

    Args:
        text: any str.
        lines: keep line feeds and tabs, for text shown over several lines.
    """
    if text.isprintable():
        return text
    kept = _JOINERS + "\n\t" if lines else _JOINERS
    return "".join(c if c.isprintable() or c in kept or category(c) == "Zs" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def clip(text: str, most: int) -> str:
    """The first `most` characters and the number of the others, safe to print on one line."""
    if len(text) <= most:
        return safe(text)
    return f"{safe(text[:most])}... ({len(text) - most:,} more characters)"


def percentage(share: float) -> str:
    """A share with two decimals, or with more if it would read as zero: 0.25 is "25.00 %"."""
    if 0 < share < 1e-6:
        return "<0.0001 %"
    return f"{100 * share:.2f} %" if share >= 0.0005 or share == 0 else f"{100 * share:.2g} %"


def size(num_bytes: float) -> str:
    """A number of bytes in decimal units: 1_500_000 is "1.5 MB"."""
    if num_bytes < 1000:
        return f"{num_bytes} byte{'s' if num_bytes != 1 else ''}"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 999.5:  # a larger number would print as 1000
            return f"{num_bytes:.3g} {unit}"
    return f"{num_bytes / 1000:,.3g} TB" if num_bytes < 999_500 else f"{num_bytes / 1000:,.0f} TB"


def short(value: float, digits: int = 0) -> str:
    """A number for an axis: 0.5 (with `digits` decimals), 2,000, 20 k, 1.5 M, 2e-06."""
    if 0 < abs(value) < 1e-4:
        return f"{value:.2g}"
    if abs(value) < 10_000:
        return f"{value:,.{digits if value else 0}f}"
    power = min(int(log10(abs(value)) + 1e-9) // 3, 5)
    return f"{value / 1000**power:.4g} {' kMGTP'[power]}"


def span(first: int, stop: int | None) -> str:
    """The range [first, stop) as `first:stop`, as in --steps A:B and in Python slices; an open end is empty."""
    return f"{first:,}:" + ("" if stop is None else f"{stop:,}")


def html_table(title: str, rows: Iterable[Sequence[object]], has_head: bool = False) -> str:
    """A small table for a notebook: at most 200 characters of each cell, all of them text and none of them markup.

    Args:
        title: the first line, above the table.
        rows: the cells of each row. The first cell names the row.
        has_head: whether the first row names the columns.
    """
    from html import escape  # it loads the names of all characters, which only a notebook needs

    lines = [f"<div><p><strong>{escape(clip(title, _CELL))}</strong></p>", "<table>"]
    for number, row in enumerate(rows):
        names = len(row) if has_head and number == 0 else 1
        cells = (f"{cell:,}" if isinstance(cell, int) else clip(str(cell), _CELL) for cell in row)
        marks = ["th"] * names + ["td"] * (len(row) - names)
        cells = (f"<{mark}>{escape(cell)}</{mark}>" for mark, cell in zip(marks, cells, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></div>"])
