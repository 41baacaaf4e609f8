"""Documents whose decoded text contains a phrase: each document is decoded, in windows of bounded size."""

from collections.abc import Callable, Iterator

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.store import Store
from tokenstore.views.decoding import BROKEN, Decoder
from tokenstore.views.search_tokens import Hit, parts_of

_WINDOW = 1 << 14  # tokens of a document decoded together; longer documents take several windows
_EDGE = 16  # tokens at a cut end of a window whose text may be wrong: a part of a character, or a missing space
_REPORT = 1 << 18  # tokens between two calls of `progress`


def documents_with_text(
    store: Store,
    decoder: Decoder,
    phrase: str,
    documents: range | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Hit]:
    """Yield every document whose text contains `phrase`, in order, with the first place in each.

    Text is that of `Store.decode`, with special tokens. The search is lazy, and takes memory for one window of 16,384 tokens.

    Args:
        store: an open store.
        decoder: the decoder of that store.
        phrase: at least one character; case-sensitive.
        documents: search only these documents; default: all.
        progress: called with (tokens done, tokens to search).
    Raises: ConfigError: the phrase is empty, a document does not exist, or the store cannot be decoded.
    """
    if not phrase:
        raise ConfigError("search: the phrase is empty; give at least one character")
    if decoder.problem is not None:
        raise ConfigError(
            f"search: the store cannot be decoded: {decoder.problem}; search for ids with --search-tokens"
        )
    total = parts_of(store, documents).num_tokens
    return _hits(store, decoder, phrase, range(len(store)) if documents is None else documents, total, progress)


def _hits(
    store: Store, decoder: Decoder, phrase: str, documents: range, total: int, progress: Callable[[int, int], None]
) -> Iterator[Hit]:
    done = reported = 0
    for number in documents:
        tokens = store[number]
        if (place := _first_place(decoder, tokens, phrase)) is not None:
            yield Hit(number, *place)
        done += tokens.size
        if done - reported >= _REPORT or done == total:
            progress(done, total)
            reported = done


def _first_place(decoder: Decoder, tokens: np.ndarray, phrase: str) -> tuple[int, int] | None:
    """The first tokens [start, stop) of a document that contain `phrase`."""
    # A token holds at least one byte. So windows overlap by any place of the phrase and the edges on both sides of it.
    overlap = len(phrase.encode("utf-8", "surrogatepass")) + 2 * _EDGE
    for low in range(0, tokens.size, _WINDOW):
        ids = tokens[low : low + _WINDOW + overlap]
        text = decoder.text(ids)
        at = text.find(phrase)
        while at >= 0:
            start, stop = _tokens_of(decoder, ids, at, len(phrase))
            cut_before, cut_after = low > 0, low + ids.size < tokens.size
            if not (cut_before and start < _EDGE) and not (cut_after and stop > ids.size - _EDGE):
                return low + start, low + stop
            at = text.find(phrase, at + 1)
        if low + ids.size == tokens.size:
            return None
    return None


def _tokens_of(decoder: Decoder, ids: np.ndarray, at: int, size: int) -> tuple[int, int]:
    """The tokens [start, stop) that hold the characters [at, at + size) of the text of `ids`."""

    def is_before(n: int) -> bool:
        return len(decoder.text(ids[:n])) <= at

    found = _last(is_before, 0, len(ids))
    # The parts of a cut character decode to several characters, so `found` may be inside one that precedes the phrase.
    start = max(n for n in range(found, min(found + _EDGE, len(ids)) + 1) if is_before(n))
    stop = 1 + _last(lambda n: len(decoder.text(ids[:n]).rstrip(BROKEN)) < at + size, start, len(ids))
    return start, min(stop, len(ids))


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last n in low..high with `holds(n)`, which is true for `low` and stays false once it is false."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
