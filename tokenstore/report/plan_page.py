"""The HTML page of a plan: its charts and the colours of its sources."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenstore.report.charts import Chart, Ranges, line_chart
from tokenstore.report.page import render
from tokenstore.report.plan_report import PlanReport
from tokenstore.views.plan_curves import MixturePoint

LINES = 8  # sources with a line and a colour each, those with the most sequences; one line is for the others


def plan_page(report: PlanReport) -> str:
    """Render the report of a plan as HTML."""
    sources = sorted(report.plan.sources, key=lambda row: (-row.progress.sequences, row.name))
    colours = {row.name: min(number, LINES) for number, row in enumerate(sources)}
    return render(
        "plan.html",
        report=report,
        plan=report.plan,
        config=json.dumps(report.config, indent=2, ensure_ascii=False),  # YAML reads the escapes that page.render adds
        sources=sources,
        colours=colours,
        stages=[(stage, _shares(stage.weights, colours)) for stage in report.plan.stages],
        mixture=_mixture_chart(report.mixture, colours, report.plan.skip_steps),
        token_mixture=_tokens_chart(report.mixture, colours, report.plan.skip_steps),
        epochs=_epochs_chart(report.mixture, colours, report.plan.skip_steps),
    )


def _mixture_chart(points: Sequence[MixturePoint], colours: dict[str, int], skips: Ranges = ()) -> Chart:
    shares = _lines(points, colours, "shares", "{} others", sum)
    weights = _lines(points, colours, "weights", "{} others", sum)
    steps = [p.step for p in points]
    return line_chart(steps, shares, _and_others(colours, shares), weights, stairs=True, percent=True, skips=skips)


def _tokens_chart(points: Sequence[MixturePoint], colours: dict[str, int], skips: Ranges = ()) -> Chart:
    shares = _lines(points, colours, "token_shares", "{} others", sum)
    steps = [p.step for p in points]
    return line_chart(steps, shares, _and_others(colours, shares), stairs=True, percent=True, skips=skips)


def _epochs_chart(points: Sequence[MixturePoint], colours: dict[str, int], skips: Ranges = ()) -> Chart:
    epochs = _lines(points, colours, "epochs", "most repeated of {} others", max)
    return line_chart([p.step for p in points], epochs, _and_others(colours, epochs), skips=skips)


def _lines(
    points: Sequence[MixturePoint],
    colours: dict[str, int],
    field: str,
    label: str,
    together: Callable[[Iterable[float]], float],
) -> dict[str, list[float]]:
    """Values of a field over `points`: one row per coloured source, and one row for the others, combined by `together`."""
    others = [name for name, colour in colours.items() if colour == LINES]
    rows = {name: [getattr(p, field)[name] for p in points] for name in colours if colours[name] < LINES}
    if others:
        name = _named(others, label)
        while name in rows:
            name = f"({name})"
        rows[name] = [together(getattr(p, field)[each] for each in others) for p in points]
    return rows


def _shares(weights: Mapping[str, float], colours: dict[str, int]) -> list[tuple[str, int, float]]:
    """(name, colour, share) for each source with a share above 0; sources without a colour are added up."""
    alone = [(name, colours[name], share) for name, share in weights.items() if share > 0 and colours[name] < LINES]
    others = {name: share for name, share in weights.items() if share > 0 and colours[name] == LINES}
    return alone + ([(_named([*others], "{} others"), LINES, sum(others.values()))] if others else [])


def _named(others: Sequence[str], label: str) -> str:
    return others[0] if len(others) == 1 else label.format(f"{len(others):,}")


def _and_others(colours: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    return {name: colours.get(name, LINES) for name in names}
