"""The sources of a plan that read their store in blocks, as `tokenstore plan` prints them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from tokenstore.commands.screen import heading, table
from tokenstore.text import clip, size

if TYPE_CHECKING:  # imports numba
    from tokenstore.views.plan_locality import LocalityRow


def show_locality(console: Console, rows: "Sequence[LocalityRow]") -> None:
    """Print a row per source with a locality."""
    if not rows:
        return
    heading(console, "Locality")
    cells = (
        (
            clip(row.source, 60),
            f"{row.block_sequences:,} sequences",
            size(row.block_bytes),
            f"{row.num_blocks:,}",
            f"{row.lanes:,}",
            f"{row.sequences_per_step:,} sequences",
        )
        for row in rows
    )
    titles = ("source", "block", "in bytes", "blocks", "lanes", "in a step")
    table(console, cells, *titles, right=range(1, 6))
