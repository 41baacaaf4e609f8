"""The fast engine, gigatoken: exact, or not used. Part of its results is checked against the reference."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tokenstore.errors import BuildError, ConfigError, how_to_install
from tokenstore.tokenizer import FAST, EngineMismatch, Tokenizer
from tokenstore.tokenizer.byte_spans import spans_of_bytes
from tokenstore.tokenizer.characters import UNTRUSTED, choose_sample, kind_table, kinds_of
from tokenstore.tokenizer.checks import Checks
from tokenstore.tokenizer.fast_engine import FastFile, Unsuitable, fast_file
from tokenstore.tokenizer.guards import is_failure
from tokenstore.tokenizer.guards import reason as first_line
from tokenstore.tokenizer.long_texts import pieces_of
from tokenstore.tokenizer.request import Request
from tokenstore.tokenizer.self_test import self_test_texts
from tokenstore.tokenizer.token_bytes import TokenBytes, bytes_of_tokens

_SHARE, _FIRST_SHARE = 200, 10  # one character in 200 is checked; one in 10 in the first batch of a source
_FEWEST_CHARS = 1 << 9  # besides, in each batch
# After this many characters of one kind in a source, that kind is checked in one batch of eight. At one in 200 throughout, checks
# took two thirds as long as the engine. A kind that first appears in the middle of a source is checked like a new source.
_FAMILIAR_CHARS, _PAUSE = 1 << 26, 8
_LONGEST_COMPARED = 1 << 14  # characters; spans of longer texts are not compared
_PIECE = 1 << 10  # characters of a text, when only those pieces go to the reference that need it
_LOADED_BYTES = 1 << 30  # it caches every word it has seen, so it is loaded again after this many bytes


def with_fast_engine(reference: Tokenizer, request: Request, engine: str, spans: bool = False) -> Tokenizer:
    """`reference` accelerated by gigatoken. If that is not possible, `reference` with a note, or a ConfigError for `fast`.

    With `spans` it is possible only if tokens consist of the bytes of their text, because the spans are computed from them.
    """
    try:
        file = fast_file(reference, request)
        token_bytes = bytes_of_tokens(reference, file.json) if spans else ()
        if token_bytes is None:
            raise Unsuitable("it does not give the characters of each token, which loss masks need")
        tokenizer = FastTokenizer(reference, file, token_bytes)
        tokenizer.self_test()
        return tokenizer
    except ModuleNotFoundError as error:
        reason = f"the fast engine is not installed ({error.name} is missing); {how_to_install('fast')}"
    except (Unsuitable, EngineMismatch, BuildError) as error:
        reason = f"gigatoken: {error}"
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = f"gigatoken cannot load it: {first_line(error)}"
    if engine == FAST:
        raise ConfigError(f"tokenizer engine: fast cannot be used: {reason}; use auto or reference")
    reference.engine_note = reason
    return reference


class FastTokenizer:
    """A tokenizer whose batches are encoded by gigatoken, on the calling thread alone.

    Texts that gigatoken may encode differently go to `reference`. Part of every batch is compared with the reference; of a long
    source whose text stays of the same kinds, part of one batch in eight. Any difference, failure or panic raises EngineMismatch:
    the work must then be done again with `reference`.

    Attributes:
        checks: the comparisons. Within `checks.aside()` they happen on another thread and are complete after
            `checks.settle()`; otherwise each batch is compared before `encode_batch` returns.
    """

    engine, engine_note = "gigatoken", ""

    def __init__(self, reference: Tokenizer, file: FastFile, token_bytes: Sequence[bytes] = ()):
        self.reference = reference
        self._file = file
        self._apart = file.apart_pattern()
        self._table = kind_table(file.nfc)
        self._token_bytes = TokenBytes(token_bytes)
        self._engine = file.load()
        self.checks = Checks(self._compare)
        self._bytes = self._turn = 0
        self._first = True
        self._due = 0  # at most 0: how many characters more were checked in this source than its share
        self._seen = np.zeros(UNTRUSTED, np.int64)  # characters of each kind in this source
        self.kind, self.data, self.file_name = reference.kind, reference.data, reference.file_name
        self.file: Path | None = reference.file
        self.vocab_size, self.special_tokens = reference.vocab_size, reference.special_tokens
        self.eos_id, self.bos_id, self.pad_id = reference.eos_id, reference.bos_id, reference.pad_id
        self.token_names: Mapping[str, str] = reference.token_names
        self.chat_template, self.eos_note = reference.chat_template, reference.eos_note
        self.engine_version = f"{version('gigatoken')} ({reference.engine} {reference.engine_version})"

    def start_source(self) -> None:
        """Mark the next batch as the first of a new source: more of it is checked."""
        self._first, self._due = True, 0
        self._seen[:] = 0

    def self_test(self) -> None:
        """EngineMismatch if one of a fixed set of texts, or one with the tokenizer's special strings, is encoded differently."""
        texts = self_test_texts([*self.reference.special_tokens, *self._file.strings])
        kinds = self._kinds(texts, _encoded(texts))
        texts = [texts[i] for i in np.flatnonzero(kinds != UNTRUSTED)]
        ids, offsets = self._run(_encoded(texts))
        self._compare(texts, np.split(ids, offsets[1:-1]))

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        encoded = _encoded(texts)
        kinds = self._kinds(texts, encoded)
        if not (kinds == UNTRUSTED).any() or not getattr(self.reference, "can_be_cut", False):
            return self._encode(texts, encoded, kinds)
        pieces, firsts = _cut(texts, kinds)
        encoded = _encoded(pieces)
        ids, lengths = self._encode(pieces, encoded, self._kinds(pieces, encoded))
        return ids, np.add.reduceat(lengths, firsts)

    def encode_batch_with_end(self, texts: Sequence[str], end: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Like `encode_batch`, with the token `end` after every text. None if it would have to be inserted.

        `end` takes the place of the separator of joined texts. Removing that and inserting `end` takes a fifth of the engine's time.
        """
        if self._file.separator is None:
            return None
        encoded = _encoded(texts)
        kinds = self._kinds(texts, encoded)
        if (kinds == UNTRUSTED).any():
            return None
        return self._checked(texts, encoded, kinds, end)

    def _encode(
        self, texts: Sequence[str], encoded: Sequence[bytes], kinds: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        apart = kinds == UNTRUSTED
        if not apart.any():
            return self._checked(texts, encoded, kinds)
        there_at, here_at = np.flatnonzero(apart).tolist(), np.flatnonzero(~apart).tolist()
        lengths = np.empty(len(texts), np.int64)
        there, lengths[apart] = self.reference.encode_batch([texts[i] for i in there_at])
        here, lengths[~apart] = self._checked([texts[i] for i in here_at], [encoded[i] for i in here_at], kinds[~apart])
        owner = np.repeat(apart, lengths)
        ids = np.empty(owner.size, np.uint32)
        ids[owner], ids[~owner] = there, here
        return ids, lengths

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        return self.reference.encode_with_spans(text)

    def encode_batch_with_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `Tokenizer`. Spans come from the bytes of the tokens if these are the bytes of the texts, otherwise from the reference.

        One text of every batch is compared with the reference.
        """
        ids, lengths = self.encode_batch(texts)
        if texts and len(texts[at := self._turn % len(texts)]) <= _LONGEST_COMPARED:
            stop = int(lengths[: at + 1].sum())
            self._compare_spans(texts[at], ids[stop - int(lengths[at]) : stop])
        return ids, lengths, self._spans(texts, ids, lengths)

    def _spans(self, texts: Sequence[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int64[n, 2], in characters of the concatenated texts."""
        text = "".join(texts)
        if (sizes := self._token_bytes.sizes_if_same(ids, text.encode())) is not None:
            spans = spans_of_bytes(text, sizes)
            some = lengths > 0
            if np.array_equal(spans[np.cumsum(lengths)[some] - 1, 1], np.cumsum([len(one) for one in texts])[some]):
                return spans
        if len(texts) == 1:  # a text that is normalized, for one
            return self.reference.encode_with_spans(text)[1]
        found, first, at = [np.empty((0, 2), np.int64)], 0, 0
        for one, length in zip(texts, lengths.tolist(), strict=True):
            found.append(self._spans([one], ids[at : at + length], np.array([length])) + first)
            first, at = first + len(one), at + length
        return np.concatenate(found)

    def _compare_spans(self, text: str, ids: np.ndarray) -> None:
        there, spans = self.reference.encode_with_spans(text)
        if not (np.array_equal(ids, there) and np.array_equal(self._spans([text], ids, np.array([ids.size])), spans)):
            raise EngineMismatch(
                _excerpt(text), f"gigatoken and {self.reference.engine} differ in tokens or their characters"
            )

    def decode(self, ids: np.ndarray) -> str:
        """See `Tokenizer`."""
        return self.reference.decode(ids)

    def _kinds(self, texts: Sequence[str], encoded: Sequence[bytes]) -> np.ndarray:
        kinds = kinds_of(encoded, self._table)
        if self._apart is not None:
            kinds[[self._apart.search(text) is not None for text in texts]] = UNTRUSTED
        return kinds

    def _checked(
        self, texts: Sequence[str], encoded: Sequence[bytes], kinds: np.ndarray, end: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if not texts:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        whole, pieces = self._sample(texts, kinds)
        ids, offsets = self._run([*encoded, *_encoded(pieces)], end)
        rows = np.array([*whole, *range(len(texts), len(texts) + len(pieces))], np.intp)
        starts, stops = offsets[rows].tolist(), (offsets[rows + 1] - (end is not None)).tolist()
        found = [ids[start:stop] for start, stop in zip(starts, stops, strict=True)]
        self.checks.add([*(texts[i] for i in whole), *pieces], found)
        if found and (self._seen >= _FAMILIAR_CHARS).any():
            self.checks.start()  # the next samples come many batches later
        return ids[: offsets[len(texts)]], np.diff(offsets[: len(texts) + 1])

    def _sample(self, texts: Sequence[str], kinds: np.ndarray) -> tuple[list[int], list[str]]:
        """Choose texts of a batch to check: indices of whole texts, and pieces; see `choose_sample`."""
        share = _FIRST_SHARE if self._first else _SHARE
        checked = np.flatnonzero((self._seen < _FAMILIAR_CHARS)[kinds] | (self._turn % _PAUSE == 0))
        self._seen += np.bincount(kinds, np.fromiter(map(len, texts), np.int64, len(texts)), UNTRUSTED).astype(np.int64)
        some = [texts[i] for i in checked.tolist()]
        self._due += sum(map(len, some)) // share + _FEWEST_CHARS
        whole, pieces = choose_sample(some, kinds[checked], self._due, self._turn)
        self._due = min(0, self._due - sum(len(some[i]) for i in whole) - sum(map(len, pieces)))
        self._first = False
        self._turn += 1
        return checked[whole].tolist(), pieces

    def _run(self, encoded: Sequence[bytes], end: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n] and offsets int64[len(encoded) + 1] into them, as gigatoken gives them, each text with `end` if given."""
        try:
            if self._bytes > _LOADED_BYTES:
                self._engine, self._bytes = self._file.load(), 0
            self._bytes += sum(map(len, encoded))
            ids, offsets = self._file.encode(self._engine, encoded, end)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise EngineMismatch(_excerpt(encoded[0].decode()), f"gigatoken failed with {error}") from error
        if offsets.size != len(encoded) + 1 or offsets[0] != 0 or offsets[-1] != ids.size or ids.dtype != np.uint32:
            found = f"gigatoken gave {offsets.size - 1} of {len(encoded)} documents"
            raise EngineMismatch(_excerpt(encoded[0].decode()), found)
        return ids, offsets

    def _compare(self, texts: Sequence[str], found: Sequence[np.ndarray]) -> None:
        ids, lengths = self.reference.encode_batch(texts)
        stops = np.cumsum(lengths)
        for text, part, start, stop in zip(texts, found, stops - lengths, stops, strict=True):
            if not np.array_equal(part, ids[start:stop]):
                at = _first_difference(part, ids[start:stop])
                raise EngineMismatch(
                    _excerpt(text),
                    f"gigatoken and {self.reference.engine} encode a text differently from token {at} on",
                )


def _encoded(texts: Sequence[str]) -> list[bytes]:
    """UTF-8, of surrogates too: texts that have them are untrusted, so the engine never gets them."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def _cut(texts: Sequence[str], kinds: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Untrusted texts in pieces, most of which are not, and the other texts; int64[len(texts)], the first piece of each."""
    pieces: list[str] = []
    firsts = np.empty(len(texts), np.int64)
    for i, text in enumerate(texts):
        firsts[i] = len(pieces)
        pieces += pieces_of(text, _PIECE) if kinds[i] == UNTRUSTED else [text]
    return pieces, firsts


def _first_difference(left: np.ndarray, right: np.ndarray) -> int:
    shared = min(left.size, right.size)
    return int(np.append(left[:shared] != right[:shared], True).argmax())


def _excerpt(text: str) -> str:
    return text[:60]
