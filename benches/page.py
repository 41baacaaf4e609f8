"""The results that are kept, as a page: `python -m benches.page [FILE]`. Costs by size are drawn, and chances beside even ones.

The page is one file that needs no network, as those of `tokenstore report` are.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches.run import BENCHES, RESULTS
from benches.scenes import Row, show
from tokenstore.report.charts import Chart, line_chart
from tokenstore.report.page import render_source

TEMPLATE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class Section:
    """The rows of a bench, on which machine they were measured, and claim and chart of every row with chances."""

    name: str
    machine: str
    rows: list[Row]
    charts: list[tuple[str, Chart]]


def kept(folder: Path = RESULTS) -> Iterator[Section]:
    """The results of every bench that has been kept, in the order in which they run."""
    for file in (folder / f"{name}.json" for name in BENCHES):
        if file.exists():
            result = json.loads(file.read_text())
            rows = [Row(**row) for row in result["rows"]]
            charts = [(row.claim, _chart(row.chances)) for row in rows if row.chances]
            yield Section(result["bench"], result["machine"], rows, charts)


def _chart(chances: Sequence[float]) -> Chart:
    """Sorted chances, and dashed where they would lie if they were quite even."""
    even = [(place + 1) / (len(chances) + 1) for place in range(len(chances))]
    places = range(1, len(chances) + 1)
    return line_chart(places, {"found": sorted(chances)}, {"found": 0}, {"found": even}, percent=True)


def page(sections: Iterable[Section]) -> str:
    """A section a bench: its table, and below it what is to be drawn."""
    return render_source(TEMPLATE.read_text(), sections=list(sections), show=show)


def main() -> None:
    """Parse the command line, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benches.page", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("benches.html"), help="default: %(default)s")
    file = parser.parse_args().file
    file.write_text(page(kept()))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
