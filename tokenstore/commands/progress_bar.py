"""Progress of a command: a bar on a terminal; plain lines, one every ten seconds, if standard error is redirected."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenstore.text import safe

_LINE_SECONDS = 10.0


class Meter:
    """Shows how much of some work is done, on standard error. Made by `meter`."""

    def __init__(self, console: Console, title: str, bar: Progress | None):
        self._console, self._title = console, title
        self._bar = (bar, bar.add_task(title, total=None, rates="")) if bar else None
        self._start = self._last = time.monotonic()
        self._first: tuple[int, ...] = ()
        self._first_done = -1  # of a resumed run: work done before it does not count for its speed

    def show(self, done: int, total: int, *amounts: tuple[int, str]) -> None:
        """Show progress and, for each (amount so far, unit), its rate per second."""
        now = time.monotonic()
        if self._first_done < 0:
            self._start, self._first, self._first_done = now, tuple(amount for amount, _ in amounts), done
        seconds = max(now - self._start, 1e-9)
        rates = ", ".join(
            f"{_short((amount - first) / seconds)}{unit}/s"
            for (amount, unit), first in zip(amounts, self._first, strict=True)
        )
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done, total=total, rates=rates)
        elif now - self._last >= _LINE_SECONDS:
            self._last = now
            parts = [f"{100 * done // max(total, 1)} %"]
            if done > self._first_done:  # before that, the speed is unknown
                parts += [rates, f"{_clock((total - done) * seconds / (done - self._first_done))} left"]
            self._console.print(f"{self._title}: {', '.join(parts)}")


@contextmanager
def meter(title: str, quiet: bool = False) -> Iterator[Meter]:
    """Show progress under a title while the block runs; nothing if `quiet`.

    Example:
        >>> with meter("verifying") as progress:
        ...     progress.show(10, 100, (10, "B"))
    """
    title = safe(title)
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    if not console.is_terminal or quiet:
        yield Meter(console, title, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[rates]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Meter(console, title, bar)


def _short(value: float) -> str:
    for unit in ("", " k", " M", " G"):
        if value < 1000:
            return f"{value:.3g}{unit}" if unit else f"{value:.0f}"
        value /= 1000
    return f"{value:.3g} T"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
