"""Run the benches and print their tables.

`python -m benches.page benches.html` writes the kept results as a page, with charts.
"""

import argparse
import json
import os
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

BENCHES = (
    "throughput",
    "loading",
    "cold",
    "plan",
    "packing",
    "balance",
    "quality",
    "lanes",
    "nodes",
    "lane_reads",
    "scale",
    "build",
    "cluster",
    "inputs",
    "adopt",
    "remote",
)
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
    """Run benches, print and optionally keep their rows. Returns 1 if one could not run."""
    parser = argparse.ArgumentParser(prog="python -m benches.run", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to check that the benches run")
    parser.add_argument("--only", choices=BENCHES, action="append", help="run only this bench; can be repeated")
    parser.add_argument("--keep", action="store_true", help="write the rows to benches/results/ and replace older ones")
    parser.add_argument(
        "--against", metavar="COMMIT", help="throughput: also measure the loaders of this commit, in the same rounds"
    )
    arguments = parser.parse_args()
    # An installed package has bytecode; without it, a process first compiles all modules
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = Console(markup=False)
    console.print(machine())
    status = 0
    for name in arguments.only or BENCHES:
        print(f"{name}: measuring", file=sys.stderr, flush=True)
        try:
            rows = measured(name, arguments.smoke, arguments.keep, arguments.against)
        except (
            CannotRun,
            ConfigError,
            ImportError,
        ) as error:  # no compiler, no free space, or an extra is not installed
            rows, status = [Row(name, "not run", "", str(error))], 1
        table = Table("claim", "measured", "target", "in the same run", title=name)
        for row in rows:
            table.add_row(row.claim, row.value, row.reach, "\n".join(filter(None, [row.beside, drawn(row)])))
        console.print(table)
    return status


def measured(name: str, smoke: bool, kept: bool, against: str | None = None) -> list[Row]:
    """Run a bench, and keep its rows if `kept`. against: a commit to compare with; only throughput supports it."""
    options = {"against": against} if against and name == "throughput" else {}
    with tempfile.TemporaryDirectory(prefix="tokenstore-bench-") as folder:
        rows = import_module(f"benches.bench_{name}").run(Path(folder), smoke, **options)
    if kept:
        keep(name, rows)
    return rows


def drawn(row: Row) -> str:
    """The bars of a row as text."""
    most = max(row.bars.values(), default=0) or 1
    return "\n".join(
        f"{name} {'█' * round(_BAR * value / most)} {show(value, row.unit)}" for name, value in row.bars.items()
    )


def keep(name: str, rows: list[Row]) -> None:
    """Write the rows of a bench and the machine to benches/results/."""
    RESULTS.mkdir(exist_ok=True)
    data = {"bench": name, "machine": machine(), "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
