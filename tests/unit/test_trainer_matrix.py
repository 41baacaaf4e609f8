"""The page of the matrix, and how its cells are decided."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tokenstore.examples.trainers import common
from tools.trainer_matrix import page
from tools.trainer_matrix.__main__ import summary_line
from tools.trainer_matrix.page import HEADER, PAGE, keep, kept, table
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


def test_rows_that_were_not_run_do_not_replace_kept_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text(PAGE.read_text())
    before = kept()
    skipped = ["nanoGPT", "", *["not run: needs a checkout of nanogpt"] * len(SCENARIOS)]
    wrong = ["JAX", "0.0.1", "no: exited with 1 (log: here)", *["yes"] * (len(SCENARIOS) - 1)]
    keep([skipped, wrong])
    after = kept()
    assert after["nanoGPT"] == before["nanoGPT"]
    assert after["JAX"][:4] == ["JAX", "0.0.1", "no: exited with 1", "yes"]


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["yes", "not run: no workers"], "    12  passed  JAX 1.2"),
        (["yes", "no: exited with 1"], "    12  failed  JAX 1.2: no: exited with 1"),
        (["not run: no environment"] * 2, "    12  not run JAX 1.2: not run: no environment"),
    ],
)
def test_a_row_with_one_wrong_run_is_summarized_as_failed(cells: list[str], line: str) -> None:
    assert summary_line(["JAX", "1.2", *cells], 12.3) == line


def test_an_example_ends_its_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is left to the end of the process can abort it, after everything was trained."""
    monkeypatch.setattr(common, "Plan", str)
    monkeypatch.setattr(sys, "argv", ["example", str(tmp_path), str(tmp_path / "run")])
    monkeypatch.chdir(tmp_path)

    def train(options: Any) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    common.main(None, train)
    assert not dist.is_initialized()
