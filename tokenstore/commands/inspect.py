"""`tokenstore inspect`, in a clone `python -m tools.inspect_store`."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from tokenstore.commands.entry import INTERRUPTED
from tokenstore.commands.progress_bar import meter
from tokenstore.commands.screen import screen, span, write_json
from tokenstore.commands.show_document import show_document, show_found
from tokenstore.commands.show_store import show_store
from tokenstore.errors import ConfigError
from tokenstore.store import Store, open_store
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import Excerpt, document_of_id, excerpt_of, view_document
from tokenstore.views.search_text import documents_with_text
from tokenstore.views.search_tokens import Hit, documents_with_tokens
from tokenstore.views.store_summary import summarize_store

DOCUMENT = Group("A document", sort_key=1)
SEARCH = Group("Search", sort_key=2)
AROUND = 16  # tokens shown before and after what was found


def inspect(
    store: Path,
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
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Look into a store: what it is; one of its documents, decoded; which documents hold a phrase or certain tokens.

    In a document every other token has another colour, and tokens that are not trained on are dim. Characters that would
    act on the terminal are shown as escapes such as \\x1b.

    **Examples:**

    ```text
    tokenstore inspect stores/web
    tokenstore inspect stores/web --document 17
    tokenstore inspect stores/web --document -1 --head 50 --tokens
    tokenstore inspect stores/web --id https://example.org/a
    tokenstore inspect stores/web --search "grace period" --limit 3
    tokenstore inspect stores/web --search-tokens 464,2068 --documents 0:100000
    ```

    Parameters
    ----------
    store
        The store's directory.
    document
        Show the document of this number, from 0; -1 is the last one.
    id
        Show the first document with this id, in a store built with --id-field.
    start
        The first of its tokens to show.
    max_tokens
        How many of its tokens to show.
    tokens
        List the tokens with their ids.
    search
        Find documents whose text holds this, special tokens included; upper and lower case differ.
    search_tokens
        Find documents that hold these ids one after the other, as 464,2068.
    documents
        Search only documents A:B, which end before document B.
    limit
        End the search after this many documents.
    version
        Look into this version of a store that has grown, instead of the newest.
    allow_links
        A folder that symbolic links inside the store may lead to. Without it, links must stay inside the store.
    as_json
        Print one JSON object; its keys are the attributes of the dataclasses in tokenstore.views.
    """
    _check_questions({"--document": document, "--id": id, "--search": search, "--search-tokens": search_tokens})
    if min(start, max_tokens, limit) < 0:
        raise ConfigError("numbers: expected 0 or more for --start, --max-tokens and --limit, found less")
    with open_store(store, version=version, allow_links=allow_links) as opened:
        if document is not None or id is not None:
            _show_document(opened, document, id, range(start, start + max_tokens), tokens, as_json)
        elif search is not None or search_tokens is not None:
            return _search(opened, search, search_tokens, span(documents, "documents"), limit, as_json)
        else:
            summary = summarize_store(opened)
            write_json(summary) if as_json else show_store(screen(), summary)
    return 0


def _check_questions(questions: dict[str, object]) -> None:
    given = [name for name, value in questions.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"inspect: expected one of {', '.join(questions)}, found {' and '.join(given)}")


def _show_document(
    store: Store, number: int | None, id: str | None, part: range, with_tokens: bool, as_json: bool
) -> None:
    if number is None:
        with meter("looking for the id", quiet=as_json) as shown:
            number = document_of_id(store, id or "", lambda done, total: shown.show(done, total, (done, "B")))
    decoder = Decoder.of(store)
    view = view_document(store, decoder, number, part.start, part.stop)
    if as_json:
        write_json({"path": str(store.path), "version": store.version, "document": view, "no_text": decoder.problem})
        return
    show_document(screen(), view, decoder, with_tokens)


def _search(
    store: Store, phrase: str | None, ids: str | None, documents: range | None, limit: int, as_json: bool
) -> int:
    """Print what is found; return the exit code."""
    decoder = Decoder.of(store)
    found: list[Hit] = []
    try:
        with meter("searching", quiet=as_json) as shown:
            hits = _hits(
                store, decoder, phrase, ids, documents, lambda done, total: shown.show(done, total, (done, " tokens"))
            )
            found.extend(islice(hits, limit))
    except KeyboardInterrupt:  # what was found before is not lost
        _tell_found(store, decoder, found, False, as_json)
        if not as_json:
            raise
        sys.stderr.write("interrupted\n")
        return INTERRUPTED  # there is one object on standard output already
    _tell_found(store, decoder, found, len(found) < limit, as_json)
    return 0


def _tell_found(store: Store, decoder: Decoder, found: list[Hit], complete: bool, as_json: bool) -> None:
    rows = [(hit, _around(store, decoder, hit)) for hit in found]
    if as_json:
        listed = [_found(store, hit, excerpt) for hit, excerpt in rows]
        write_json({"path": str(store.path), "version": store.version, "found": listed, "complete": complete})
    else:
        show_found(screen(), store, rows, complete)


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
        raise ConfigError(f"search: expected ids such as 464,2068, found {ids!a}")
    return documents_with_tokens(store, [int(part) for part in parts], documents, progress)
