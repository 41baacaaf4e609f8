"""Ids -> text, whatever the ids: a store may hold some that its tokenizer cannot decode, or name none that can be had."""

from collections.abc import Iterator
from functools import cached_property
from typing import Self

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.store import Store
from tokenstore.tokenizer import Tokenizer
from tokenstore.tokenizer.guards import is_panic

BROKEN = "\ufffd"  # what a decoder makes of a part of a character
_MOST_PARTS = 8  # tokens that may be needed for one character; more are no text
_CONTEXT = 16  # tokens decoded together with the next one: some decoders treat the first one otherwise
_MOST_TEXTS = 1 << 21  # ids whose texts are worth a table


class Decoder:
    """Decodes ids of one tokenizer; an id without text becomes `<id>`.

    Attributes:
        problem: why there is no text at all; None where there is.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, problem: str | None = None):
        self._tokenizer, self._vocab_size, self.problem = tokenizer, vocab_size, problem

    @classmethod
    def of(cls, store: Store) -> Self:
        """By the store's own tokenizer; where that cannot be loaded, `problem` says why."""
        try:
            return cls(store.tokenizer, store.vocab_size)
        except TokenStoreError as error:
            return cls(None, store.vocab_size, str(error))

    def text(self, ids: np.ndarray) -> str:
        """Text of integer ids, special tokens shown; no error for any ids."""
        if self._tokenizer is not None:
            try:
                return self._tokenizer.decode(ids)
            except Exception as error:
                if is_panic(error.__cause__):  # it prints lines of its own, and would do so for every id
                    self._tokenizer, self.problem = None, str(error)
                if len(ids) > 1:
                    return "".join(self.text(ids[i : i + 1]) for i in range(len(ids)))
        return "".join(f"<{i}>" for i in np.asarray(ids).tolist())

    def cut(self, ids: np.ndarray) -> Iterator[tuple[int, int, str]]:
        """(start, stop, text): the tokens' texts, which joined are that of all. Tokens that share a character come together."""
        anchor = first = 0
        told = ""  # text of ids[anchor:first]
        for stop in range(1, len(ids) + 1):
            text = self.text(ids[anchor:stop])
            may_wait = stop < len(ids) and stop - first < _MOST_PARTS
            if may_wait and (text.endswith(BROKEN) or not text.startswith(told)):
                continue
            yield first, stop, text[len(told) :]
            told = text
            if stop - anchor >= _CONTEXT:
                anchor, told = first, self.text(ids[first:stop])
            first = stop

    @cached_property
    def texts(self) -> list[str | None] | None:
        """The text every id adds behind another one, with BROKEN for parts of characters; None where it changes that one.

        The whole is None where there is no text, or the vocabulary is too large for a table.
        """
        letter = next((i for i in range(min(self._vocab_size, 1000)) if self._is_letter(i)), None)
        if self._tokenizer is None or letter is None or self._vocab_size > _MOST_TEXTS:
            return None
        before = self.text(np.array([letter]))
        pairs = np.stack([np.full(self._vocab_size, letter), np.arange(self._vocab_size)], axis=1)
        return [_added(before, self.text(pair)) for pair in pairs]

    def _is_letter(self, number: int) -> bool:
        text = self.text(np.array([number]))
        return len(text) == 1 and text.isascii() and text.isalpha()


def _added(before: str, text: str) -> str | None:
    return text[len(before) :] if text.startswith(before) else None
