"""`tokenstore inspect`, in a clone `python -m tools.inspect_store`."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.console import Console
from rich.text import Text

from tokenstore.commands.exit_codes import INTERRUPTED
from tokenstore.commands.progress_bar import meter
from tokenstore.commands.remote import remote_options
from tokenstore.commands.screen import (
    facts,
    masked_runs,
    origin_text,
    parse_range,
    screen,
    token_rows,
    tokens_text,
    value_text,
    write_json,
)
from tokenstore.commands.show_store import show_store
from tokenstore.errors import ConfigError, counted
from tokenstore.store import Store, open_store
from tokenstore.text import clip, safe, span
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import DocumentView, Excerpt, document_of_id, excerpt_of, view_document
from tokenstore.views.search_text import documents_with_text
from tokenstore.views.search_tokens import Hit, documents_with_tokens
from tokenstore.views.store_summary import summarize_store

DOCUMENT = Group("A document", sort_key=1)
SEARCH = Group("Search", sort_key=2)
AROUND = 16  # tokens shown before and after a match


def inspect(
    store: str,
    /,
    *,
    document: Annotated[int | None, Parameter(group=DOCUMENT)] = None,
    id: Annotated[str | None, Parameter(group=DOCUMENT)] = None,
    start: Annotated[int, Parameter(group=DOCUMENT)] = 0,
    max_tokens: Annotated[int, Parameter(group=DOCUMENT, alias="--head")] = 1000,
    tokens: Annotated[bool, Parameter(group=DOCUMENT, negative=())] = False,
    search: Annotated[str | None, Parameter(group=SEARCH)] = None,
    search_tokens: Annotated[str | None, Parameter(group=SEARCH)] = None,
    documents: Annotated[str | None, Parameter(group=SEARCH)] = None,
    limit: Annotated[int, Parameter(group=SEARCH)] = 10,
    version: int | None = None,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Summarize a store, show one of its documents, or search for documents.

    In a document, alternate tokens have different colours, and tokens that are not in the loss are dim. Control characters
    are shown as escapes such as \\x1b.

    **Examples:**

    ```text
    tokenstore inspect stores/web
    tokenstore inspect stores/web --document 17
    tokenstore inspect stores/web --document -1 --head 50 --tokens
    tokenstore inspect stores/web --id https://example.org/a
    tokenstore inspect stores/web --search "grace period" --limit 3
    tokenstore inspect s3://bucket/web --document 17
    tokenstore inspect stores/web --search-tokens 464,2068 --documents 0:100000
    ```

    Parameters
    ----------
    store
        The store's directory or URL. Of a store at a URL only what is shown is read.
    document
        Show the document with this number, from 0; -1 is the last.
    id
        Show the first document with this id. The store must have been built with --id-field.
    start
        First token of the document to show.
    max_tokens
        Number of tokens to show.
    tokens
        List the tokens with their ids.
    search
        Find documents whose text contains this phrase. Case-sensitive; the text includes special tokens.
    search_tokens
        Find documents that contain these consecutive token ids, as 464,2068.
    documents
        Search only documents A to B - 1, as A:B.
    limit
        Stop after this many matching documents.
    version
        Open this version of a store that documents were appended to. Default: the newest.
    allow_links
        A folder that symbolic links inside the store may lead to. Without it, links must stay inside the store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print one JSON object. Its keys are the attributes of the dataclasses in tokenstore.views.
    """
    _check_questions({"--document": document, "--id": id, "--search": search, "--search-tokens": search_tokens})
    if min(start, max_tokens, limit) < 0:
        raise ConfigError("inspect: --start, --max-tokens and --limit must be 0 or more")
    with (
        remote_options(cache, as_json) as remote,
        open_store(store, version=version, allow_links=allow_links, remote=remote) as opened,
    ):
        if document is not None or id is not None:
            _show_document(opened, document, id, range(start, start + max_tokens), tokens, as_json)
        elif search is not None or search_tokens is not None:
            return _search(opened, search, search_tokens, parse_range(documents, "documents"), limit, as_json)
        else:
            summary = summarize_store(opened)
            write_json(summary) if as_json else show_store(screen(), summary)
    return 0


def _check_questions(questions: dict[str, object]) -> None:
    given = [name for name, value in questions.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"inspect: {' and '.join(given)} cannot be combined; run the command once for each")


def _show_document(
    store: Store, number: int | None, id: str | None, part: range, with_tokens: bool, as_json: bool
) -> None:
    if number is None:
        with meter("searching for the id", quiet=as_json) as shown:
            number = document_of_id(store, id or "", lambda done, total: shown.show(done, total, (done, "B")))
    decoder = Decoder.of(store)
    view = view_document(store, decoder, number, part.start, part.stop)
    if as_json:
        write_json({"path": store.place, "version": store.version, "document": view, "no_text": decoder.problem})
        return
    _print_document(screen(), view, decoder, with_tokens)


def _search(
    store: Store, phrase: str | None, ids: str | None, documents: range | None, limit: int, as_json: bool
) -> int:
    """Print the matching documents; return the exit code."""
    decoder = Decoder.of(store)
    found: list[Hit] = []
    try:
        with meter("searching", quiet=as_json) as shown:
            hits = _hits(
                store, decoder, phrase, ids, documents, lambda done, total: shown.show(done, total, (done, " tokens"))
            )
            found.extend(islice(hits, limit))
    except KeyboardInterrupt:  # print the matches so far
        _show_hits(store, decoder, found, False, as_json)
        if not as_json:
            raise
        sys.stderr.write("interrupted\n")
        return INTERRUPTED  # standard output has its one object already
    _show_hits(store, decoder, found, len(found) < limit, as_json)
    return 0


def _show_hits(store: Store, decoder: Decoder, found: list[Hit], complete: bool, as_json: bool) -> None:
    rows = [(hit, _around(store, decoder, hit)) for hit in found]
    if as_json:
        found_rows = [_found(store, hit, excerpt) for hit, excerpt in rows]
        write_json({"path": store.place, "version": store.version, "found": found_rows, "complete": complete})
    else:
        _print_hits(screen(), store, rows, complete)


def _around(store: Store, decoder: Decoder, hit: Hit) -> Excerpt:
    return excerpt_of(store, decoder, hit.document, hit.start - AROUND, hit.stop + AROUND)


def _found(store: Store, hit: Hit, excerpt: Excerpt) -> dict[str, object]:
    return {
        "document": hit.document,
        "start": hit.start,
        "stop": hit.stop,
        "id": store.id(hit.document),
        "origin": store.origin(hit.document),
        "text": excerpt.text,
    }


def _hits(
    store: Store,
    decoder: Decoder,
    phrase: str | None,
    ids: str | None,
    documents: range | None,
    progress: Callable[[int, int], None],
) -> Iterator[Hit]:
    if phrase is not None:
        return documents_with_text(store, decoder, phrase, documents, progress)
    parts = (ids or "").replace(",", " ").split()
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"search-tokens: expected ids such as 464,2068, found {ids!a}")
    return documents_with_tokens(store, [int(part) for part in parts], documents, progress)


def _print_document(console: Console, view: DocumentView, decoder: Decoder, with_tokens: bool) -> None:
    """Print what the store knows about a document, and its tokens as text or as a table."""
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
    for name, value in (view.metadata or {}).items():
        yield clip(name, 60), value_text(value)
    excerpt = view.excerpt
    shown = (
        "all shown" if excerpt.stop - excerpt.start == view.num_tokens else f"{span(excerpt.start, excerpt.stop)} shown"
    )
    yield "tokens", f"{view.num_tokens:,}, {shown}"
    if view.num_in_loss < view.num_tokens:
        runs = masked_runs(excerpt.segments)
        yield "in the loss", f"{view.num_in_loss:,}" + (f"; shown and not in the loss: {runs}" if runs else "")
    if decoder.problem is not None:
        yield "no text", safe(decoder.problem)


def _print_hits(console: Console, store: Store, rows: list[tuple[Hit, Excerpt]], complete: bool) -> None:
    """Print the documents found, each with the text around the match, and whether these are all."""
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
        console.print(counted(len(rows), "document") + " found" if rows else "no document found")
    else:
        more = "there may be more; raise --limit, or continue with --documents"
        console.print(f"{counted(len(rows), 'document')} found; {more}", soft_wrap=True)
