"""A step, and where a document appears: what `tokenstore trace` prints."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import (
    colour,
    facts,
    masked_runs,
    origin_text,
    screen,
    table,
    token_rows,
    tokens_text,
    write_json,
)
from tokenstore.views.decoding import Decoder
from tokenstore.views.numbers import span
from tokenstore.views.plan_summary import load_plan
from tokenstore.views.text import clip, safe
from tokenstore.views.trace import (
    Appearance,
    TracedPiece,
    TracedRow,
    TracedStep,
    appearances,
    document_named,
    trace_rows,
    trace_step,
)


def show_step(
    path: Path,
    step: int,
    rank: int | None,
    split: tuple[int, int | None],
    row: int | None,
    max_tokens: int | None,
    with_tokens: bool,
    as_json: bool,
    allow_links: Path | None = None,
) -> None:
    """Print the sequences of a step; `split` is (world size, microbatch size)."""
    plan, _ = load_plan(path, allow_links)
    traced = trace_step(plan, step, *split)
    decoder = Decoder.of(next(iter(plan.stores.values())))
    rows = trace_rows(plan, decoder, step, rank, *split, row, max_tokens)
    if as_json:
        write_json({"step": traced, "rank": rank, "rows": list(rows), "no_text": decoder.problem})
        return
    console = screen()
    colours = {name: colour(number) for number, name in enumerate(plan.num_sequences)}
    _show_head(console, traced, rank, decoder, colours)
    for each in rows:
        _show_row(console, each, traced, colours, with_tokens)


def _show_head(
    console: Console, traced: TracedStep, rank: int | None, decoder: Decoder, colours: dict[str, str]
) -> None:
    end = traced.cursor + traced.global_batch_size
    facts(console, [("step", f"{traced.step:,}, sequences {span(traced.cursor, end)} of the run")])
    text = Text()
    for name, count in traced.sequences.items():
        text.append(f"{clip(name, 60)} {count:,}  ", colours[name])
    text.append(f"padding {traced.padding_rows:,}" if traced.padding_rows else "")
    facts(console, [("of", text)])
    if traced.world_size > 1 or rank is not None:
        facts(console, [("rank", f"{'all' if rank is None else rank} of {traced.world_size:,}")])
    if decoder.problem is not None:
        facts(console, [("no text", safe(decoder.problem))])


def _show_row(console: Console, row: TracedRow, traced: TracedStep, colours: dict[str, str], with_tokens: bool) -> None:
    title = Text(f"\nrow {row.row}", "bold")
    if traced.world_size > 1 or traced.microbatch_size < traced.global_batch_size:
        title.append(f" (rank {row.rank}, microbatch {row.microbatch}, place {row.place})")
    if row.source is None:
        console.print(title.append(": padding only"), soft_wrap=True)
        return
    title.append(": ").append(clip(row.source, 60), colours[row.source])
    title.append(f", sequence {row.sequence:,}, epoch {row.epoch:,}, padding {row.padding:,}")
    console.print(title, soft_wrap=True)
    for piece in row.pieces:
        _show_piece(console, piece, colours[row.source], with_tokens)


def _show_piece(console: Console, piece: TracedPiece, style: str, with_tokens: bool) -> None:
    whole = piece.stop - piece.start == piece.num_tokens
    part = (
        f"{piece.num_tokens:,} tokens" if whole else f"tokens {span(piece.start, piece.stop)} of {piece.num_tokens:,}"
    )
    known = [clip(piece.id, 200)] if piece.id else []
    known += [origin_text(piece.origin)] if piece.origin else []
    head = Text.assemble((f"| {clip(piece.source, 60)}:{piece.document}", f"bold {style}"), f"  {part}")
    console.print(head.append("".join(f"  {each}" for each in known)), soft_wrap=True)
    excerpt = piece.excerpt
    if runs := masked_runs(excerpt.segments):
        console.print(Text(f"  not trained on: {runs}", "dim"), soft_wrap=True)
    if with_tokens:
        token_rows(console, excerpt.segments)
    elif excerpt.segments:
        text = tokens_text(console, excerpt.segments, style, borders=False)
        more = piece.stop - excerpt.stop
        console.print(text.append(f" ... {more:,} more tokens" if more else "", "dim"), soft_wrap=True)


def show_appearances(
    path: Path,
    name: str,
    bounds: tuple[int | None, range | None],
    limit: int,
    split: tuple[int, int | None],
    as_json: bool,
    allow_links: Path | None = None,
) -> None:
    """Print where a document appears; `bounds` are (epoch, steps)."""
    plan, _ = load_plan(path, allow_links)
    source, number = document_named(plan, name)
    found = list(appearances(plan, source, number, *bounds, limit + 1, *split))
    complete, listed = len(found) <= limit, found[:limit]
    if as_json:
        rows = {"source": source, "document": number, "appearances": listed, "complete": complete}
        write_json(rows)
        return
    console = screen()
    store = plan.stores[source]
    start, stop = store.boundaries()[number : number + 2].tolist()
    facts(console, [("document", f"{clip(source, 60)}:{number}, {stop - start:,} tokens")])
    if listed:
        table(console, (_cells(each, split[0]) for each in listed), *_titles(split[0]), right=range(6))
    else:
        console.print("it does not appear")
    if not complete:
        console.print("and more: use --limit, --epoch or --steps to see others", soft_wrap=True)


def _titles(world_size: int) -> tuple[str, ...]:
    return ("step", "row", "epoch", "tokens", "rank")[: 5 if world_size > 1 else 4]


def _cells(each: Appearance, world_size: int) -> tuple[str, ...]:
    cells = (f"{each.step:,}", f"{each.row}", f"{each.epoch:,}", span(each.start, each.stop), f"{each.rank}")
    return cells[: 5 if world_size > 1 else 4]
