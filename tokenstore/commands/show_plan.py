"""A plan: what `tokenstore plan` prints."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import bar, colour, facts, heading, screen, table, write_json
from tokenstore.views.numbers import percentage, span
from tokenstore.views.plan_diff import PlanDifference, compare_plans
from tokenstore.views.plan_epochs import EpochSteps, steps_of_epochs
from tokenstore.views.plan_split import PlanSplit, split_plan
from tokenstore.views.plan_summary import PlanSummary, SourceRow, StageRow, load_plan, summarize_plan
from tokenstore.views.text import clip, safe

_MOST_DIVISORS = 24


def show_plan(
    path: Path,
    steps: int | None,
    world_size: int | None,
    microbatch_size: int | None,
    as_json: bool,
    allow_links: Path | None = None,
) -> None:
    """Print the summary of a plan, and what ranks are given of it."""
    plan, warned = load_plan(path, allow_links)
    summary = summarize_plan(plan, steps, warned)
    split = split_plan(plan, 1 if world_size is None else world_size, microbatch_size)
    if as_json:
        write_json({"plan": summary, "split": split})
        return
    _show_summary(screen(), summary)
    _show_split(screen(), split, asked=world_size is not None or microbatch_size is not None)


def show_epoch_steps(
    path: Path, epochs: Decimal, source: str | None, as_json: bool, allow_links: Path | None = None
) -> None:
    """Print how many steps so many epochs of a source, or of each, are."""
    plan, _ = load_plan(path, allow_links)
    names = [source] if source is not None else list(plan.num_sequences)
    answers = [steps_of_epochs(plan, name, epochs) for name in names]
    write_json({"epoch_steps": answers}) if as_json else _show_epoch_steps(screen(), answers)


def show_difference(first: Path, second: Path, as_json: bool, allow_links: Path | None = None) -> None:
    """Print from which step on two plans differ, and in what."""
    difference = compare_plans(load_plan(first, allow_links)[0], load_plan(second, allow_links)[0])
    write_json(difference) if as_json else _show_difference(screen(), difference, first, second)


# ---- the plan


def _show_summary(console: Console, summary: PlanSummary) -> None:
    facts(console, _facts(summary))
    heading(console, f"Sources after {summary.steps:,} steps")
    rows = (_source_cells(row, number) for number, row in enumerate(summary.sources))
    titles = ("source", "target", "actual", "of tokens", "sequences", "tokens", "epochs", "padding")
    table(console, rows, *titles, right=range(1, 8))
    _show_epochs(console, summary)
    _show_stages(console, summary)
    for text in summary.warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), safe(text)), soft_wrap=True)
    for text in summary.notes:
        console.print(Text.assemble(("note: ", "bold"), safe(text)), soft_wrap=True)


def _facts(summary: PlanSummary) -> Iterator[tuple[str, str]]:
    length = f"{summary.num_steps:,}" if summary.num_steps is not None else "endless"
    skipped = f", {summary.skipped_steps:,} of them skipped" if summary.skipped_steps else ""
    yield "steps", length + (f", {summary.steps:,} summarized" if summary.steps != summary.num_steps else "") + skipped
    yield "sequences", f"{summary.sequences:,} of {summary.sequence_length:,} tokens, packing {summary.packing}"
    exact = "" if all(row.tokens_exact for row in summary.sources) else "about "
    yield "tokens", f"{exact}{summary.tokens:,}; padding {percentage(summary.padding)}"
    yield "seed", f"{clip(str(summary.seed), 40)}" + ("" if summary.shuffle else ", shuffle off")
    yield "fingerprint", summary.fingerprint


def _source_cells(row: SourceRow, number: int) -> tuple[str | Text, ...]:
    return (
        Text(clip(row.name, 60), colour(number)),
        percentage(row.weight_target),
        percentage(row.weight_actual),
        percentage(row.token_share),
        f"{row.sequences:,}",
        ("" if row.tokens_exact else "~") + f"{row.tokens:,}",
        f"{row.epochs:,.3f}" + (f" of {row.max_epochs}" if row.max_epochs else ""),
        percentage(row.padding),
    )


def _show_epochs(console: Console, summary: PlanSummary) -> None:
    heading(console, "One epoch, and the steps in which each begins")
    rows = []
    for number, row in enumerate(summary.sources):
        steps = ", ".join(f"{start.step:,}" for start in row.epoch_starts)
        more = row.num_epoch_starts - len(row.epoch_starts)
        text = (steps or "never") + (f" and {more:,} more" if more > 0 else "")
        each = "-" if row.steps_per_epoch is None else f"{row.steps_per_epoch:,.1f}"
        rows.append((Text(clip(row.name, 60), colour(number)), f"{row.sequences_per_epoch:,}", each, text))
    table(console, rows, "source", "sequences", "steps", "begins in steps", right=(1, 2), folds=3)


def _show_stages(console: Console, summary: PlanSummary) -> None:
    heading(console, "Stages")
    colours = {row.name: colour(number) for number, row in enumerate(summary.sources)}
    width = max(10, min(console.width - 44, 60))
    ascii_only = console.options.ascii_only or not console.color_system
    rows = (
        (
            span(stage.first_step, stage.stop_step),
            f"{stage.global_batch_size:,}",
            _mixture(stage, colours, width, ascii_only),
        )
        for stage in summary.stages
    )
    table(console, rows, "steps", "batch", "mixture", right=(1,), folds=2)
    for dropped in summary.dropped:
        console.print(f"source {clip(dropped.source, 60)} runs out in step {dropped.step:,}", soft_wrap=True)
    if summary.skip_steps:
        ranges = ", ".join(span(start, stop) for start, stop in summary.skip_steps[:8])
        more = f" and {len(summary.skip_steps) - 8:,} more" if len(summary.skip_steps) > 8 else ""
        console.print(f"skipped: steps {ranges}{more}", soft_wrap=True)


def _mixture(stage: StageRow, colours: dict[str, str], width: int, ascii_only: bool) -> Text:
    """Shares as a bar of the sources' colours, where there are some, and as words below it."""
    words = ", ".join(f"{clip(name, 60)} {percentage(share)}" for name, share in stage.weights.items())
    if ascii_only:
        return Text(words)
    text = Text()
    for name, share in stage.weights.items():
        text.append(bar(share, width), colours[name])
    return text.append(f"\n{words}")


# ---- ranks


def _show_split(console: Console, split: PlanSplit, asked: bool) -> None:
    heading(console, "Ranks")
    console.print(
        "What a step holds does not depend on world size or microbatch size; they may change at any step.",
        soft_wrap=True,
    )
    for batch in split.batches if asked else ():
        size = f"a batch of {batch.global_batch_size:,} (from step {', '.join(f'{s:,}' for s in batch.from_steps[:8])})"
        of = f"{split.world_size:,} ranks"
        if batch.microbatches_per_step is not None:
            each = f"{batch.sequences_per_rank:,} sequences each, microbatches a step on a rank: {batch.microbatches_per_step:,}"
            console.print(f"{size} over {of}: {each}", soft_wrap=True)
        else:
            what = f"{of} x {split.microbatch_size or 1:,} sequences"
            console.print(Text.assemble(("warning: ", "bold yellow"), f"{size} does not divide by {what}"))
    told = f" with microbatches of {split.microbatch_size:,}" if split.microbatch_size else ""
    console.print(f"world sizes that divide every batch{told}: {_listed(split.world_sizes)}", soft_wrap=True)
    if asked:
        console.print(
            f"microbatch sizes for {split.world_size:,} ranks: {_listed(split.microbatch_sizes)}", soft_wrap=True
        )


def _listed(sizes: tuple[int, ...]) -> str:
    more = f" and {len(sizes) - _MOST_DIVISORS:,} more" if len(sizes) > _MOST_DIVISORS else ""
    return (", ".join(map(str, sizes[:_MOST_DIVISORS])) or "none") + more


# ---- other questions


def _show_epoch_steps(console: Console, answers: list[EpochSteps]) -> None:
    for row in answers:
        asked = f"{row.epochs:g} epochs of {clip(row.source, 60)}"
        if row.steps is not None:
            console.print(Text.assemble(f"{asked}: ", (f"{row.steps:,} steps", "bold")))
            continue
        end = f"this plan ends after {row.num_steps:,} steps with {row.epochs_at_end or 0:.3f} epochs of it"
        if row.num_steps is None:
            end = "this plan never gives so many"
        if row.steps_if_endless is not None:
            end += f"; without num_steps and max_epochs it would be {row.steps_if_endless:,} steps"
        console.print(f"{asked}: {end}", soft_wrap=True)


def _show_difference(console: Console, difference: PlanDifference, first: Path, second: Path) -> None:
    names = (safe(str(first)), safe(str(second)))
    if difference.same:
        console.print("the same plan: every step and the end are equal, fingerprint " + difference.fingerprints[0])
        return
    if difference.first_step is not None:
        console.print(Text.assemble("the plans differ from ", (f"step {difference.first_step:,}", "bold"), " on"))
    elif difference.common_steps is None:
        console.print("all steps are the same")
    else:
        ends = [
            f"{name} {'is endless' if n is None else f'has {n:,}'}"
            for name, n in zip(names, difference.num_steps, strict=True)
        ]
        console.print(f"the first {difference.common_steps:,} steps are the same; {', '.join(ends)}", soft_wrap=True)
    rows = [(safe(row.field), _value(row.first), _value(row.second)) for row in difference.fields]
    table(console, rows, "field", *names, folds=2)


def _value(value: object) -> str:
    return clip(json.dumps(value), 400)
