"""Goes through the tokens of a shard once: finds documents, the range of the ids, and the end-of-text tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenstore.errors import BuildError
from tokenstore.foreign.cuts import NOTHING, Cut, Cutter, EosCut


@dataclass
class Tally:
    """Counts of all shards so far.

    Attributes:
        tokens, documents: numbers of them.
        empty: documents of an index without tokens, which are dropped.
        low, high: smallest and largest token id.
        eos: end-of-text tokens.
        ended: documents whose last token is the end-of-text token.
        started: documents whose first token is.
        open_files: files whose last token is not the end-of-text token.
        after_eos: tokens after the last end-of-text token of each file: what a reader that only looks for it would lose.
    """

    tokens: int = 0
    documents: int = 0
    empty: int = 0
    low: int = 1 << 62
    high: int = -1
    eos: int = 0
    ended: int = 0
    started: int = 0
    open_files: int = 0
    after_eos: int = 0


class Ids(NamedTuple):
    """The size of the vocabulary, and the end-of-text token; None if it is not known."""

    vocab_size: int
    eos_id: int | None


class Scan:
    """One pass over the tokens of a file, or of several that are joined.

    Attributes:
        path: the file that is read now, for messages.
    """

    def __init__(self, cutter: Cutter, ids: Ids, tally: Tally, path: Path):
        """Cut with `cutter`, and add to `tally`."""
        self._cutter, self._tally, self.path = cutter, tally, path
        self._vocab_size, self._eos_id = ids
        self._at = 0  # position of the next token
        self._last_is_eos = False
        self._next_is_start = True
        self._after_eos = 0

    def see(self, block: np.ndarray) -> Cut:
        """Count the next tokens, unsigned integers[n], n >= 1. Returns the documents that end in them.

        Raises:
            BuildError: an id is outside the vocabulary.
        """
        tally, first, stop = self._tally, self._at, self._at + block.size
        high = int(block.max())
        if high >= self._vocab_size:
            raise BuildError(
                f"token {first + int(block.argmax())}: expected an id below {self._vocab_size:,}, found {high:,} ({self.path}); the"
                " tokenizer or --vocab-size is not that of the file, or --dtype is wrong"
            )
        tally.low, tally.high = min(tally.low, int(block.min())), max(tally.high, high)
        is_eos = NOTHING if self._eos_id is None else block == self._eos_id
        eos = np.flatnonzero(is_eos)
        cut = self._cutter.take(first, stop, first + eos)
        if self._eos_id is not None:
            self._count_eos(is_eos, eos, cut.ends - first)
        tally.tokens += block.size
        tally.documents += cut.ends.size
        self._next_is_start = bool(cut.ends.size) and int(cut.ends[-1]) == stop
        self._at = stop
        return cut

    def _count_eos(self, is_eos: np.ndarray, eos: np.ndarray, ends: np.ndarray) -> None:
        """Count documents by their first and last token. Positions are those in the block.

        Args:
            is_eos: bool[n], which tokens of the block are the end-of-text token.
            eos: positions of these.
            ends: of the documents that end in the block, in 0..n.
        """
        tally = self._tally
        inside = ends[ends > 0]
        tally.ended += int(np.count_nonzero(is_eos[inside - 1]))
        tally.ended += int(inside.size < ends.size and self._last_is_eos)
        tally.started += int(np.count_nonzero(is_eos[ends[ends < is_eos.size]]))
        tally.started += int(self._next_is_start and is_eos[0])
        self._last_is_eos = bool(is_eos[-1])
        tally.eos += eos.size
        self._after_eos = is_eos.size - 1 - int(eos[-1]) if eos.size else self._after_eos + is_eos.size

    @property
    def last_is_eos(self) -> bool:
        """Whether the last token seen is the end-of-text token."""
        return self._last_is_eos

    def end_document(self, cutter: EosCut) -> Cut:
        """End the document at the end of what was seen, which a cut before the end-of-text token would notice later."""
        cut = cutter.end(self._at)
        if cut.ends.size:
            self._tally.documents += 1
            self._tally.ended += self._last_is_eos
            self._next_is_start = True
        return cut

    def end_of_file(self) -> None:
        """Count what follows the last end-of-text token of a file."""
        if self._eos_id is not None:
            self._tally.open_files += not self._last_is_eos
            self._tally.after_eos += self._after_eos
        self._after_eos = 0
