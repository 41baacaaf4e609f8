"""How the tokens of a plan over stores at URLs travel, as `tokenstore plan` prints it."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import heading, table
from tokenstore.text import clip, safe, size

if TYPE_CHECKING:  # imports numba
    from tokenstore.views.plan_transport import Transport


def show_transport(console: Console, transport: "Transport") -> None:
    """Print a row per store, and the totals."""
    heading(console, "Stores at URLs")
    rows = (
        (
            clip(row.source, 60),
            safe(row.url),
            row.transport,
            f"{row.requests:,}",
            size(row.num_bytes),
            size(row.cache_bytes),
        )
        for row in transport.rows
    )
    titles = ("source", "store", "transport", "requests", "bytes", "cache needed")
    table(console, rows, *titles, right=range(3, 6), folds=1)
    for row in transport.rows:
        if row.why_no_mirror:
            console.print(f"{clip(row.source, 60)}: nothing is kept, because {row.why_no_mirror}", soft_wrap=True)
    if transport.problem:
        console.print(Text.assemble(("warning: ", "bold yellow"), transport.problem), soft_wrap=True)
    total = f"about {transport.requests:,} requests for {size(transport.num_bytes)}, ${transport.price:,.2f}"
    console.print(f"{total} at ${transport.request_price:g} per 1,000 requests", soft_wrap=True)
    if transport.requests_per_second is not None:
        speed = f"at {transport.tokens_per_second:,.0f} tokens per second"
        rates = f"{transport.requests_per_second:,.1f} requests and {size(round(transport.bytes_per_second or 0))} per second"
        console.print(f"{speed}: {rates}, ${transport.price_per_hour:,.4f} per hour", soft_wrap=True)
