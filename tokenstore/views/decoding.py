"""Token ids to text. Never fails: a store may hold ids that its tokenizer cannot decode, or name a tokenizer that is missing."""

from collections.abc import Iterator
from typing import Self

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.store import Store
from tokenstore.tokenizer import Tokenizer
from tokenstore.tokenizer.guards import is_panic

BROKEN = "\ufffd"  # what decoders return for an incomplete character
_MOST_PARTS = 8  # tokens that one character may need; more are not text
_CONTEXT = 16  # preceding tokens that are decoded too: some decoders treat the first token differently


class Decoder:
    """Decodes ids with one tokenizer. An id without text becomes `<id>`.

    Attributes:
        problem: why nothing can be decoded; None if it can.

    Example:
        >>> decoder = Decoder.of(open_store("stores/web"))
        >>> decoder.text(store[0])
    """

    def __init__(self, tokenizer: Tokenizer | None, problem: str | None = None):
        """Use `tokenizer`; without one, `problem` says why."""
        self._tokenizer, self.problem = tokenizer, problem

    @classmethod
    def of(cls, store: Store) -> Self:
        """Use the store's tokenizer. If it cannot be loaded, `problem` says why."""
        if store.manifest.tokenizer.kind == "none":
            return cls(None, f"the tokenizer is not known, so tokens are shown as ids ({store.path})")
        try:
            return cls(store.tokenizer)
        except TokenStoreError as error:
            return cls(None, str(error))

    def text(self, ids: np.ndarray) -> str:
        """The text of integer ids[n], with special tokens. Raises no error for any ids."""
        if self._tokenizer is not None:
            try:
                return self._tokenizer.decode(ids)
            except Exception as error:
                if is_panic(error.__cause__):  # the library prints to stderr, and would for every id: stop using it
                    self._tokenizer, self.problem = None, str(error)
                if len(ids) > 1:
                    return "".join(self.text(ids[i : i + 1]) for i in range(len(ids)))
        return "".join(f"<{i}>" for i in np.asarray(ids).tolist())

    def cut(self, ids: np.ndarray) -> Iterator[tuple[int, int, str]]:
        """Yield (start, stop, text) for each token of ids[n]; tokens that share a character form one item.

        The texts, joined, are the text of all ids.
        """
        anchor = first = 0
        decoded = ""  # text of ids[anchor:first]
        for stop in range(1, len(ids) + 1):
            text = self.text(ids[anchor:stop])
            may_wait = stop < len(ids) and stop - first < _MOST_PARTS
            if may_wait and (text.endswith(BROKEN) or not text.startswith(decoded)):
                continue
            yield first, stop, text[len(decoded) :]
            decoded = text
            if stop - anchor >= _CONTEXT:
                anchor, decoded = first, self.text(ids[first:stop])
            first = stop
