"""What a page of a plan shows: what it gives of every source, when, how full its sequences are, some of them by tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokenstore.planning.plan import Plan
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import excerpt_of
from tokenstore.views.lengths import Lengths, summarize_lengths
from tokenstore.views.plan_curves import MixturePoint, mixture_over_steps
from tokenstore.views.plan_split import PlanSplit, split_plan
from tokenstore.views.plan_summary import PlanSummary, summarize_plan
from tokenstore.views.trace import TracedPiece, TracedRow, TracedStep, trace_rows, trace_step

_POINTS = 10, 200  # of a chart, at least and at most
_SHARED = 64  # sequences between two of them from which shares can be told, if there are enough
_PIECES = 16  # of a sequence whose text is shown


@dataclass(frozen=True)
class StoreRow:
    """A store of the plan. `lengths` is None without a length index."""

    name: str
    path: str
    version: int
    digest: str
    num_tokens: int
    num_documents: int
    lengths: Lengths | None


@dataclass(frozen=True)
class SampledStep:
    """A step and some of its sequences; of each, the text of its first pieces only."""

    step: TracedStep
    rows: tuple[TracedRow, ...]


@dataclass(frozen=True)
class PlanReport:
    """What the page shows.

    Attributes:
        title: of the page; file: name of the plan's file, None for a plan made in Python.
        plan, split, mixture: as the views of these names have it.
        stores: of the plan, by name.
        samples: steps with some of their sequences.
        config: the plan with the versions of its stores. Its paths are the names of the stores' folders: where they are
            depends on the machine.
        no_text: why samples have no text; None where they have.
    """

    title: str
    file: str | None
    plan: PlanSummary
    split: PlanSplit
    mixture: tuple[MixturePoint, ...]
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
    """Look at steps [0, steps) of a plan.

    Args:
        plan: a plan.
        steps: left out: all, or the first 10,000 of an endless plan.
        sampled: steps to show sequences of; left out: the first, the middle and the last one that are not skipped.
        samples: how many sequences of each, at most all.
        max_tokens: how many of the first tokens of a piece to show.
        world_size, microbatch_size: how steps are given to ranks.
        warned: what making the plan warned of.
        title: of the page; omitted: the name of the file, or else the plan's fingerprint.
        file: name of the plan's file.

    Raises: ConfigError: steps, or a split, that the plan does not have.
    """
    summary = summarize_plan(plan, steps, warned)
    decoder = Decoder.of(next(iter(plan.stores.values())))
    if sampled is None:
        sampled = tuple(sorted(set(_first_middle_last(plan, summary.steps))))
    split = (world_size, microbatch_size)
    divided = split_plan(plan, *split)
    shown = tuple(
        SampledStep(trace_step(plan, step, *split), _rows(plan, decoder, step, split, samples, max_tokens))
        for step in (sampled if samples else ())
    )
    stores = tuple(
        StoreRow(name, str(s.path), s.version, s.digest, s.num_tokens, len(s), summarize_lengths(s))
        for name, s in plan.stores.items()
    )
    return PlanReport(
        title=title or file or f"Plan {summary.fingerprint[:12]}",
        file=file,
        plan=summary,
        split=divided,
        mixture=mixture_over_steps(plan, summary.steps, _num_points(summary.sequences)),
        stores=stores,
        samples=shown,
        config=_settled(plan),
        no_text=decoder.problem,
    )


def _num_points(sequences: int) -> int:
    fewest, most = _POINTS
    return min(max(sequences // _SHARED, fewest), most)


def _first_middle_last(plan: Plan, steps: int) -> Iterator[int]:
    """In place of a skipped step the next one that is not, or else the one before."""
    for step in (0, steps // 2, steps - 1):
        after = before = step
        for start, stop in plan.schedule.skip_steps:
            after = stop if start <= after < stop else after
        for start, stop in reversed(plan.schedule.skip_steps):
            before = start - 1 if start <= before < stop else before
        if after < steps or before >= 0:
            yield after if after < steps else before


def _settled(plan: Plan) -> dict[str, Any]:
    config = plan.config.as_json()
    for name, store in plan.stores.items():
        config["sources"][name].update(path=store.path.name, version=store.version)  # it may grow
    return config


def _rows(
    plan: Plan, decoder: Decoder, step: int, split: tuple[int, int | None], samples: int, max_tokens: int
) -> tuple[TracedRow, ...]:
    """The first sequence of each of `samples` even parts of a step, with the text of its first pieces."""
    size = plan.global_batch_size(step)
    samples = min(samples, size)
    numbers = [size * i // samples for i in range(samples)]
    rows = (next(trace_rows(plan, decoder, step, None, *split, row, max_tokens=0)) for row in numbers)
    return tuple(
        replace(
            row, pieces=(*(_read(plan, decoder, p, max_tokens) for p in row.pieces[:_PIECES]), *row.pieces[_PIECES:])
        )
        for row in rows
    )


def _read(plan: Plan, decoder: Decoder, piece: TracedPiece, max_tokens: int) -> TracedPiece:
    stop = min(piece.stop, piece.start + max_tokens)
    return replace(piece, excerpt=excerpt_of(plan.stores[piece.source], decoder, piece.document, piece.start, stop))
