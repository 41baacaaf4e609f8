"""A document, and what a search found: what `tokenstore inspect STORE --document` and `--search` print."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import facts, masked_runs, origin_text, token_rows, tokens_text
from tokenstore.store import Store
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import DocumentView, Excerpt
from tokenstore.views.numbers import span
from tokenstore.views.search_tokens import Hit
from tokenstore.views.text import clip, safe


def show_document(console: Console, view: DocumentView, decoder: Decoder, with_tokens: bool) -> None:
    """Print what is known of a document, and its tokens as text or as a table."""
    facts(console, _document_facts(view, decoder))
    console.print()
    if with_tokens:
        token_rows(console, view.excerpt.segments)
    else:
        console.print(tokens_text(console, view.excerpt.segments), soft_wrap=True)


def _document_facts(view: DocumentView, decoder: Decoder) -> Iterator[tuple[str, str]]:
    yield "document", f"{view.number}"
    if view.id is not None:
        yield "id", clip(view.id, 1000)
    if view.origin is not None:
        yield "origin", origin_text(view.origin)
    excerpt = view.excerpt
    shown = (
        "all shown" if excerpt.stop - excerpt.start == view.num_tokens else f"{span(excerpt.start, excerpt.stop)} shown"
    )
    yield "tokens", f"{view.num_tokens:,}, {shown}"
    if view.num_in_loss < view.num_tokens:
        runs = masked_runs(excerpt.segments)
        yield "trained on", f"{view.num_in_loss:,}" + (f"; shown and not trained on: {runs}" if runs else "")
    if decoder.problem is not None:
        yield "no text", safe(decoder.problem)


def show_found(console: Console, store: Store, rows: list[tuple[Hit, Excerpt]], complete: bool) -> None:
    """Print the documents found, each with the text around the place, and whether these are all."""
    for hit, excerpt in rows:
        known = "  ".join(
            filter(None, (origin_text(store.origin(hit.document)), clip(store.id(hit.document) or "", 200)))
        )
        place = f"document {hit.document}, tokens {span(hit.start, hit.stop)}"
        console.print(Text.assemble((place, "bold"), f"  {known}"), soft_wrap=True)
        text = Text("  ")
        for segment in excerpt.segments:
            inside = segment.start < hit.stop and segment.stop > hit.start
            text.append(clip(segment.text, 200), "bold reverse" if inside else "")
        console.print(text, soft_wrap=True)
    if complete:
        console.print(f"{len(rows):,} documents found, all searched" if rows else "not found, all searched")
    else:
        console.print(f"{len(rows):,} documents found; --limit for more, --documents to look elsewhere", soft_wrap=True)
