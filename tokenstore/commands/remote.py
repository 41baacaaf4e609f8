"""What commands have in common for stores at URLs: the cache, and the progress of downloads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tokenstore.commands.progress_bar import Meter
from tokenstore.store import RemoteOptions
from tokenstore.store.remote import Location, is_url
from tokenstore.store.remote.downloads import reported
from tokenstore.text import safe

if TYPE_CHECKING:  # imports numba, half a second that --help need not wait for
    from tokenstore.planning.plan import Plan


@contextmanager
def remote_options(cache: Path | None, quiet: bool = False) -> Iterator[RemoteOptions | None]:
    """The options of --cache. In the block, downloads of more than ten seconds are shown as lines on standard error."""
    meters: dict[str, Meter] = {}
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)

    def show(url: str, done: int, total: int) -> None:
        shown = meters.setdefault(url, Meter(console, f"downloading {safe(url)}", None))
        shown.show(done, total, (done, "B"))

    with reported(show):
        yield None if cache is None else RemoteOptions(cache=cache)


def loaded_plan(
    path: Path, allow_links: Path | None, cache: Path | None, quiet: bool = False
) -> tuple["Plan", tuple[str, ...]]:
    """A plan and its warnings. The URLs of its stores are printed on standard error, because the file may be a stranger's."""
    from tokenstore.planning.config import PlanConfig
    from tokenstore.views.plan_summary import load_plan

    with remote_options(cache, quiet) as remote:
        for name, source in PlanConfig.load(path).sources.items():
            if is_url(source.path) and not quiet:
                Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(
                    f"source {safe(name)}: reading {safe(Location.of(source.path or '').url)}"
                )
        return load_plan(path, allow_links, remote)
