"""Run the benches and print a table of each: `python -m benches.run [--smoke] [--only throughput] [--keep]`.

`python -m benches.page benches.html` makes a page of what was kept, with costs by size and chances drawn.
"""

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benches.scenes import CannotRun, Row, show
from tokenstore.errors import ConfigError

BENCHES = ("throughput", "loading", "cold", "plan", "packing", "quality", "scale", "build")
RESULTS = Path(__file__).parent / "results"
_BAR = 10  # characters


def machine() -> str:
    """Processor and library versions."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    libraries = ", ".join(f"{name} {version(name)}" for name in ("tokenstore", "torch", "numpy", "numba", "tokenizers"))
    return f"{len(names)} cores of {names[0] if names else platform.processor()}; Python {platform.python_version()}, {libraries}"


def main() -> int:
    """Parse the command line, run, print, keep; 1 where a bench could not be run."""
    parser = argparse.ArgumentParser(prog="python -m benches.run", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: do they run at all?")
    parser.add_argument("--only", choices=BENCHES, action="append", help="run these only")
    parser.add_argument("--keep", action="store_true", help="write rows to benches/results/, in place of older ones")
    parser.add_argument(
        "--against", metavar="COMMIT", help="throughput: also run this commit's loaders, in the same rounds"
    )
    arguments = parser.parse_args()
    console = Console(markup=False)
    console.print(machine())
    status = 0
    for name in arguments.only or BENCHES:
        print(f"{name}: measuring", file=sys.stderr, flush=True)
        try:
            rows = measured(name, arguments.smoke, arguments.keep, arguments.against)
        except (CannotRun, ConfigError, ImportError) as error:  # no compiler, no room; an extra that is not installed
            rows, status = [Row(name, "not run", "", str(error))], 1
        table = Table("claim", "measured", "to reach", "beside it", title=name)
        for row in rows:
            table.add_row(row.claim, row.value, row.reach, "\n".join(filter(None, [row.beside, drawn(row)])))
        console.print(table)
    return status


def measured(name: str, smoke: bool, kept: bool, against: str | None = None) -> list[Row]:
    """The rows of a bench, kept if asked for; `against`: a commit to compare with, where the bench can."""
    options = {"against": against} if against and name == "throughput" else {}
    with tempfile.TemporaryDirectory(prefix="tokenstore-bench-") as folder:
        rows = import_module(f"benches.bench_{name}").run(Path(folder), smoke, **options)
    if kept:
        keep(name, rows)
    return rows


def drawn(row: Row) -> str:
    """Each of the bars of a row, as text."""
    most = max(row.bars.values(), default=0) or 1
    return "\n".join(
        f"{name} {'█' * round(_BAR * value / most)} {show(value, row.unit)}" for name, value in row.bars.items()
    )


def keep(name: str, rows: list[Row]) -> None:
    """Write the rows of a bench, with where they were measured, beside those of the others."""
    RESULTS.mkdir(exist_ok=True)
    data = {"bench": name, "machine": machine(), "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
