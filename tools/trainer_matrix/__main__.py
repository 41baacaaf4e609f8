"""Run the examples of the trainers, compare what they trained with the plan, and print the matrix.

    python -m tools.trainer_matrix hf lightning             # trainers that are installed in this environment
    python -m tools.trainer_matrix --environments ENVS --keep    # all, with the environments of .ci/trainers

`.ci/trainers` makes the environments and calls this. `--keep` writes the matrix into docs/guides/trainer-matrix.md.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.trainer_matrix.page import keep, table
from tools.trainer_matrix.scenarios import Data, Runner, python_of
from tools.trainer_matrix.trainers import SCENARIOS, TRAINERS, Trainer


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [trainer.example for trainer in TRAINERS]
    parser.add_argument("trainers", nargs="*", metavar="TRAINER", help=f"some of {', '.join(names)} (default: all)")
    parser.add_argument("--environments", type=Path, help="folder of the environments that .ci/trainers made")
    parser.add_argument(
        "--checkout", action="append", default=[], metavar="NAME=FOLDER", help="code of a trainer that is no package"
    )
    parser.add_argument(
        "--work", type=Path, help="new folder for checkpoints, journals and logs (default: a temporary one)"
    )
    parser.add_argument("--list", action="store_true", help="print the environments that the trainers need, and stop")
    parser.add_argument("--keep", action="store_true", help="write the rows into docs/guides/trainer-matrix.md")
    parser.add_argument("--summary", type=Path, help="append the seconds and the result of each trainer to this file")
    given = parser.parse_args()
    if unknown := set(given.trainers) - set(names):
        parser.error(f"unknown trainers {sorted(unknown)}; expected some of {names}")
    checkouts = {name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in given.checkout)}
    chosen = [each for each in TRAINERS if not given.trainers or each.example in given.trainers]
    if given.list:
        print(*sorted({each.environment for each in chosen} - {"base"}))
        return
    work = given.work or Path(tempfile.mkdtemp(prefix="tokenstore-trainers-"))
    rows = []
    for trainer in chosen:
        start = time.perf_counter()
        rows.append(_row(trainer, given.environments, checkouts, work.resolve()))
        if given.summary:
            with given.summary.open("a") as file:
                print(summary_line(rows[-1], time.perf_counter() - start), file=file)
    print(table(rows))
    if given.keep:
        keep(rows)
    if any(result(row) == "failed" for row in rows):
        sys.exit(f"some runs were wrong; their logs are in {work}")


def _row(trainer: Trainer, environments: Path | None, checkouts: dict[str, Path], work: Path) -> list[str]:
    """The row of a trainer: its name, its version, a cell per scenario."""
    python = python_of(environments, trainer.environment)
    if missing := [name for name in trainer.needs if name not in checkouts]:
        return [trainer.title, "", *[f"not run: needs a checkout of {missing[0]}"] * len(SCENARIOS)]
    if python is None:
        return [trainer.title, "", *["not run: no environment"] * len(SCENARIOS)]
    version = version_of(trainer, python, checkouts)
    if version is None:
        return [trainer.title, "", *["not run: not installed"] * len(SCENARIOS)]
    data = work / "data"
    if not data.exists():
        subprocess.run([sys.executable, "-m", "tokenstore.examples.data", data, "--steps", "6"], check=True)
    cells = []
    own = {name: checkouts[name] for name in trainer.needs}
    for scenario, cell in Runner(trainer, python, Data(data), work / trainer.folder, own).cells():
        print(f"{trainer.title}: {scenario}: {cell}", flush=True)
        cells.append(cell)
    return [trainer.title, version, *cells]


def result(row: list[str]) -> str:
    """Whether the runs of a row passed: "passed", "failed" or "not run"."""
    if any(cell.startswith("no:") for cell in row[2:]):
        return "failed"
    return "passed" if "yes" in row else "not run"


def summary_line(row: list[str], seconds: float) -> str:
    """A line of the summary of .ci/trainers: seconds, result, the trainer and what was wrong or not run."""
    wrong = {"failed": "no:", "not run": "not run:"}.get(result(row), "yes")
    first = next(cell for cell in row[2:] if cell.startswith(wrong))
    return f"{seconds:6.0f}  {result(row):7} {row[0]} {row[1]}".rstrip() + (f": {first}" if wrong != "yes" else "")


def version_of(trainer: Trainer, python: Path, checkouts: dict[str, Path]) -> str | None:
    """The version of a trainer's package, or the commit of its checkout; None if it is not installed."""
    if trainer.needs:
        folder = checkouts[trainer.needs[0]]
        found = subprocess.run(["git", "-C", folder, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True)
        commit = (folder / "COMMIT").read_text().strip()[:9] if (folder / "COMMIT").exists() else found.stdout.strip()
        return f"commit {commit or 'unknown'}"
    code = f"from importlib.metadata import version; print(version({trainer.package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


if __name__ == "__main__":
    main()
