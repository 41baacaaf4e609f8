"""Documents that contain a run of token ids: a scan of the mapped shards at memory speed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.store import Store

_BLOCK = 1 << 22  # tokens scanned together
_SAMPLE = 1 << 16  # tokens of a block that are counted to find the rarest of the ids
_HITS = 1 << 12  # matches whose documents are looked up together


@dataclass(frozen=True)
class Hit:
    """The first match in a document: its tokens [start, stop)."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True)
class Parts:
    """Where the tokens of a range of documents are.

    Attributes:
        shards: (shard number, its first token in the stream, low, high): tokens [low, high) of that shard.
        num_tokens: tokens of all these documents.
    """

    shards: tuple[tuple[int, int, int, int], ...]
    num_tokens: int


def parts_of(store: Store, documents: range | None) -> Parts:
    """The parts of these documents; None: of all. Raises: ConfigError: the store does not have them."""
    documents = range(len(store)) if documents is None else documents
    if not 0 <= documents.start < documents.stop <= len(store):
        raise ConfigError(
            f"documents: expected a range within 0:{len(store)}, found {documents.start}:{documents.stop} ({store.place})"
        )
    low, high = (int(store.boundaries()[n]) for n in (documents.start, documents.stop))
    shards = tuple(
        (number, shard.first_token, max(low - shard.first_token, 0), min(high - shard.first_token, shard.num_tokens))
        for number, shard in enumerate(store.shards())
        if shard.first_token < high and shard.first_token + shard.num_tokens > low
    )
    return Parts(shards, high - low)


def documents_with_tokens(
    store: Store,
    wanted: Sequence[int],
    documents: range | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Hit]:
    """Yield every document that contains `wanted` as consecutive tokens, in order, with the first match in each. Lazy.

    Args:
        store: an open store.
        wanted: one or more token ids.
        documents: search only these documents; default: all.
        progress: called with (tokens done, tokens to search).
    Raises: ConfigError: no ids, ids outside the vocabulary, or documents that the store does not have.

    Example:
        >>> [hit.document for hit in documents_with_tokens(store, [464, 2068])]
    """
    if not wanted or not all(0 <= id < store.vocab_size for id in wanted):
        raise ConfigError(
            f"search: expected one or more token ids below {store.vocab_size}, found {list(wanted)[:20]} ({store.place})"
        )
    return _hits(store, np.array(wanted, store.dtype), parts_of(store, documents), progress)


def _hits(store: Store, wanted: np.ndarray, parts: Parts, progress: Callable[[int, int], None]) -> Iterator[Hit]:
    starts = store.boundaries()[: len(store) + 1]
    last, done = -1, 0
    for number, first, low, high in parts.shards:
        tokens = store.part(number)
        for at in range(low, high, _BLOCK):
            block = tokens[at : min(at + _BLOCK + wanted.size - 1, high)]
            found = first + at + _places(block, wanted)
            for some in np.split(found, range(_HITS, found.size, _HITS)):
                numbers = np.clip(np.searchsorted(starts, some, side="right") - 1, 0, len(store) - 1)
                whole = some + wanted.size <= starts[numbers + 1]
                each, places = np.unique(numbers[whole], return_index=True)
                for document, place in zip(each.tolist(), some[whole][places].tolist(), strict=True):
                    if document > last:
                        start = place - int(starts[document])
                        yield Hit(document, start, start + wanted.size)
                        last = document
            done += min(_BLOCK, high - at)
            progress(done, parts.num_tokens)


def _places(block: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int64[n], ascending: where `wanted` begins in `block`. The rarest of its tokens is searched for first."""
    count = block.size - wanted.size + 1
    if count <= 0:
        return np.empty(0, np.int64)
    rarest = min(range(wanted.size), key=lambda k: np.count_nonzero(block[:_SAMPLE] == wanted[k]))
    places = np.flatnonzero(block[rarest : rarest + count] == wanted[rarest])
    for k in range(wanted.size):
        places = places[block[places + k] == wanted[k]] if k != rarest else places
    return places
