"""Text that may hold anything -> text a terminal shows as it is: nothing moves the cursor, hides, or turns around."""

from unicodedata import category

_JOINERS = "\u200c\u200d"  # needed to write Persian, Hindi and many emoji; they move nothing


def safe(text: str, lines: bool = False) -> str:
    r"""`text` with everything a terminal might act on as a visible escape such as \x1b, \u202e, \ud800.

    Escaped are control, format (bidirectional overrides, zero widths, tags) and private characters, lone surrogates, line
    and paragraph separators, and code points that are no character. Letters of all scripts, emoji and spaces stay.

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
    """The first `most` characters, and how many more there are; fit to be shown in one line."""
    if len(text) <= most:
        return safe(text)
    return f"{safe(text[:most])}... ({len(text) - most:,} more characters)"
