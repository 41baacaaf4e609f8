"""The matrix as Markdown, printed and kept in docs/guides/trainer-matrix.md.

    python -m tools.trainer_matrix.page OUTPUT...      # rows that earlier runs printed

Later outputs replace rows of earlier ones.
"""

import sys
from pathlib import Path

from tools.trainer_matrix.trainers import SCENARIOS, TRAINERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "trainer-matrix.md"
BEGIN, END = "<!-- matrix: python -m tools.trainer_matrix --keep -->", "<!-- end of matrix -->"
HEADER = ["trainer", "version", *SCENARIOS]


def table(rows: list[list[str]]) -> str:
    """The rows as a table."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def kept() -> dict[str, list[str]]:
    """The rows of the page, by the name of the trainer."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.strip().splitlines()[2:]]
    return {row[0]: row for row in rows}


def keep(rows: list[list[str]]) -> None:
    """Write rows into the page. Rows that were not run have no version and stay as they are; some were never run and say so."""
    run = {row[0]: [cell.partition(" (log:")[0] for cell in row] for row in rows if row[1]}
    known = {**kept(), **run}
    never = ["", *["not run"] * len(SCENARIOS)]
    merged = [known.get(trainer.title, [trainer.title, *never]) for trainer in TRAINERS]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(merged)}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Write rows that were printed before, read from files of output, into the page."""
    rows: dict[str, list[str]] = {}
    for file in sys.argv[1:]:
        lines = [line for line in Path(file).read_text().splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
        rows |= {row[0]: row for row in cells if row[0] in {trainer.title for trainer in TRAINERS}}
    keep(list(rows.values()))


if __name__ == "__main__":
    main()
