"""A document of a store or a part of it: its origin, its text token by token, and which tokens are in the loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.format.input_lines import Origin
from tokenstore.store import Store
from tokenstore.views.decoding import Decoder

_BLOCK = 1 << 24  # bytes of ids searched at once


@dataclass(frozen=True)
class Segment:
    """Tokens [start, stop) of a document that have one text: a single token, or the parts of one character.

    Attributes:
        token_ids: its token ids.
        text: their text; may contain anything.
        in_loss: for each token, whether it is in the loss.
    """

    start: int
    stop: int
    token_ids: tuple[int, ...]
    text: str
    in_loss: tuple[bool, ...]


@dataclass(frozen=True)
class Excerpt:
    """Tokens [start, stop) of a document and their text, which may contain anything."""

    start: int
    stop: int
    text: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class DocumentView:
    """A document and an excerpt of it.

    Attributes:
        number: its number in the store, from 0.
        id: its string id; None if the store has no ids.
        origin: its input file and record number, from 1; None if the store has no origins.
        metadata: its values by column; None if the store has no metadata.
        num_tokens: tokens of the whole document.
        num_in_loss: how many of them are in the loss.
    """

    number: int
    id: str | None
    origin: Origin | None
    metadata: dict[str, Any] | None
    num_tokens: int
    num_in_loss: int
    excerpt: Excerpt


def view_document(store: Store, decoder: Decoder, number: int, start: int = 0, stop: int | None = None) -> DocumentView:
    """Document `number` with its tokens [start, stop) decoded; -1 is the last document.

    Raises:
        ConfigError: the store has no such document.
        CorruptionError: the document is damaged.

    Example:
        >>> view_document(store, Decoder.of(store), 17, stop=50).excerpt.text
    """
    if not -len(store) <= number < len(store):
        raise ConfigError(
            f"document: the store has {len(store):,} documents, found {number} ({store.place}); 0 is the first, -1 the last"
        )
    number %= len(store)
    mask = store.loss_mask(number)
    excerpt = excerpt_of(store, decoder, number, start, mask.size if stop is None else stop)
    known = store.id(number), store.origin(number), store.metadata(number)
    return DocumentView(number, *known, mask.size, int(mask.sum()), excerpt)


def excerpt_of(store: Store, decoder: Decoder, number: int, start: int, stop: int) -> Excerpt:
    """Tokens [start, stop) of a document, limited to its length."""
    if stop <= start:  # nothing to read
        return Excerpt(start, start, "", ())
    tokens = store[number]
    start, stop = min(max(start, 0), tokens.size), min(stop, tokens.size)
    ids = tokens[start : max(start, stop)]
    in_loss = store.loss_mask(number)[start : start + ids.size] if store.manifest.has_masks else np.ones(ids.size, bool)
    segments = tuple(
        Segment(start + a, start + b, tuple(ids[a:b].tolist()), text, tuple(in_loss[a:b].tolist()))
        for a, b, text in decoder.cut(ids)
    )
    return Excerpt(start, start + ids.size, "".join(segment.text for segment in segments), segments)


def document_of_id(store: Store, id: str, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """The number of the first document with this id. Searches all ids; `progress` is called with (bytes done, bytes in all).

    Raises: ConfigError: the store has no ids, or no document has this one.
    """
    if not store.has_ids:
        raise ConfigError(
            f"id: the store has no ids ({store.place}); use the document's number, or build the store with --id-field"
        )
    number = next(_documents_of(store, id.encode("utf-8", "surrogatepass"), progress), None)
    if number is None:
        raise ConfigError(f"id: no document has the id {id!a} ({store.place})")
    return number


def _documents_of(store: Store, wanted: bytes, progress: Callable[[int, int], None]) -> Iterator[int]:
    starts, text = store.ids()
    starts = starts[: len(store) + 1]
    for first in range(0, text.size if wanted else 0, _BLOCK):
        block = text[first : first + _BLOCK + len(wanted) - 1].tobytes()
        at = block.find(wanted)
        while at >= 0:
            number = min(int(np.searchsorted(starts, first + at, side="right")), len(store)) - 1
            if starts[number] == first + at and starts[number + 1] == first + at + len(wanted):
                yield number
            at = block.find(wanted, at + 1)
        progress(min(first + _BLOCK, text.size), text.size)
