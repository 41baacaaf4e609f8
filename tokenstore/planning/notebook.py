"""A plan as a notebook shows it. Only numbers that opening the plan computed are used, so nothing is read from the disk."""

from collections.abc import Iterator

from tokenstore.batches.sources import Source
from tokenstore.planning.timeline import Timeline
from tokenstore.text import html_table

_MOST_ROWS = 20


def plan_html(plan: Timeline) -> str:
    """An HTML table of a plan's sources: where they are, their shares, and how much of each the run uses."""
    config, schedule = plan.config, plan.schedule
    num_steps = "endless" if plan.num_steps is None else f"{plan.num_steps:,} steps"
    parts = [
        f"Plan: {num_steps} of {plan.global_batch_size(0):,} sequences of {config.sequence_length:,} tokens",
        f"packing {config.packing}",
        f"seed {config.seed}",
    ]
    if len(schedule.stages) > 1:
        parts.append(f"{len(schedule.stages)} stages")
    if schedule.skip_steps:
        parts.append(f"{schedule.num_skipped(plan.last_start):,} steps skipped")
    return html_table(", ".join(parts), _rows(plan), has_head=True)


def _rows(plan: Timeline) -> Iterator[tuple[object, ...]]:
    finite = plan.num_steps is not None
    counts = plan.schedule.counts(plan.schedule.cursor(plan.last_start)) if finite else {}
    shares = plan.schedule.stage(0).shares
    total = sum(shares.values())
    yield ("source", "stores", "share at step 0", "sequences per epoch", *(("in the run", "epochs") if finite else ()))
    for source in plan.sources[:_MOST_ROWS]:
        used = counts.get(source.name, 0)
        of_run = (used, f"{used / source.num_sequences:.2f}") if finite else ()
        share = f"{100 * shares.get(source.name, 0) / total:.1f} %"
        yield source.name, _stores(plan, source), share, source.num_sequences, *of_run
    if (more := len(plan.sources) - _MOST_ROWS) > 0:
        yield (f"and {more:,} more", *[""] * (5 if finite else 3))


def _stores(plan: Timeline, source: Source) -> str:
    parts = []
    for member in source.members:
        config = plan.config.sources[member.name]
        part = str(config.locality) if config.locality else config.slice_text
        parts.append(member.store.place + (f" ({part})" if part else ""))
    return ", ".join(parts)
