"""The kept results as pages.

python -m benches.page [FILE]       one HTML file that needs no network; costs by size and p-values are drawn
python -m benches.page --markdown   benches/README.md; run it after `python -m benches.run --keep`

A file that is no page of these results is replaced only with --overwrite.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches.run import BENCHES, RESULTS
from benches.scenes import Row, show
from tokenstore.report.charts import Chart, line_chart
from tokenstore.report.page import BEGINS, render_source

TEMPLATE = Path(__file__).parent / "page.html"
README = Path(__file__).parent / "README.md"
INTRODUCTION = """# Benchmarks

This page is generated from the files in `results/`. Do not edit it: run `python -m benches.page --markdown`.

    python -m benches.run                            # all benches; takes a while
    python -m benches.run --only throughput --keep   # one of them; its rows are written to results/
    python -m benches.run --smoke                    # tiny sizes: do they run?

How to read the tables:

- Absolute times depend on the machine, and shared machines are noisy. So most rows are shares or ratios of two
  things measured in turn, in the same run. The value is the median; the range in parentheses is the spread.
- "The limit" is a loop in C that widens uint16 tokens to int64 in order. No loader can be faster.
- "Target" is the goal that was set before measuring. An empty cell means that there is none.
- "L" is the sequence length in tokens. A batch is 8 x 2048 tokens unless a row says otherwise.
- Other loaders run as their own documentation recommends (`peers.py`, versions in `requirements-peers.txt`), each in
  its own process, on the same tokens, shuffled, with everything in memory.

`LOG.md` says where the time goes, what was tried, and what did not help.
"""
# What marks a page that may be replaced
MARKDOWN_BEGINS = INTRODUCTION.partition("Do not edit")[0]
HTML_TITLE, MARK_WITHIN = "<title>tokenstore: benchmarks</title>", 4096


@dataclass(frozen=True)
class Section:
    """The rows of a bench, the machine they were measured on, and a chart for every row with p-values."""

    name: str
    machine: str
    rows: list[Row]
    charts: list[tuple[str, Chart]]


def kept(folder: Path = RESULTS) -> Iterator[Section]:
    """The kept results of every bench, in the order in which benches run."""
    for file in (folder / f"{name}.json" for name in BENCHES):
        if file.exists():
            result = json.loads(file.read_text())
            rows = [Row(**row) for row in result["rows"]]
            charts = [(row.claim, _chart(row.chances)) for row in rows if row.chances]
            yield Section(result["bench"], result["machine"], rows, charts)


def _chart(chances: Sequence[float]) -> Chart:
    """Sorted p-values, with a dashed line for a uniform distribution."""
    even = [(place + 1) / (len(chances) + 1) for place in range(len(chances))]
    places = range(1, len(chances) + 1)
    return line_chart(places, {"found": sorted(chances)}, {"found": 0}, {"found": even}, percent=True)


def page(sections: Iterable[Section]) -> str:
    """HTML: a section per bench with its table and its charts."""
    return render_source(TEMPLATE.read_text(), sections=list(sections), show=show)


def markdown(sections: Iterable[Section]) -> str:
    """The same tables as Markdown."""
    return "\n".join([INTRODUCTION, *map(_section_markdown, sections)])


def _section_markdown(section: Section) -> str:
    lines = [f"## {section.name.capitalize()}", "", f"Measured on {section.machine}.", ""]
    lines += ["| claim | measured | target | in the same run |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, _cells(row)))} |" for row in section.rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, str, str, str]:
    bars = "; ".join(f"{name}: {show(value, row.unit)}" for name, value in row.bars.items())
    return row.claim, row.value, row.reach.strip("-"), "; ".join(filter(None, [row.beside, bars]))


def _cell(text: str) -> str:
    """Text of a table's cell: no character of it is markup."""
    return re.sub(r"([|\\*_<>`])", r"\\\1", text)


def _is_page(file: Path) -> bool:
    """Whether a file is a page that this program wrote."""
    begin = file.read_bytes()[:MARK_WITHIN].decode(errors="replace")
    return begin.startswith(MARKDOWN_BEGINS) or (begin.startswith(BEGINS) and HTML_TITLE in begin)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="default: benches.html, or benches/README.md")
    parser.add_argument("--markdown", action="store_true", help="write Markdown instead of HTML")
    parser.add_argument("--overwrite", action="store_true", help="replace the file even if it is no such page")
    chosen = parser.parse_args(arguments)
    file = chosen.file or (README if chosen.markdown else Path("benches.html"))
    if file.exists() and not (chosen.overwrite or (file.is_file() and _is_page(file))):
        parser.error(f"{file} exists and is no page of benches; use --overwrite or choose another file")
    file.write_text(markdown(kept()) if chosen.markdown else page(kept()))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
