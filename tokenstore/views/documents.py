"""A document of a store, or a part of it: where it came from, its text token by token, which tokens are in the loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.format.input_lines import Origin
from tokenstore.store import Store
from tokenstore.views.decoding import Decoder

_BLOCK = 1 << 24  # bytes of ids looked through at once


@dataclass(frozen=True)
class Segment:
    """Tokens [start, stop) of a document whose text cannot be told apart: one, or the parts of one character.

    Attributes:
        ids: of the tokens.
        text: of all of them; may hold anything.
        in_loss: of each token, whether it is in the loss.
    """

    start: int
    stop: int
    ids: tuple[int, ...]
    text: str
    in_loss: tuple[bool, ...]


@dataclass(frozen=True)
class Excerpt:
    """Tokens [start, stop) of a document, and their text as a whole, which may hold anything."""

    start: int
    stop: int
    text: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class DocumentView:
    """A document and an excerpt of it.

    Attributes:
        number: in the store, from 0.
        id: the id the store has for it, None in a store without ids.
        origin: its input file and the number of its record, from 1; None in a store that does not say.
        num_tokens, num_in_loss: of the whole document.
    """

    number: int
    id: str | None
    origin: Origin | None
    num_tokens: int
    num_in_loss: int
    excerpt: Excerpt


def view_document(store: Store, decoder: Decoder, number: int, start: int = 0, stop: int | None = None) -> DocumentView:
    """Document `number`, counted from the end where negative, with its tokens [start, stop) decoded.

    Raises:
        ConfigError: the store has no such document.
        CorruptionError: what is read of it is damaged.
    """
    if not -len(store) <= number < len(store):
        raise ConfigError(
            f"document: expected one of {len(store):,} (0 is the first, -1 the last), found {number} ({store.path})"
        )
    number %= len(store)
    mask = store.loss_mask(number)
    excerpt = excerpt_of(store, decoder, number, start, mask.size if stop is None else stop)
    return DocumentView(number, store.id(number), store.origin(number), mask.size, int(mask.sum()), excerpt)


def excerpt_of(store: Store, decoder: Decoder, number: int, start: int, stop: int) -> Excerpt:
    """Tokens [start, stop) of a document, cut at its ends."""
    if stop <= start:  # where and how long is known without a look at the tokens
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
    """The first document with this id, by a look through all ids; `progress` is told (bytes done, of all).

    Raises: ConfigError: the store has no ids, or not this one.
    """
    if not store.has_ids:
        raise ConfigError(
            f"id: expected a store with ids, found one without ({store.path}); build it with --id-field, or give the number"
        )
    number = next(_documents_of(store, id.encode("utf-8", "surrogatepass"), progress), None)
    if number is None:
        raise ConfigError(f"id: expected one that a document has, found {id!a} ({store.path})")
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
