"""Output of the commands: the terminal, tables, bars, coloured tokens, JSON.

Text from a store is made safe for a terminal here and is never read as markup. Piped output has no colours and no bars, and
its width does not depend on a terminal.
"""

import io
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenstore.errors import ConfigError
from tokenstore.store import Origin
from tokenstore.text import clip, safe, span
from tokenstore.views.documents import Segment

_FOLDED = 20  # columns kept free for a cell that wraps
PIPED_WIDTH = 200
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def screen() -> Console:
    """Standard output without markup. Characters that its encoding lacks are printed as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = shutil.get_terminal_size((PIPED_WIDTH, 0)).columns
    return console


def write_json(value: Any) -> None:
    """Print one JSON object on one line, in ASCII. A dataclass becomes an object with its fields, a path a string."""
    try:
        sys.stdout.write(json.dumps(_plain(value), default=str) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        Console().on_broken_pipe()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def parse_range(text: str | None, what: str) -> range | None:
    """`A:B` as a range; None for None. Raises: ConfigError: another form, or an empty range."""
    if text is None:
        return None
    first, colon, last = text.replace("_", "").replace(",", "").partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise ConfigError(f"{what}: expected A:B, the range from A to B - 1, found {text!a}")
    return range(int(first), int(last))


def colour(number: int) -> str:
    """The colour of source `number`."""
    return _COLOURS[number % len(_COLOURS)]


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A bar that is `width` columns wide at share 1. A share above 0 is always visible."""
    eighths = min(max(round(share * width * 8), 1 if share > 0 else 0), width * 8)
    if ascii_only:
        return "#" * -(-eighths // 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def table(
    console: Console,
    rows: Iterable[Iterable[str | Text]],
    *titles: str,
    right: Iterable[int] = (),
    folds: int | None = None,
) -> None:
    """Print a table of safe cells. If it is too wide, print each row as lines of `title value` instead.

    Args:
        console: where to print.
        rows: the cells, one per title.
        titles: the column headers.
        right: numbers of the right-aligned columns.
        folds: number of the column that may wrap.
    """
    cells = [tuple(row) for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(titles, *cells, strict=True)]
    needed = sum(width + 2 for i, width in enumerate(widths) if i != folds) + (0 if folds is None else _FOLDED)
    if needed > console.width:
        for row in cells:
            facts(console, zip(titles, row, strict=True))
            console.print()
        return
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, title in enumerate(titles):
        side: Literal["left", "right"] = "right" if i in right else "left"
        made.add_column(title, justify=side, overflow="fold", no_wrap=i != folds)
    for row in cells:
        made.add_row(*row)
    console.print(made)


def cell_width(cell: str | Text) -> int:
    """Width of a cell in terminal columns, without wrapping."""
    return max(map(cell_len, str(cell).split("\n")), default=0)


def facts(console: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print `name value` lines. A long value wraps; names wrap if they would take more than half of the width."""
    lines = list(rows)
    fit = all(2 * cell_width(name) <= console.width for name, _ in lines)
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=fit, overflow="fold", max_width=None if fit else console.width // 2)
    made.add_column(overflow="fold")
    for name, value in lines:
        made.add_row(name, value)
    console.print(made)


def fact_lines(rows: Iterable[tuple[str, str]]) -> None:
    """Print `name value` lines on standard output. Unlike those of `facts`, a long path stays on one line, to be copied."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, value in rows:
        console.print(safe(f"{name:<13}{value}"))


def print_note(text: str) -> None:
    """Print a note on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(f"note: {safe(text)}")


def heading(console: Console, text: str) -> None:
    """Print the heading of a section."""
    console.print()
    console.print(Text(text, "bold underline"))


def tokens_text(console: Console, segments: Iterable[Segment], style: str = "", borders: bool = True) -> Text:
    """Tokens as text. With `borders`, alternate tokens have another colour. Tokens that are not in the loss are dim."""
    text = Text()
    other = "cyan" if console.color_system and not console.no_color else "underline"
    for number, segment in enumerate(segments):
        styles = [style, other if borders and number % 2 else "", "" if any(segment.in_loss) else "dim italic"]
        text.append(safe(segment.text, lines=True), " ".join(filter(None, styles)))
    return text


def token_rows(console: Console, segments: Iterable[Segment]) -> None:
    """Print a table of tokens: number, ids, text, and whether they are in the loss."""
    rows = (
        (f"{s.start}", " ".join(map(str, s.token_ids)), _quoted(s.text) + ("" if all(s.in_loss) else " masked"))
        for s in segments
    )
    table(console, rows, "token", "id", "text", right=(0, 1), folds=2)


def _quoted(text: str) -> str:
    return f"'{clip(text, 200)}'"


def masked_runs(segments: Iterable[Segment], most: int = 8) -> str:
    """The tokens that are not in the loss, as `0:12, 40:57`, for output without dim text; empty if all are."""
    runs: list[list[int]] = []
    for segment in segments:
        for place, in_loss in enumerate(segment.in_loss, segment.start):
            if not in_loss and runs and runs[-1][1] == place:
                runs[-1][1] = place + 1
            elif not in_loss:
                runs.append([place, place + 1])
    return listed([span(start, stop) for start, stop in runs], most)


def listed(items: Sequence[object], most: int = 24, count: int | None = None) -> str:
    """The first `most` items, separated by commas, and the number of the others; `count` items in all."""
    more = (len(items) if count is None else count) - most
    return ", ".join(map(str, items[:most])) + (f" and {more:,} more" if more > 0 else "")


def value_text(value: object) -> str:
    """A value of metadata on one line."""
    return (
        "none"
        if value is None
        else clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 200)
    )


def origin_text(origin: Origin | None) -> str:
    """`file:record`; empty if the origin is not known."""
    return "" if origin is None else f"{clip(origin.file, 300)}:{origin.record}"
