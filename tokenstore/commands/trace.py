"""`tokenstore trace`, in a clone `python -m tools.trace_step`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console
from rich.text import Text

from tokenstore.commands.plan import show_difference
from tokenstore.commands.remote import loaded_plan
from tokenstore.commands.screen import (
    colour,
    facts,
    masked_runs,
    origin_text,
    parse_range,
    screen,
    table,
    token_rows,
    tokens_text,
    value_text,
    write_json,
)
from tokenstore.errors import ConfigError
from tokenstore.order.rank_rows import check_nodes
from tokenstore.text import clip, safe, span
from tokenstore.views.decoding import Decoder

if TYPE_CHECKING:  # these import numba, half a second that --help need not wait for
    from tokenstore.planning.plan import Plan
    from tokenstore.views.trace import Appearance, TracedPiece, TracedRow, TracedStep

STEP = Group("A step", sort_key=1)
DOCUMENT = Group("A document", sort_key=2)
OTHER = Group("Another plan", sort_key=3)


def trace(
    plan: Path,
    /,
    *,
    step: Annotated[int | None, Parameter(group=STEP)] = None,
    rank: Annotated[int | None, Parameter(group=STEP)] = None,
    row: Annotated[int | None, Parameter(group=STEP)] = None,
    sequence: Annotated[int | None, Parameter(group=STEP)] = None,
    max_tokens: Annotated[int, Parameter(group=STEP)] = 48,
    whole: Annotated[bool, Parameter(group=STEP, negative=())] = False,
    tokens: Annotated[bool, Parameter(group=STEP, negative=())] = False,
    document: Annotated[str | None, Parameter(group=DOCUMENT)] = None,
    epoch: Annotated[int | None, Parameter(group=DOCUMENT)] = None,
    steps: Annotated[str | None, Parameter(group=DOCUMENT)] = None,
    limit: Annotated[int, Parameter(group=DOCUMENT)] = 20,
    diff: Annotated[Path | None, Parameter(group=OTHER)] = None,
    world_size: int = 1,
    microbatch_size: int | None = None,
    nodes: int = 1,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show what the model sees in a step, or the steps in which a document appears. No step is replayed.

    Each piece of a document has the colour of its source; tokens that are not in the loss are dim. Control characters are
    shown as escapes such as \\x1b.

    **Examples:**

    ```text
    tokenstore trace plan.yaml --step 48123
    tokenstore trace plan.yaml --step 48123 --rank 3 --world-size 64 --microbatch-size 8
    tokenstore trace plan.yaml --step 48123 --row 17 --whole
    tokenstore trace plan.yaml --sequence 12319505
    tokenstore trace plan.yaml --document web:1234567
    tokenstore trace plan.yaml --document web:https://example.org/a --steps 0:10000
    tokenstore trace plan.yaml --diff other.yaml
    ```

    Parameters
    ----------
    plan
        The plan file.
    step
        List the sequences of this step.
    rank
        List only the sequences of this rank. Default: of all ranks.
    row
        List only this row of the step, from 0.
    sequence
        List the sequence with this global number, as in the batch field sequence_ids.
    max_tokens
        Decode at most this many tokens per piece; 0 for none.
    whole
        Decode all tokens of each piece.
    tokens
        List the tokens with their ids.
    document
        List the steps in which this document appears: SOURCE:NUMBER or SOURCE:ID. If the id is a number, use SOURCE:id=ID.
    epoch
        List only steps of this epoch of the source, from 0.
    steps
        List only steps A to B - 1, as A:B.
    limit
        List at most this many pieces.
    diff
        Show the first step at which another plan differs, and what differs.
    world_size
        Number of data-parallel ranks.
    microbatch_size
        Sequences per microbatch. Default: a rank's whole share of the step.
    nodes
        Number of nodes that the ranks are on, as in TokenLoader. It matters only if a source has locality.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print one JSON object. Its keys are the attributes of the dataclasses in tokenstore.views.
    """
    if [step, sequence, document, diff].count(None) != 3:
        raise ConfigError("trace: expected exactly one of --step, --sequence, --document and --diff")
    if sequence is not None and row is not None:
        raise ConfigError("trace: --row is a row of --step; omit it with --sequence")
    if min(max_tokens, limit) < 0:
        raise ConfigError("trace: --max-tokens and --limit must be 0 or more")
    if diff is not None:
        show_difference(plan, diff, as_json, allow_links, cache)
        return 0
    loaded, _ = loaded_plan(plan, allow_links, cache, as_json)
    sizes = (world_size, microbatch_size, check_nodes(nodes))
    if sequence is not None:
        step, row = _place_of(loaded, sequence)
    if step is not None:
        _show_step(loaded, step, rank, sizes, row, None if whole else max_tokens, tokens, as_json)
    else:
        _show_appearances(loaded, document or "", epoch, parse_range(steps, "steps"), limit, sizes, as_json)
    return 0


def _place_of(plan: "Plan", sequence: int) -> tuple[int, int]:
    """(step, row) of a sequence."""
    try:
        return plan.sequence(sequence)[:2]
    except IndexError as error:
        raise ConfigError(str(error)) from error


def _show_step(
    plan: "Plan",
    step: int,
    rank: int | None,
    sizes: tuple[int, int | None, int],
    row: int | None,
    max_tokens: int | None,
    with_tokens: bool,
    as_json: bool,
) -> None:
    """Print the sequences of a step. `sizes` are the world size, the microbatch size and the nodes."""
    from tokenstore.views.trace import trace_rows, trace_step

    world_size, microbatch_size, nodes = sizes
    traced = trace_step(plan, step, world_size, microbatch_size, nodes=nodes)
    decoder = Decoder.of(next(iter(plan.stores.values())))
    rows = trace_rows(plan, decoder, step, rank, world_size, microbatch_size, row, max_tokens, nodes=nodes)
    if as_json:
        write_json({"step": traced, "rank": rank, "rows": list(rows), "no_text": decoder.problem})
        return
    console = screen()
    colours = {name: colour(number) for number, name in enumerate(plan.num_sequences)}
    _show_head(console, traced, rank, decoder, colours)
    for each in rows:
        _show_row(console, each, traced, colours, with_tokens)


def _show_head(
    console: Console, traced: "TracedStep", rank: int | None, decoder: Decoder, colours: dict[str, str]
) -> None:
    end = traced.cursor + traced.global_batch_size
    facts(console, [("step", f"{traced.step:,}, sequences {span(traced.cursor, end)} of the run")])
    text = Text()
    for name, count in traced.sequences.items():
        text.append(f"{clip(name, 60)} {count:,}  ", colours[name])
    text.append(f"empty rows {traced.padding_rows:,}" if traced.padding_rows else "")
    facts(console, [("sources", text)])
    if traced.world_size > 1 or rank is not None:
        on_nodes = f", on {traced.nodes:,} nodes" if traced.nodes > 1 else ""
        facts(console, [("rank", f"{'all' if rank is None else rank} of {traced.world_size:,}{on_nodes}")])
    if decoder.problem is not None:
        facts(console, [("no text", safe(decoder.problem))])


def _show_row(
    console: Console, row: "TracedRow", traced: "TracedStep", colours: dict[str, str], with_tokens: bool
) -> None:
    title = Text(f"\nrow {row.row}", "bold")
    if traced.world_size > 1 or traced.microbatch_size < traced.global_batch_size:
        title.append(f" (rank {row.rank}, microbatch {row.microbatch}, place {row.place})")
    if row.source is None:
        console.print(title.append(": empty"), soft_wrap=True)
        return
    title.append(": ").append(clip(row.source, 60), colours[row.source])
    title.append(f", sequence {row.sequence:,}, epoch {row.epoch:,}, padding {row.padding:,}")
    console.print(title, soft_wrap=True)
    for piece in row.pieces:
        _show_piece(console, piece, colours[row.source], with_tokens)


def _show_piece(console: Console, piece: "TracedPiece", style: str, with_tokens: bool) -> None:
    whole = piece.stop - piece.start == piece.num_tokens
    part = (
        f"{piece.num_tokens:,} tokens" if whole else f"tokens {span(piece.start, piece.stop)} of {piece.num_tokens:,}"
    )
    known = [clip(piece.id, 200)] if piece.id else []
    known += [origin_text(piece.origin)] if piece.origin else []
    known += [
        f"{clip(name, 60)} {value_text(value)}" for name, value in (piece.metadata or {}).items() if value is not None
    ]
    head = Text.assemble((f"| {clip(piece.source, 60)}:{piece.document}", f"bold {style}"), f"  {part}")
    console.print(head.append("".join(f"  {each}" for each in known)), soft_wrap=True)
    excerpt = piece.excerpt
    if runs := masked_runs(excerpt.segments):
        console.print(Text(f"  not in the loss: {runs}", "dim"), soft_wrap=True)
    if with_tokens:
        token_rows(console, excerpt.segments)
    elif excerpt.segments:
        text = tokens_text(console, excerpt.segments, style, borders=False)
        more = piece.stop - excerpt.stop
        console.print(text.append(f" ... {more:,} more tokens" if more else "", "dim"), soft_wrap=True)


def _show_appearances(
    plan: "Plan",
    name: str,
    epoch: int | None,
    steps: range | None,
    limit: int,
    sizes: tuple[int, int | None, int],
    as_json: bool,
) -> None:
    """Print where a document appears. `sizes` are the world size, the microbatch size and the nodes."""
    from tokenstore.views.trace import appearances, document_named

    source, number = document_named(plan, name)
    world_size, microbatch_size, nodes = sizes
    found = list(appearances(plan, source, number, epoch, steps, limit + 1, world_size, microbatch_size, nodes=nodes))
    complete, shown = len(found) <= limit, found[:limit]
    if as_json:
        write_json({"source": source, "document": number, "appearances": shown, "complete": complete})
        return
    console = screen()
    store = plan.stores[source]
    start, stop = store.boundaries()[number : number + 2].tolist()
    facts(console, [("document", f"{clip(source, 60)}:{number}, {stop - start:,} tokens")])
    if shown:
        table(console, (_cells(each, world_size) for each in shown), *_titles(world_size), right=range(6))
    else:
        chosen = plan.config.sources[source].slice_text
        why = f"; source {clip(source, 60)} uses a slice of its store ({chosen})" if chosen else ""
        console.print(f"the document does not appear{why}", soft_wrap=True)
    if not complete:
        console.print("there are more; use --limit, --epoch or --steps to see them", soft_wrap=True)


def _titles(world_size: int) -> tuple[str, ...]:
    return ("step", "row", "epoch", "tokens", "rank")[: 5 if world_size > 1 else 4]


def _cells(each: "Appearance", world_size: int) -> tuple[str, ...]:
    cells = (f"{each.step:,}", f"{each.row}", f"{each.epoch:,}", span(each.start, each.stop), f"{each.rank}")
    return cells[: 5 if world_size > 1 else 4]
