"""Documents whose decoded text holds a phrase.

Decoding is what takes time, so what cannot hold the phrase is left out first: from a table of the text of every id, it is
seen at the speed of memory where two tokens in a row could begin it, and only there the tokens are decoded. Where a
tokenizer's texts do not simply follow one another, all tokens are decoded.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.store import Store
from tokenstore.views.decoding import BROKEN, Decoder
from tokenstore.views.search_tokens import Hit, Parts, parts_of

_BLOCK = 1 << 20  # tokens held against the table together
_WINDOW = 4096  # tokens decoded together
_MARGIN = (
    16  # tokens decoded before and after a place: a character may need several, a first token may decode otherwise
)
_MOST_CHARACTERS = 63  # of the phrase that the table looks at: a bit each
_ALL, _WHOLE = np.uint64(2**64 - 1), np.uint64(1)
_PROBE = 2048  # tokens on which the table is tried

Window = tuple[int, int]


def documents_with_text(
    store: Store,
    decoder: Decoder,
    phrase: str,
    documents: range | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Hit]:
    """Every document whose text, special tokens shown, holds `phrase`, in order, lazily; the first place in each.

    Args:
        store: an opened store.
        decoder: that of the store.
        phrase: at least one character; upper and lower case differ.
        documents: look only at these; left out: at all.
        progress: told (tokens done, tokens to look at).
    Raises: ConfigError: no phrase, documents that are not there, or a store whose text cannot be had.
    """
    if not phrase:
        raise ConfigError("search: expected a phrase, found none; give at least one character")
    if decoder.problem is not None:
        raise ConfigError(f"search: expected a store that can be decoded, found {decoder.problem}; use --search-tokens")
    return _Search(store, decoder, phrase).hits(parts_of(store, documents), progress)


class _Search:
    """One phrase in one store."""

    def __init__(self, store: Store, decoder: Decoder, phrase: str):
        self.store, self.decoder, self.phrase = store, decoder, phrase
        self.starts = store.boundaries()[: len(store) + 1]
        # a token holds at least a byte, so the phrase has at most so many
        self.margin = len(phrase.encode("utf-8", "surrogatepass")) + _MARGIN

    def hits(self, parts: Parts, progress: Callable[[int, int], None]) -> Iterator[Hit]:
        table, done = self.table(), 0
        for number, first, low, high in parts.shards:
            tokens = self.store.shard(number)[low:high]
            behind = 0  # of the document found last
            for block in range(0, tokens.size, _BLOCK):
                for window in self.windows(tokens, block, min(block + _BLOCK, tokens.size), table):
                    for hit in self.hits_in(tokens, first + low, max(window[0], behind), window[1]):
                        yield hit
                        behind = int(self.starts[hit.document + 1]) - first - low
                done += min(_BLOCK, tokens.size - block)
                progress(done, parts.num_tokens)

    def table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Which ids may begin the phrase and which may go on with it; None where texts do not follow one another."""
        texts = self.decoder.texts
        if texts is None:
            return None
        some = self.store.shard(0)[:_PROBE]
        known = [texts[min(id, len(texts) - 1)] or BROKEN for id in some.tolist()]
        runs = np.flatnonzero(np.array([BROKEN in text for text in known]))
        for low, high in zip([0, *(runs + 1).tolist()], [*runs.tolist(), some.size], strict=True):
            joined = "".join(known[low:high])
            if self.decoder.text(some[low:high]).replace(" ", "") != joined.replace(" ", ""):
                return None
        return candidates(texts, self.phrase[:_MOST_CHARACTERS])

    def windows(
        self, tokens: np.ndarray, first: int, stop: int, table: tuple[np.ndarray, np.ndarray] | None
    ) -> Iterator[Window]:
        """Parts of tokens[first:stop] that may hold a beginning of the phrase, with what is needed around them."""
        if table is None:
            spans: Sequence[Window] = [(first, stop)]
        else:
            begins, goes_on = table
            after = goes_on.take(tokens[first + 1 : stop + 1], mode="clip")
            after = np.append(after, np.ones(stop - first - after.size, np.uint64))  # nothing comes behind the last one
            spans = _joined(first + np.flatnonzero(begins.take(tokens[first:stop], mode="clip") & after), self.margin)
        for low, high in spans:
            for at in range(low, high, _WINDOW):
                yield max(at - _MARGIN, 0), min(min(at + _WINDOW, high) + self.margin, tokens.size)

    def hits_in(self, tokens: np.ndarray, first: int, low: int, high: int) -> Iterator[Hit]:
        """Hits in tokens[low:high], of which the first is token `first` + low of the stream."""
        while low < high:
            ids = tokens[low:high]
            at = self.decoder.text(ids).find(self.phrase)
            if at < 0:
                return
            start, stop = self.tokens_of(ids, at)
            hit = self.checked(first + low + start, first + low + stop)
            if hit is None:
                low += start + 1
                continue
            yield hit
            low = int(self.starts[hit.document + 1]) - first

    def tokens_of(self, ids: np.ndarray, at: int) -> tuple[int, int]:
        """The tokens [start, stop) that hold characters at, at + 1, ... of the phrase in the text of `ids`."""

        def before(n: int) -> bool:
            return len(self.decoder.text(ids[:n])) <= at

        found = _last(before, 0, len(ids))
        # a character that is cut may count as several, so that this may be inside of one that comes before the phrase
        start = max(n for n in range(found, min(found + _MARGIN, len(ids)) + 1) if before(n))
        end = at + len(self.phrase)
        stop = 1 + _last(lambda n: len(self.decoder.text(ids[:n]).rstrip(BROKEN)) < end, start, len(ids))
        return start, min(stop, len(ids))

    def checked(self, start: int, stop: int) -> Hit | None:
        """Tokens of the stream as a hit, if they lie in one document and hold the phrase there too."""
        document = min(max(int(np.searchsorted(self.starts, start, side="right")) - 1, 0), len(self.store) - 1)
        first = int(self.starts[document])
        tokens = self.store[document]
        if not 0 <= start - first < stop - first <= tokens.size:
            return None
        around = tokens[max(start - first - _MARGIN, 0) : stop - first + _MARGIN]
        return Hit(document, start - first, stop - first) if self.phrase in self.decoder.text(around) else None


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last n in low..high of which `holds(n)`, which is true of `low` and stays false once it is."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _joined(places: np.ndarray, margin: int) -> list[Window]:
    """[low, high) around rising places; those that lie near one another together."""
    if not places.size:
        return []
    breaks = np.flatnonzero(np.diff(places) > margin + _MARGIN) + 1
    return [(int(some[0]), int(some[-1]) + 1) for some in np.split(places, breaks)]


def candidates(texts: Sequence[str | None], phrase: str) -> tuple[np.ndarray, np.ndarray]:
    """uint64[ids] twice: where two tokens in a row share a bit of the first and the second, `phrase` may begin.

    Bit 0 of the first: the token holds the phrase whole; of the second: always. Bit k of the first: the token ends with
    the phrase's first k characters; of the second: what it holds is what follows them, as far as both go.
    """
    begins, goes_on = np.zeros(len(texts), np.uint64), np.ones(len(texts), np.uint64)
    split = not phrase.isascii()  # its characters may be, among several tokens
    ends_at = {c: [k + 1 for k in range(len(phrase) - 1) if phrase[k] == c] for c in phrase}
    starts_at = {c: [k for k in range(1, len(phrase)) if phrase[k] == c] for c in phrase}
    for id, text in enumerate(texts):
        if not text or (split and BROKEN in text):
            begins[id], goes_on[id] = _ALL if text is None or phrase in text else _ALL - _WHOLE, _ALL
            continue
        if text[-1] in ends_at:
            begins[id] = sum(1 << k for k in ends_at[text[-1]] if text.endswith(phrase[:k]))
        for each in (
            (text, text[1:]) if text[0] == " " else (text,)
        ):  # some decoders take that space away after a special token
            ks = starts_at.get(each[:1], ())
            goes_on[id] |= np.uint64(
                sum(1 << k for k in ks if phrase.startswith(each, k) or each.startswith(phrase[k:]))
            )
        if phrase in text:
            begins[id] |= _WHOLE
    return begins, goes_on
