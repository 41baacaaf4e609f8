"""`tokenstore plan`, in a clone `python -m tools.inspect_plan`."""

import json
from collections.abc import Iterator
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console
from rich.text import Text

from tokenstore.commands.remote import loaded_plan
from tokenstore.commands.screen import bar, colour, facts, heading, listed, screen, table, write_json
from tokenstore.commands.show_locality import show_locality
from tokenstore.commands.show_transport import show_transport
from tokenstore.errors import ConfigError, counted
from tokenstore.order.rank_rows import check_nodes
from tokenstore.text import clip, percentage, safe, span

if TYPE_CHECKING:  # these import numba, half a second that --help need not wait for
    from tokenstore.views.plan_balance import PlanBalance
    from tokenstore.views.plan_diff import PlanDifference
    from tokenstore.views.plan_epochs import EpochSteps
    from tokenstore.views.plan_ranks import PlanRanks
    from tokenstore.views.plan_summary import PlanSummary, SourceRow, StageRow

_MOST_BATCHES = 12  # sizes of a batch that are listed
REMOTE = Group("Stores at URLs", sort_key=1)
QUESTION = Group("Other questions", sort_key=2)


def plan(
    plan: Path,
    /,
    *,
    steps: int | None = None,
    world_size: int | None = None,
    microbatch_size: int | None = None,
    nodes: int = 1,
    tokens_per_second: Annotated[float | None, Parameter(group=REMOTE)] = None,
    request_price: Annotated[float | None, Parameter(group=REMOTE)] = None,
    epochs: Annotated[Decimal | None, Parameter(group=QUESTION)] = None,
    source: Annotated[str | None, Parameter(group=QUESTION)] = None,
    diff: Annotated[Path | None, Parameter(group=QUESTION)] = None,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Summarize a plan: weights, sequences, tokens, epochs and padding per source, stages, and likely mistakes.

    The summary is computed from the plan: no step is replayed and no token is read, at any size.

    **Examples:**

    ```text
    tokenstore plan plan.yaml
    tokenstore plan plan.yaml --steps 10000 --world-size 64 --microbatch-size 8
    tokenstore plan plan.yaml --epochs 4 --source code
    tokenstore plan plan.yaml --tokens-per-second 1e6
    tokenstore plan plan.yaml --diff other.yaml
    ```

    Parameters
    ----------
    plan
        The plan file.
    steps
        Summarize steps [0, STEPS). Default: all; 10,000 for an endless plan.
    world_size
        Show how a step divides among this many data-parallel ranks, and how evenly its attention does, with and without
        `balance` in the plan.
    microbatch_size
        Show how many microbatches of this size a rank receives per step.
    nodes
        Number of nodes of the run, for the cache that sources with `locality` need on each of them. Default: 1.
    tokens_per_second
        Show the requests per second and their price at this speed of the whole run.
    request_price
        Price of 1,000 requests in US dollars. Default: 0.0004.
    epochs
        Show how many steps this many epochs take, for --source or for each source. 1.5 is one epoch and a half.
    source
        The source for --epochs. Default: each source.
    diff
        Show the first step at which another plan differs, and what differs.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print one JSON object. Its keys are the attributes of the dataclasses in tokenstore.views.
    """
    check_nodes(nodes)
    if epochs is not None and diff is not None:
        raise ConfigError("plan: --epochs and --diff cannot be combined; run the command once for each")
    if source is not None and epochs is None:
        raise ConfigError("plan: --source is only valid with --epochs; add --epochs or omit --source")
    for name, value in (("tokens-per-second", tokens_per_second), ("request-price", request_price)):
        if value is not None and not 0 <= value < inf:
            raise ConfigError(f"plan: --{name}: expected a finite number of 0 or more, found {value:g}")
    if diff is not None:
        show_difference(plan, diff, as_json, allow_links, cache)
        return 0
    loaded, warned = loaded_plan(plan, allow_links, cache, as_json)
    if epochs is not None:
        from tokenstore.views.plan_epochs import steps_of_epochs

        names = [source] if source is not None else list(loaded.num_sequences)
        rows = [steps_of_epochs(loaded, name, epochs) for name in names]
        write_json({"epoch_steps": rows}) if as_json else _show_epoch_steps(screen(), rows)
        return 0
    from tokenstore.views.plan_balance import balance_of_plan
    from tokenstore.views.plan_locality import localities_of
    from tokenstore.views.plan_ranks import ranks_of_plan
    from tokenstore.views.plan_summary import summarize_plan
    from tokenstore.views.plan_transport import REQUEST_PRICE, transport_of

    summary = summarize_plan(loaded, steps, warned)
    price = REQUEST_PRICE if request_price is None else request_price
    transport = transport_of(loaded, summary.steps, tokens_per_second, price, nodes)
    ranks = ranks_of_plan(loaded, 1 if world_size is None else world_size, microbatch_size)
    uneven = balance_of_plan(loaded, ranks.world_size, microbatch_size)
    local = localities_of(loaded, summary.steps, nodes)
    if as_json:
        write_json({"plan": summary, "ranks": ranks, "balance": uneven, "locality": local, "transport": transport})
    else:
        _show_summary(screen(), summary)
        _show_ranks(screen(), ranks, in_detail=world_size is not None or microbatch_size is not None)
        _show_balance(screen(), uneven, ranks.world_size)
        show_locality(screen(), local)
        if transport is not None:
            show_transport(screen(), transport)
    return 0


def show_difference(
    first: Path, second: Path, as_json: bool, allow_links: Path | None = None, cache: Path | None = None
) -> None:
    """Print the first step at which two plans differ, and what differs."""
    from tokenstore.views.plan_diff import compare_plans

    plans = [loaded_plan(path, allow_links, cache, as_json)[0] for path in (first, second)]
    difference = compare_plans(*plans)
    write_json(difference) if as_json else _show_difference(screen(), difference, first, second)


# ---- the plan


def _show_summary(console: Console, summary: "PlanSummary") -> None:
    facts(console, _facts(summary))
    heading(console, f"Sources after {summary.steps:,} steps")
    rows = (_source_cells(row, number) for number, row in enumerate(summary.sources))
    titles = ("source", "target", "actual", "token share", "sequences", "tokens", "epochs", "padding")
    table(console, rows, *titles, right=range(1, 8))
    _show_slices(console, summary)
    _show_epochs(console, summary)
    _show_stages(console, summary)
    for text in summary.warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), safe(text)), soft_wrap=True)
    for text in summary.notes:
        console.print(Text.assemble(("note: ", "bold"), safe(text)), soft_wrap=True)


def _facts(summary: "PlanSummary") -> Iterator[tuple[str, str]]:
    length = f"{summary.num_steps:,}" if summary.num_steps is not None else "endless"
    skipped = f", {summary.skipped_steps:,} of them skipped" if summary.skipped_steps else ""
    yield "steps", length + (f", {summary.steps:,} summarized" if summary.steps != summary.num_steps else "") + skipped
    config = summary.config
    options = (f", align {config.align}" if config.align else "") + (", balanced" if config.balance else "")
    yield "sequences", f"{summary.sequences:,} of {config.sequence_length:,} tokens, packing {config.packing}{options}"
    exact = "" if all(row.progress.tokens_exact for row in summary.sources) else "about "
    aligned = f", of which {percentage(summary.alignment)} from align: {config.align}" if config.align else ""
    yield "tokens", f"{exact}{summary.tokens:,}; padding {percentage(summary.padding)}{aligned}"
    yield "seed", f"{clip(str(config.seed), 40)}" + ("" if config.shuffle else ", shuffle off")
    yield "fingerprint", summary.fingerprint


def _source_cells(row: "SourceRow", number: int) -> tuple[str | Text, ...]:
    progress = row.progress
    return (
        Text(clip(row.name, 60), colour(number)),
        percentage(row.weight_target),
        percentage(progress.realised_weight),
        percentage(row.token_share),
        f"{progress.sequences:,}",
        ("" if progress.tokens_exact else "~") + f"{progress.tokens:,}",
        f"{progress.epochs:,.3f}" + (f" of {row.max_epochs}" if row.max_epochs else ""),
        percentage(progress.padding),
    )


def _show_slices(console: Console, summary: "PlanSummary") -> None:
    if not summary.slices:
        return
    heading(console, "Slices")
    colours = {row.name: colour(number) for number, row in enumerate(summary.sources)}
    rows = (
        (
            Text(clip(row.source, 60), colours.get(row.source, "")),
            row.slice,
            f"{row.num_documents:,} of {row.store_documents:,}",
            f"{row.num_tokens:,} of {row.store_tokens:,} ({percentage(row.num_tokens / row.store_tokens)})",
        )
        for row in summary.slices
    )
    table(console, rows, "source", "slice", "documents", "tokens", right=(2, 3), folds=1)


def _show_epochs(console: Console, summary: "PlanSummary") -> None:
    heading(console, "Epochs")
    rows = []
    for number, row in enumerate(summary.sources):
        progress, steps = row.progress, [f"{start.step:,}" for start in row.epoch_starts]
        starts = listed(steps, len(steps), row.num_epoch_starts) if steps else "never"
        each = "-" if progress.steps_per_epoch is None else f"{progress.steps_per_epoch:,.1f}"
        rows.append((Text(clip(row.name, 60), colour(number)), f"{progress.sequences_per_epoch:,}", each, starts))
    table(console, rows, "source", "sequences per epoch", "steps per epoch", "starts in steps", right=(1, 2), folds=3)


def _show_stages(console: Console, summary: "PlanSummary") -> None:
    heading(console, "Stages")
    colours = {row.name: colour(number) for number, row in enumerate(summary.sources)}
    width = max(10, min(console.width - 44, 60))
    ascii_only = console.options.ascii_only or not console.color_system
    rows = (
        (
            span(stage.first_step, stage.stop_step),
            _batch(stage),
            _mixture(stage, colours, width, ascii_only),
        )
        for stage in summary.stages
    )
    table(console, rows, "steps", "batch", "mixture", right=(1,), folds=2)
    for dropped in summary.dropped:
        console.print(f"source {clip(dropped.source, 60)} runs out at step {dropped.step:,}", soft_wrap=True)
    if summary.skip_steps:
        ranges = [span(start, stop) for start, stop in summary.skip_steps]
        console.print(f"skipped: steps {listed(ranges, 8)}", soft_wrap=True)


def _batch(stage: "StageRow") -> str:
    first, last = stage.global_batch_size, stage.last_global_batch_size
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _mixture(stage: "StageRow", colours: dict[str, str], width: int, ascii_only: bool) -> Text:
    """Shares in words, and above them as a bar in the colours of the sources if the terminal has colours."""
    words = ", ".join(f"{clip(name, 60)} {percentage(share)}" for name, share in stage.weights.items())
    if ascii_only:
        return Text(words)
    text = Text()
    for name, share in stage.weights.items():
        text.append(bar(share, width), colours[name])
    return text.append(f"\n{words}")


# ---- ranks


def _show_ranks(console: Console, ranks: "PlanRanks", in_detail: bool) -> None:
    heading(console, "Ranks")
    console.print(
        "The content of a step does not depend on the world size or the microbatch size. Both may change between steps.",
        soft_wrap=True,
    )
    for batch in ranks.batches[:_MOST_BATCHES] if in_detail else ():
        steps = listed([f"{step:,}" for step in batch.from_steps], 8)
        size = f"a batch of {batch.global_batch_size:,} (from step {steps})"
        if batch.sequences_per_rank is not None and batch.microbatches_per_step is not None:
            each = f"{counted(batch.sequences_per_rank, 'sequence')} each"
            count = counted(batch.microbatches_per_step, "microbatch", "microbatches")
            over = counted(ranks.world_size, "rank")
            console.print(f"{size} over {over}: {each}, {count} per step", soft_wrap=True)
        else:
            sizes = f"{ranks.world_size:,} ranks x {ranks.microbatch_size or 1:,} sequences"
            console.print(Text.assemble(("warning: ", "bold yellow"), f"{size} does not divide by {sizes}"))
    if in_detail and (more := len(ranks.batches) - _MOST_BATCHES) > 0:
        dividing = "all divide evenly" if ranks.divides else "not all divide evenly"
        console.print(f"and {more:,} more sizes of a batch ramp; {dividing}", soft_wrap=True)
    microbatches = f" with microbatches of {ranks.microbatch_size:,}" if ranks.microbatch_size else ""
    console.print(
        f"world sizes that divide every batch{microbatches}: {listed(ranks.world_sizes) or 'none'}", soft_wrap=True
    )
    if in_detail:
        console.print(
            f"microbatch sizes for {ranks.world_size:,} ranks: {listed(ranks.microbatch_sizes) or 'none'}",
            soft_wrap=True,
        )


def _show_balance(console: Console, batches: tuple["PlanBalance", ...], world_size: int) -> None:
    if not batches:
        return
    heading(console, "Balance")
    first = batches[0]
    what = "attention" if not first.linear else f"{first.attention} x attention + {first.linear} x positions"
    console.print(f"cost of the busiest of {world_size:,} ranks over the mean, by {what}:", soft_wrap=True)
    rows = (
        (f"{batch.global_batch_size:,}", where, f"{before:.3f}", f"{after:.3f}")
        for batch in batches
        for where, before, after in (
            ("whole step", batch.in_order.in_step, batch.balanced.in_step),
            ("each microbatch", batch.in_order.in_microbatches, batch.balanced.in_microbatches),
        )
    )
    table(console, rows, "batch", "ranks wait after", "in order", "balanced", right=(0, 2, 3))
    for batch in batches:
        if not batch.can_gain:
            console.print(
                f"a batch of {batch.global_batch_size:,}: one sequence per rank and step, so there is nothing to gain; use"
                " fewer ranks with more sequences each, or context parallelism",
                soft_wrap=True,
            )
    if any(batch.can_gain for batch in batches) and not first.is_balanced:
        console.print('the plan deals rows in order; add "balance: attention" to balance them', soft_wrap=True)
    if first.is_balanced and not first.linear and any(batch.can_gain for batch in batches):
        console.print(
            "only attention counts; set balance: {linear: parameters / (layers x width)} to count the whole model",
            soft_wrap=True,
        )


# ---- other questions


def _show_epoch_steps(console: Console, rows: list["EpochSteps"]) -> None:
    for row in rows:
        what = f"{row.epochs:g} epochs of {clip(row.source, 60)}"
        if row.steps is not None:
            console.print(Text.assemble(f"{what}: ", (f"{row.steps:,} steps", "bold")))
            continue
        end = f"not reached; the plan ends after {row.num_steps:,} steps, at {row.epochs_at_end or 0:.3f} epochs"
        if row.num_steps is None:
            end = "never reached in this plan"
        if row.steps_if_endless is not None:
            end += f"; without num_steps and max_epochs: {row.steps_if_endless:,} steps"
        console.print(f"{what}: {end}", soft_wrap=True)


def _show_difference(console: Console, difference: "PlanDifference", first: Path, second: Path) -> None:
    names = (safe(str(first)), safe(str(second)))
    dealt_alike = difference.balance[0] == difference.balance[1]
    if difference.same:
        what = "the plans are equal" if dealt_alike else "all steps have the same content"
        console.print(f"{what}, including their ends; fingerprint {difference.fingerprints[0]}", soft_wrap=True)
    elif difference.first_step is not None:
        console.print(Text.assemble("the plans differ from ", (f"step {difference.first_step:,}", "bold")))
    elif difference.common_steps is None:
        console.print("all steps are equal")
    else:
        ends = [
            f"{name} {'is endless' if n is None else f'ends after {n:,}'}"
            for name, n in zip(names, difference.num_steps, strict=True)
        ]
        console.print(f"the first {difference.common_steps:,} steps are equal; {', '.join(ends)}", soft_wrap=True)
    if not dealt_alike:
        console.print("the rows of a step are dealt to ranks differently", soft_wrap=True)
    rows = [(safe(row.field), _value(row.first), _value(row.second)) for row in difference.fields]
    rows += [] if dealt_alike else [("balance", _costs(difference.balance[0]), _costs(difference.balance[1]))]
    if rows:
        table(console, rows, "field", *names, folds=2)


def _costs(balance: tuple[int, int] | None) -> str:
    return "none" if balance is None else f"attention {balance[0]}, linear {balance[1]}"


def _value(value: object) -> str:
    return clip(json.dumps(value), 400)
