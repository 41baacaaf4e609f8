"""The sources of a plan that read their store in blocks, as `tokenstore plan` prints them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import heading, table
from tokenstore.text import clip, size

if TYPE_CHECKING:  # imports numba
    from tokenstore.views.plan_locality import LocalityRow


def show_locality(console: Console, rows: "Sequence[LocalityRow]") -> None:
    """Print a row per source with a locality, what to look at, and what suits sources without one."""
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
            size(row.cache_bytes) if row.cache_bytes else "-",
        )
        for row in rows
        if row.lanes
    )
    titles = ("source", "block", "in bytes", "blocks", "lanes", "in a step", "cache per node")
    if any(row.lanes for row in rows):
        table(console, cells, *titles, right=range(1, 7))
    for row in rows:
        name = clip(row.source, 60)
        for text in row.warnings:
            console.print(Text.assemble(("warning: ", "bold yellow"), f"source {name}: {text}"), soft_wrap=True)
        if row.advice_text:
            console.print(f"source {name}: {row.advice_text}", soft_wrap=True)
