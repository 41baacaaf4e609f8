"""What the commands that show things share: the terminal, tables, bars, tokens in colours, JSON.

Whatever comes from a store is made safe for a terminal here, and never read as markup. What is piped has no colours, no
fixed width and no bars that depend on one.
"""

import io
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenstore.errors import ConfigError
from tokenstore.store import Origin
from tokenstore.views import numbers
from tokenstore.views.documents import Segment
from tokenstore.views.text import clip, safe

_FOLDED = 20  # columns left for a cell that goes on below itself
PIPED_WIDTH = 200
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def screen() -> Console:
    """Standard output, on which nothing is markup; what its encoding lacks is written as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = shutil.get_terminal_size((PIPED_WIDTH, 0)).columns
    return console


def write_json(value: Any) -> None:
    """One JSON object on a line, ASCII; a dataclass is its fields, a path a string."""
    try:
        sys.stdout.write(json.dumps(_plain(value), default=str) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # as rich does it for a reader that has seen enough
        Console().on_broken_pipe()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def span(text: str | None, what: str) -> range | None:
    """`A:B` as a range; None for None."""
    if text is None:
        return None
    first, colon, last = text.replace("_", "").replace(",", "").partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise ConfigError(f"{what}: expected A:B, from A up to but without B, found {text!a}")
    return range(int(first), int(last))


def colour(number: int) -> str:
    """Of a source."""
    return _COLOURS[number % len(_COLOURS)]


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A bar of `width` columns at share 1; a share above 0 is never invisible."""
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
    """Print a table of safe cells; where it is too wide, every row as lines of `title value`.

    right: columns whose cells stand at the right. folds: the column whose cells may go on below themselves.
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
    """Columns of a cell that is not folded."""
    return max(map(cell_len, str(cell).split("\n")), default=0)


def facts(console: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print `name value` lines; a value that is too long goes on below itself."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    console.print(made)


def heading(console: Console, text: str) -> None:
    """A line that begins a part."""
    console.print()
    console.print(Text(text, "bold underline"))


def tokens_text(console: Console, segments: Iterable[Segment], style: str = "", borders: bool = True) -> Text:
    """Tokens as text: with `borders` every other one in another colour; those that are not in the loss dim."""
    text = Text()
    other = "cyan" if console.color_system and not console.no_color else "underline"
    for number, segment in enumerate(segments):
        styles = [style, other if borders and number % 2 else "", "" if any(segment.in_loss) else "dim italic"]
        text.append(safe(segment.text, lines=True), " ".join(filter(None, styles)))
    return text


def token_rows(console: Console, segments: Iterable[Segment]) -> None:
    """Print a table of tokens: their places, ids, texts, and whether they are in the loss."""
    rows = (
        (f"{s.start}", " ".join(map(str, s.ids)), _quoted(s.text) + ("" if all(s.in_loss) else " masked"))
        for s in segments
    )
    table(console, rows, "token", "id", "text", right=(0, 1), folds=2)


def _quoted(text: str) -> str:
    return f"'{clip(text, 200)}'"


def masked_runs(segments: Iterable[Segment], most: int = 8) -> str:
    """Where tokens are not trained on, as `0:12, 40:57`, for readers who see no dim text; empty where all are."""
    runs: list[list[int]] = []
    for segment in segments:
        for place, in_loss in enumerate(segment.in_loss, segment.start):
            if not in_loss and runs and runs[-1][1] == place:
                runs[-1][1] = place + 1
            elif not in_loss:
                runs.append([place, place + 1])
    listed = ", ".join(numbers.span(start, stop) for start, stop in runs[:most])
    return listed + (f" and {len(runs) - most:,} more" if len(runs) > most else "")


def origin_text(origin: Origin | None) -> str:
    """`file:record`, empty where it is not known."""
    return "" if origin is None else f"{clip(origin.file, 300)}:{origin.record}"
