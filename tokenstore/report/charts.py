"""Turns numbers into the lines and ticks of a chart. The template draws them; CSS colours them.

A chart is an SVG that stretches to any width. Its labels are text next to it, so that they stay readable on a phone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from tokenstore.text import percentage, safe, short

SIZE = 1000  # units per side of the square in which a chart is drawn before it is stretched
_LABEL = 7.0  # height of a line's name, in percent of the chart
_NARROWEST = 2  # least width of a mark, in units of SIZE

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Tick:
    """A label at a percentage of an axis, from the left or from the bottom."""

    percent: float
    text: str


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: name of the line.
        colour: number of its colour.
        path: SVG path of the actual values.
        target: SVG path of the target values, drawn dashed; "" if there are none.
        label: height of the name at the end of the line, in percent from the bottom. Names do not overlap.
    """

    name: str
    colour: int
    path: str
    target: str
    label: float


@dataclass(frozen=True)
class Mark:
    """A range of skipped steps: its left edge and its width, in units of SIZE."""

    left: int
    width: int


@dataclass(frozen=True)
class Chart:
    """A chart of lines over steps.

    Attributes:
        lines: the lines, in order.
        x_ticks: ticks of the step axis, from zero.
        y_ticks: ticks of the value axis, from zero.
        skipped: marks of skipped steps.
        points: the values that the script shows: {"steps", "names", "values", "targets"}; values[line][point] is safe text.
    """

    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    skipped: tuple[Mark, ...]
    points: dict[str, list[Any]]


def line_chart(
    steps: Sequence[int],
    values: Mapping[str, Sequence[float]],
    colours: Mapping[str, int],
    targets: Mapping[str, Sequence[float]] | None = None,
    stairs: bool = False,
    percent: bool = False,
    skips: Ranges = (),
) -> Chart:
    """A chart of `values` at `steps`. Both axes begin at zero.

    Args:
        steps: ascending, the first above 0.
        values: for each name, one value per step, at least 0.
        colours: number of the colour for each name.
        targets: target values for the same names, drawn dashed.
        stairs: a value applies since the previous step; otherwise lines begin at the origin.
        percent: values are shares, shown as percentages.
        skips: [start, stop) ranges of steps to mark.
    """
    wanted = targets or {}
    top = max((value for row in [*values.values(), *wanted.values()] for value in row), default=0.0) or 1.0
    height = min(1.05 * top, 1.0) if percent else 1.05 * top

    def texts(row: Sequence[float]) -> list[str]:
        return [percentage(value) if percent else _number(value) for value in row]

    def path(row: Sequence[float]) -> str:
        return _path(steps, [value / height for value in row], stairs)

    labels = label_places([100 * row[-1] / height for row in values.values()])
    return Chart(
        lines=tuple(
            Line(name, colours[name], path(row), path(wanted[name]) if wanted else "", label)
            for (name, row), label in zip(values.items(), labels, strict=True)
        ),
        x_ticks=ticks(steps[-1], whole=True),
        y_ticks=ticks(height, percent=percent),
        skipped=tuple(_mark(start, min(stop, steps[-1]), steps[-1]) for start, stop in skips if start < steps[-1]),
        points={
            "steps": list(steps),
            "names": [safe(name) for name in values],
            "values": [texts(row) for row in values.values()],
            "targets": [texts(row) for row in wanted.values()],
        },
    )


def _mark(start: int, stop: int, last: int) -> Mark:
    left = min(round(SIZE * start / last), SIZE - _NARROWEST)
    return Mark(left, max(round(SIZE * stop / last) - left, _NARROWEST))


def label_places(ends: Sequence[float]) -> list[float]:
    """Heights for labels in percent, as near to `ends` as possible without overlap. At most 100 / _LABEL labels fit."""
    order = sorted(range(len(ends)), key=lambda i: (ends[i], -i))
    places = list(ends)
    low = 0.0
    for i in order:  # upwards: each label above the previous one
        places[i] = low = max(ends[i], low)
        low += _LABEL
    high = 100.0
    for i in reversed(order):  # downwards: move labels back that would leave the chart
        places[i] = high = min(places[i], high)
        high -= _LABEL
    return places


def _number(value: float) -> str:
    return f"{value:,.3f}" if value >= 0.01 or value == 0 else f"{value:.2g}"


def _path(steps: Sequence[int], shares: Sequence[float], stairs: bool) -> str:
    """An SVG path through (step, share of the height), in whole units. Redundant points are omitted."""
    xs = [round(SIZE * step / steps[-1]) for step in steps]
    ys = [SIZE - round(SIZE * share) for share in shares]
    if not stairs:
        return f"M0 {SIZE}L" + " ".join(f"{x} {y}" for x, y in zip(xs, ys, strict=True))
    drawn = f"M0 {ys[0]}"
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        drawn += f"V{y}" if i and y != ys[i - 1] else ""
        drawn += f"H{x}" if i + 1 == len(xs) or ys[i + 1] != y else ""
    return drawn


def ticks(most: float, wanted: int = 5, percent: bool = False, whole: bool = False) -> tuple[Tick, ...]:
    """Ticks at about `wanted` round numbers from 0 to at most `most`, which is at 100 %; only integers if `whole`."""
    rough = max(most / wanted, 1) if whole else most / wanted
    scale = 10.0 ** floor(log10(rough))
    step = next(nice * scale for nice in (1, 2, 5, 10) if nice * scale >= rough * (1 - 1e-9))
    numbers = [step * i for i in range(floor(most / step + 1e-9) + 1)]
    digits = max(0, -floor(log10(step) + 1e-9))
    texts = [f"{100 * n:.{max(digits - 2, 0)}f} %" if percent else short(n, digits) for n in numbers]
    return tuple(Tick(100 * number / most, text) for number, text in zip(numbers, texts, strict=True))
