"""Numbers -> the lines and ticks of a chart, in parts of its width and height. The template draws, CSS colours.

A chart is an SVG that is stretched to any width, with its labels beside it as text, so that they stay readable on a phone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from tokenstore.views.numbers import percentage, short
from tokenstore.views.text import safe

SIZE = 1000  # of the square a chart is drawn in, before it is stretched
_LABEL = 7.0  # percent of a chart's height that the name of a line needs
_NARROWEST = 2  # of a mark, in parts of SIZE

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
        name, colour: of the line; the number of the colour.
        path, target: what is and, dashed, what it should be ("" without).
        label: height of its name beside the end of the line, in percent from the bottom; names do not overlap.
    """

    name: str
    colour: int
    path: str
    target: str
    label: float


@dataclass(frozen=True)
class Mark:
    """Skipped steps: where they begin, and how wide they are, in parts of SIZE."""

    left: int
    width: int


@dataclass(frozen=True)
class Chart:
    """A chart of lines over steps.

    Attributes:
        lines: in order.
        x_ticks, y_ticks: from zero up.
        skipped: marks of the steps that no rank is given.
        points: what a reader is told at each place: {"steps", "names", "values", "targets"}; values[line][point] as text,
            all of it safe.
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
    """A chart of `values` at `steps`, both axes beginning at zero.

    Args:
        steps: rising, the first above 0.
        values: by name, one for each step, at least 0.
        colours: by name.
        targets: the same names, dashed.
        stairs: a value holds since the step before; else lines begin at the origin.
        percent: values are shares, shown as percentages.
        skips: [start, stop) ranges of steps to mark.
    """
    asked = targets or {}
    top = max((value for row in [*values.values(), *asked.values()] for value in row), default=0.0) or 1.0
    height = min(1.05 * top, 1.0) if percent else 1.05 * top

    def told(row: Sequence[float]) -> list[str]:
        return [percentage(value) if percent else _number(value) for value in row]

    def path(row: Sequence[float]) -> str:
        return _path(steps, [value / height for value in row], stairs)

    labels = label_places([100 * row[-1] / height for row in values.values()])
    return Chart(
        lines=tuple(
            Line(name, colours[name], path(row), path(asked[name]) if asked else "", label)
            for (name, row), label in zip(values.items(), labels, strict=True)
        ),
        x_ticks=ticks(steps[-1], whole=True),
        y_ticks=ticks(height, percent=percent),
        skipped=tuple(_mark(start, min(stop, steps[-1]), steps[-1]) for start, stop in skips if start < steps[-1]),
        points={
            "steps": list(steps),
            "names": [safe(name) for name in values],
            "values": [told(row) for row in values.values()],
            "targets": [told(row) for row in asked.values()],
        },
    )


def _mark(start: int, stop: int, last: int) -> Mark:
    left = min(round(SIZE * start / last), SIZE - _NARROWEST)
    return Mark(left, max(round(SIZE * stop / last) - left, _NARROWEST))


def label_places(ends: Sequence[float]) -> list[float]:
    """Heights of labels as near to `ends` (percent) as they can be without overlapping; at most 100 / _LABEL of them fit."""
    order = sorted(range(len(ends)), key=lambda i: (ends[i], -i))
    places = list(ends)
    low = 0.0
    for i in order:  # up from the bottom, each above the one before
        places[i] = low = max(ends[i], low)
        low += _LABEL
    high = 100.0
    for i in reversed(order):  # and down again, where they would leave the chart
        places[i] = high = min(places[i], high)
        high -= _LABEL
    return places


def _number(value: float) -> str:
    return f"{value:,.3f}" if value >= 0.01 or value == 0 else f"{value:.2g}"


def _path(steps: Sequence[int], shares: Sequence[float], stairs: bool) -> str:
    """A path through (step, share of the height), in whole units, without points that change nothing."""
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
    """About `wanted` round numbers, whole ones if told so, from 0 to at most `most`, which is at 100 %."""
    rough = max(most / wanted, 1) if whole else most / wanted
    scale = 10.0 ** floor(log10(rough))
    step = next(nice * scale for nice in (1, 2, 5, 10) if nice * scale >= rough * (1 - 1e-9))
    numbers = [step * i for i in range(floor(most / step + 1e-9) + 1)]
    digits = max(0, -floor(log10(step) + 1e-9))
    texts = [f"{100 * n:.{max(digits - 2, 0)}f} %" if percent else short(n, digits) for n in numbers]
    return tuple(Tick(100 * number / most, text) for number, text in zip(numbers, texts, strict=True))
