"""The content of a plan's page: its sources over time, packing, and some sequences token by token."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokenstore.planning.plan import Plan
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import excerpt_of
from tokenstore.views.lengths import Lengths, summarize_lengths
from tokenstore.views.plan_curves import MixturePoint, mixture_over_steps
from tokenstore.views.plan_locality import LocalityRow, localities_of
from tokenstore.views.plan_ranks import PlanRanks, ranks_of_plan
from tokenstore.views.plan_summary import PlanSummary, summarize_plan
from tokenstore.views.trace import TracedPiece, TracedRow, TracedStep, trace_rows, trace_step

_POINTS = 10, 200  # least and most points of a chart
_PER_POINT = 64  # sequences between two points, if the plan has enough: fewer give noisy shares
_PIECES = 16  # pieces per sequence whose text is shown


@dataclass(frozen=True)
class StoreRow:
    """A store of a plan.

    `lengths` is None without a length index. `slice` is the part that the plan uses, "" for all.
    """

    name: str
    path: str
    version: int
    digest: str
    num_tokens: int
    num_documents: int
    lengths: Lengths | None
    slice: str


@dataclass(frozen=True)
class SampledStep:
    """A step and some of its sequences, with the text of their first pieces."""

    step: TracedStep
    rows: tuple[TracedRow, ...]


@dataclass(frozen=True)
class PlanReport:
    """The content of a plan's page.

    Attributes:
        title: title of the page.
        file: name of the plan file; None for a plan made in Python.
        plan: summary of the plan.
        ranks: how its batches divide among ranks.
        mixture: shares and epochs over the steps.
        locality: sources that read their store in blocks, or should; the cache is that of a run on one node.
        stores: the stores of the plan, by name.
        samples: steps with some of their sequences.
        config: the plan with the versions of its stores. Its paths are only the names of the stores' folders, since their
            location depends on the machine.
        no_text: why the samples have no text; None if they have.
    """

    title: str
    file: str | None
    plan: PlanSummary
    ranks: PlanRanks
    mixture: tuple[MixturePoint, ...]
    locality: tuple[LocalityRow, ...]
    stores: tuple[StoreRow, ...]
    samples: tuple[SampledStep, ...]
    config: dict[str, Any]
    no_text: str | None


def plan_report(
    plan: Plan,
    steps: int | None = None,
    sampled: tuple[int, ...] | None = None,
    samples: int = 4,
    max_tokens: int = 64,
    world_size: int = 1,
    microbatch_size: int | None = None,
    warned: tuple[str, ...] = (),
    title: str | None = None,
    file: str | None = None,
) -> PlanReport:
    """Summarize steps [0, steps) of a plan and decode some sequences.

    Args:
        plan: a plan.
        steps: at least 1; default: all, or 10,000 of an endless plan.
        sampled: steps whose sequences are shown; default: the first, the middle and the last that are not skipped.
        samples: sequences per sampled step, at most all.
        max_tokens: tokens to show from the start of each piece.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; default: a rank's whole share of the step.
        warned: the warnings that `load_plan` returned.
        title: title of the page; default: the name of the file, or else the plan's fingerprint.
        file: name of the plan file.

    Raises: ConfigError: the plan does not have these steps, or the sizes do not divide a step evenly.

    Example:
        >>> Path("run.html").write_text(plan_page(plan_report(plan, title="Run 17")))
    """
    summary = summarize_plan(plan, steps, warned)
    decoder = Decoder.of(next(iter(plan.stores.values())))
    if sampled is None:
        sampled = tuple(sorted(set(_first_middle_last(plan, summary.steps))))
    sizes = (world_size, microbatch_size)
    ranks = ranks_of_plan(plan, *sizes)
    shown = tuple(
        SampledStep(trace_step(plan, step, *sizes), _rows(plan, decoder, step, sizes, samples, max_tokens))
        for step in (sampled if samples else ())
    )
    slices = {
        row.source: f"{row.slice}: {row.num_documents:,} documents, {row.num_tokens:,} tokens" for row in summary.slices
    }
    stores = tuple(
        StoreRow(
            *(name, s.place, s.version, s.digest, s.num_tokens, len(s), summarize_lengths(s)),
            slices.get(name, ""),
        )
        for name, s in plan.stores.items()
    )
    return PlanReport(
        title=title or file or f"Plan {summary.fingerprint[:12]}",
        file=file,
        plan=summary,
        ranks=ranks,
        mixture=mixture_over_steps(plan, summary.steps, _num_points(summary.sequences)),
        locality=localities_of(plan, summary.steps),
        stores=stores,
        samples=shown,
        config=_portable(plan),
        no_text=decoder.problem,
    )


def _num_points(sequences: int) -> int:
    fewest, most = _POINTS
    return min(max(sequences // _PER_POINT, fewest), most)


def _first_middle_last(plan: Plan, steps: int) -> Iterator[int]:
    """The first, the middle and the last step; for a skipped one the next step that is not, or else the previous one."""
    for step in (0, steps // 2, steps - 1):
        after = before = step
        for start, stop in plan.schedule.skip_steps:
            after = stop if start <= after < stop else after
        for start, stop in reversed(plan.schedule.skip_steps):
            before = start - 1 if start <= before < stop else before
        if after < steps or before >= 0:
            yield after if after < steps else before


def _portable(plan: Plan) -> dict[str, Any]:
    """The configuration with versions, and without the folders that the stores are in."""
    config = plan.config.as_json()
    for name, store in plan.stores.items():
        config["sources"][name].update(path=store.place.rpartition("/")[2], version=store.version)  # the store may grow
    return config


def _rows(
    plan: Plan, decoder: Decoder, step: int, sizes: tuple[int, int | None], samples: int, max_tokens: int
) -> tuple[TracedRow, ...]:
    """`samples` evenly spaced sequences of a step, with the text of their first pieces."""
    size = plan.global_batch_size(step)
    samples = min(samples, size)
    numbers = [size * i // samples for i in range(samples)]
    rows = (next(trace_rows(plan, decoder, step, None, *sizes, row, max_tokens=0)) for row in numbers)
    return tuple(
        replace(
            row, pieces=(*(_read(plan, decoder, p, max_tokens) for p in row.pieces[:_PIECES]), *row.pieces[_PIECES:])
        )
        for row in rows
    )


def _read(plan: Plan, decoder: Decoder, piece: TracedPiece, max_tokens: int) -> TracedPiece:
    stop = min(piece.stop, piece.start + max_tokens)
    return replace(piece, excerpt=excerpt_of(plan.stores[piece.source], decoder, piece.document, piece.start, stop))
