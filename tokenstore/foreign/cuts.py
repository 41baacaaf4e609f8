"""What divides the tokens of a shard into documents: the foreign index, the end-of-text token, or both."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenstore.foreign.reading import Documents

NOTHING = np.empty(0, np.int64)


class Cut(NamedTuple):
    """Documents that end in a block.

    Attributes:
        ends: int64[n], the position in the shard after the last token of each, strictly increasing.
        records: int64[n], number of each document in the foreign file, from 1.
        ids: n strings; None if the index has none.
    """

    ends: np.ndarray
    records: np.ndarray
    ids: list[str] | None = None


class IndexCut:
    """Cuts where the index says. Documents of 0 tokens are dropped; they keep their record number."""

    def __init__(self, documents: Iterator[Documents]):
        self._documents = documents
        self._pending = Cut(NOTHING, NOTHING, [])
        self._stop, self._records = 0, 0  # of the documents read so far: their tokens, their number

    def take(self, first: int, stop: int, eos: np.ndarray) -> Cut:
        """The documents that end in (first, stop]. `eos` is not used."""
        while self._stop < stop and (block := next(self._documents, None)) is not None:
            self._add(block)
        count = int(np.searchsorted(self._pending.ends, stop, side="right"))
        ends, records, ids = self._pending
        self._pending = Cut(ends[count:], records[count:], None if ids is None else ids[count:])
        return Cut(ends[:count], records[:count], None if ids is None else ids[:count])

    def _add(self, block: Documents) -> None:
        ends = self._stop + np.cumsum(block.lengths)
        kept = np.flatnonzero(block.lengths)
        records = self._records + 1 + kept
        old = self._pending
        ids = None if block.ids is None else [*(old.ids or ()), *(block.ids[i] for i in kept)]
        self._pending = Cut(np.append(old.ends, ends[kept]), np.append(old.records, records), ids)
        self._records += block.lengths.size
        self._stop = int(ends[-1])


class EosCut:
    """Cuts after each end-of-text token, or before it; and at the end of the file.

    Attributes:
        before: whether the end-of-text token is the first of a document.
    """

    def __init__(self, num_tokens: int, before: bool):
        self._num_tokens, self.before, self._records, self._last = num_tokens, before, 0, 0

    def take(self, first: int, stop: int, eos: np.ndarray) -> Cut:
        """The documents that end in (first, stop].

        A token before which a document ends is the first of the next block if the document ends at `stop`. So that document is
        returned with the next block, unless it is the last.

        Args:
            first: first position of the block in the shard.
            stop: its end.
            eos: int64[n], positions in the shard of the end-of-text tokens of the block.
        """
        ends = eos[eos > self._last] if self.before else eos + 1
        if stop == self._num_tokens and (ends.size == 0 or ends[-1] < stop) and self._last < stop:
            ends = np.append(ends, stop)
        return self._number(ends)

    def end(self, at: int) -> Cut:
        """End the document at a position where it certainly ends, if it has not ended there."""
        return self._number(np.array([at]) if at > self._last else NOTHING)

    def restart(self) -> None:
        """Number the next documents from 1 again: they are those of the next file."""
        self._records = 0

    def _number(self, ends: np.ndarray) -> Cut:
        records = self._records + 1 + np.arange(ends.size)
        self._records += ends.size
        self._last = int(ends[-1]) if ends.size else self._last
        return Cut(ends, records)


class BothCut:
    """Cuts where the index says and after each end-of-text token: for files that were shuffled in chunks."""

    def __init__(self, index: IndexCut, eos: EosCut):
        self._index, self._eos, self._records = index, eos, 0

    def take(self, first: int, stop: int, eos: np.ndarray) -> Cut:
        """The documents that end in (first, stop]."""
        ends = np.union1d(self._index.take(first, stop, eos).ends, self._eos.take(first, stop, eos).ends)
        records = self._records + 1 + np.arange(ends.size)
        self._records += ends.size
        return Cut(ends, records)


class FileCut:
    """Does not cut: a file is one document."""

    def __init__(self, num_tokens: int):
        self._num_tokens = num_tokens

    def take(self, first: int, stop: int, eos: np.ndarray) -> Cut:
        """The document, with the last block."""
        last = np.array([stop]) if stop == self._num_tokens else NOTHING
        return Cut(last, np.ones(last.size, np.int64))


Cutter = IndexCut | EosCut | BothCut | FileCut
