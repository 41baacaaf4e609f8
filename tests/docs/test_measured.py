"""Tables of measurements on pages are those of the kept results."""

import json
from collections.abc import Mapping

from benches.run import RESULTS
from tests.support.processes.command_lines import ROOT


def lanes_row(claim: str, bars: Mapping[str, float]) -> str:
    """A row of the table in the guide to locality."""

    def both(what: str) -> str:
        return " / ".join(f"{value:.2f}" for name, value in bars.items() if name.startswith(what))

    near = bars["neighbours"]
    return (
        f"| {claim} | {both('variance')} | {near:.0f} | {both('50 steps')} |"
        if near >= 10
        else (f"| {claim} | {both('variance')} | {near:.2f} | {both('50 steps')} |")
    )


def test_the_table_of_orders_is_the_measured_one() -> None:
    """Replace the table in the page by this one after `python -m benches.run --only lanes --keep`."""
    rows = json.loads((RESULTS / "lanes.json").read_text())["rows"]
    table = "\n".join(lanes_row(row["claim"], row["bars"]) for row in rows)
    assert table in (ROOT / "docs" / "guides" / "locality.md").read_text(), table
