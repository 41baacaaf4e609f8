"""The check of `verify` of the tokens of a shard, on its bytes as they are read."""

from collections.abc import Iterator

import numpy as np

from tokenstore.format.layout import BOUNDARIES_NAME
from tokenstore.format.manifest import ShardEntry
from tokenstore.store.reader import Store
from tokenstore.store.verify_documents import Finding


class TokenCheck:
    """Every token must be in the vocabulary, and in a store with end-of-text tokens every document must end with one."""

    def __init__(self, store: Store, shard: ShardEntry, ends_known: bool):
        """`ends_known`: whether the boundaries are undamaged, so that the ends of documents can be checked."""
        self._store, self._shard = store, shard
        self._ends = self._last_tokens() if ends_known and store.manifest.ends_with_eos else np.empty(0, np.int64)
        self._rest = b""  # bytes of a token that has not arrived completely
        self._skip = shard.first_byte  # bytes of a header that have not arrived
        self._done = 0  # tokens checked
        self._wrong_ids: list[Finding] = []
        self._wrong_end: tuple[int, int] | None = None  # the first one, and its token
        self._num_wrong_ends = 0

    def _last_tokens(self) -> np.ndarray:
        """The last token of each document, as positions in the shard, in rising order; impossible ones are omitted."""
        shard = self._shard
        first, stop = shard.first_document + 1, shard.first_document + shard.num_documents + 1
        ends = self._store.part(self._store.number_of(BOUNDARIES_NAME))[first:stop] - shard.first_token - 1
        return np.sort(ends[(ends >= 0) & (ends < shard.num_tokens)])

    def update(self, data: bytes) -> None:
        """Check the next bytes of the file."""
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip, data = self._skip - skipped, data[skipped:]
        data = self._rest + data if self._rest else data
        size = len(data) // self._store.dtype.itemsize * self._store.dtype.itemsize
        tokens, self._rest = np.frombuffer(data, self._store.dtype, size // self._store.dtype.itemsize), data[size:]
        self._check_ids(tokens)
        self._check_ends(tokens)
        self._done += tokens.size

    def _check_ids(self, tokens: np.ndarray) -> None:
        wrong = np.flatnonzero(tokens >= self._store.vocab_size)
        if wrong.size:
            place = f"token {self._done + int(wrong[0])} (and {wrong.size - 1} more near it)"
            rule = f"an id below {self._store.vocab_size}"
            self._wrong_ids.append(Finding(self._shard.file, place, rule, f"{tokens[wrong[0]]}"))

    def _check_ends(self, tokens: np.ndarray) -> None:
        first, stop = np.searchsorted(self._ends, [self._done, self._done + tokens.size])
        ends = self._ends[first:stop] - self._done
        wrong = ends[tokens[ends] != self._store.manifest.tokenizer.eos_id]
        if wrong.size and self._wrong_end is None:
            self._wrong_end = self._done + int(wrong[0]), int(tokens[wrong[0]])
        self._num_wrong_ends += wrong.size

    def findings(self) -> Iterator[Finding]:
        """What is wrong, after all bytes have arrived."""
        yield from self._wrong_ids
        if self._wrong_end is not None:
            token, found = self._wrong_end
            rule = f"the end-of-text id {self._store.manifest.tokenizer.eos_id}"
            yield Finding(self._shard.file, f"token {token} (and {self._num_wrong_ends - 1} more)", rule, f"{found}")
