"""The matrix as Markdown, printed and kept in docs/guides/trainer-matrix.md."""

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
    """Write rows into the page. Other rows stay as they are; a trainer that was never run says so."""
    known = {**kept(), **{row[0]: row for row in rows}}
    never = ["", *["not run"] * len(SCENARIOS)]
    merged = [known.get(trainer.title, [trainer.title, *never]) for trainer in TRAINERS]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(merged)}\n\n{END}{rest.partition(END)[2]}")
