"""The page of the matrix, and how its cells are decided."""

import pytest

from tools.trainer_matrix.page import HEADER, PAGE, kept, table
from tools.trainer_matrix.scenarios import Wrong, _close, _same
from tools.trainer_matrix.trainers import SCENARIOS, TRAINERS


def test_the_page_has_a_row_for_every_trainer() -> None:
    """A trainer that was not run has cells that say so."""
    rows = kept()
    assert list(rows) == [trainer.title for trainer in TRAINERS]
    assert {len(row) for row in rows.values()} == {len(HEADER)}
    for row in rows.values():
        assert all(cell == "yes" or cell.startswith(("no: ", "not run")) for cell in row[2:]), row


def test_the_page_explains_every_column() -> None:
    text = PAGE.read_text()
    assert all(f"\n| {scenario} |" in text for scenario in SCENARIOS)


def test_a_difference_is_found() -> None:
    with pytest.raises(Wrong, match="the first difference is at 1"):
        _same([[1], [2]], [[1], [3]], "run")
    with pytest.raises(Wrong, match=r"reported 1\.1"):
        _close(1.1, 1.0, "loss")
    _close(1.00001, 1.0, "loss")
    assert table([["a"] * len(HEADER)]).count("\n") == 2
