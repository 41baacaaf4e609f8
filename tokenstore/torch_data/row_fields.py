"""Fields of a batch that Python computes: a few values per row, piece or source, and weights. `formats` describes them."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from tokenstore.batches.planned import PlannedRows
from tokenstore.batches.sampler import Sampler
from tokenstore.batches.spans import LENGTH, SPAN_STORE
from tokenstore.order.sequence_ids import SequenceIds


class Rows:
    """What is known about a microbatch besides its tokens. One object serves all microbatches of a BatchMaker.

    Attributes:
        length: L.
        align: pieces begin at multiples of it.
        max_documents: see `formats`. None: no fixed size.
        loss_weights: float32[S], the loss weight of each source with a path, by name.
        planned: the rows of the current microbatch, which the sampler copied last.
        loss_mask: float32[B, L], whether each token has a target; set if a field is in MASKED.
    """

    planned: PlannedRows
    loss_mask: np.ndarray

    def __init__(
        self,
        sampler: Sampler,
        length: int,
        align: int,
        max_documents: int | None,
        loss_weights: np.ndarray,
        sequence_ids: SequenceIds,
    ):
        self._sampler, self._sequence_ids = sampler, sequence_ids
        self.length, self.align, self.max_documents, self.loss_weights = length, align, max_documents, loss_weights

    @property
    def sources(self) -> np.ndarray:
        """int64[B], the source of each row. A view."""
        return self.planned.rows[:, 0]

    @property
    def borders(self) -> np.ndarray:
        """int32[n + 1], where pieces and padding start in the concatenated rows, and B * L. With alignment only pieces:
        padding belongs to the piece before it. A view of memory that the next microbatch uses again.
        """
        return self._sampler.borders

    @property
    def piece_tokens(self) -> np.ndarray | None:
        """int32[n], with alignment, the tokens of each piece without its padding, as a view. Otherwise None."""
        return self._sampler.piece_tokens

    @property
    def longest(self) -> int:
        """Tokens in the longest piece; padding counts as a piece."""
        return self._sampler.longest

    def costs(self) -> np.ndarray:
        """int64[B], the cost of each row."""
        return self._sampler.costs(self.planned.rows)

    def ids(self) -> np.ndarray:
        """int64[B], the global number of each row."""
        return self._sequence_ids.of(self.planned.rows)

    def spans(self) -> list[np.ndarray]:
        """The spans of each row, int64[n, SPAN_COLUMNS]."""
        return self.planned.row_spans()


Derived = Callable[[Rows], np.ndarray | int]  # computes a field with a few values per row or piece


def cu_seqlens_padded(rows: Rows) -> np.ndarray:
    """int32[n + 1]: where pieces start, with their padding."""
    return _filled(rows.borders, rows.max_documents)


def cu_seqlens(rows: Rows) -> np.ndarray:
    """int32[n + 1]: where pieces start, without padding inside rows."""
    return _filled(_sums(rows.borders, rows.piece_tokens), rows.max_documents)


def max_seqlen(rows: Rows) -> int:
    """The longest piece; with `max_documents`, L."""
    if rows.max_documents is not None:
        return rows.length
    return rows.longest if rows.piece_tokens is None else int(np.diff(rows.borders).max())


def _sums(borders: np.ndarray, piece_tokens: np.ndarray | None) -> np.ndarray:
    """int32[n + 1]: with alignment, the tokens of all pieces before each piece, and of all pieces. Otherwise `borders`."""
    return borders if piece_tokens is None else np.append(np.int32(0), np.cumsum(piece_tokens, dtype=np.int32))


def _filled(borders: np.ndarray, most: int | None) -> np.ndarray:
    """A copy of `borders`; with `most`, int32[most + 1], padded with its last value."""
    if most is None:
        return borders.copy()
    if borders.size > most + 1:
        raise ValueError(
            f"max_documents: expected at least {borders.size - 1} for this batch, found {most};"
            " the number of tokens of a batch is always enough"
        )
    filled = np.full(most + 1, borders[-1], np.int32)
    filled[: borders.size] = borders
    return filled


def _row_borders(rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """For each row, its borders counted from its start, and the tokens of its pieces; see `Rows`."""
    ends = np.flatnonzero(rows.borders % rows.length == 0).tolist()  # every row starts with a border
    for first, stop in pairwise(ends):
        tokens = None if rows.piece_tokens is None else rows.piece_tokens[first:stop]
        yield rows.borders[first : stop + 1] - rows.borders[first], tokens


def cu_seqlens_of_rows(rows: Rows) -> np.ndarray:
    """int32[B, n + 1]: `cu_seqlens` of each row alone."""
    most = rows.length if rows.max_documents is None else rows.max_documents
    return np.stack([_filled(_sums(*row), most) for row in _row_borders(rows)])


def cu_seqlens_padded_of_rows(rows: Rows) -> np.ndarray:
    """int32[B, n + 1]: `cu_seqlens_padded` of each row alone."""
    most = rows.length if rows.max_documents is None else rows.max_documents
    return np.stack([_filled(borders, most) for borders, _ in _row_borders(rows)])


def max_seqlen_of_rows(rows: Rows) -> np.ndarray:
    """int32[B]: the longest piece of each row."""
    return np.array([np.diff(borders).max() for borders, _ in _row_borders(rows)], np.int32)


def attention_cost(rows: Rows) -> np.ndarray:
    """int64[B]: the cost of each row."""
    return rows.costs()


def source_ids(rows: Rows) -> np.ndarray:
    """int64[B]: a copy of the sources."""
    return rows.sources.copy()


def sequence_ids(rows: Rows) -> np.ndarray:
    """int64[B]: the global number of each row."""
    return rows.ids()


def source_tokens(rows: Rows) -> np.ndarray:
    """int64[S]: tokens of each source with a path."""
    counts = np.zeros(len(rows.loss_weights), np.int64)
    for spans in rows.spans():
        ends = np.minimum(
            np.cumsum(spans[:, LENGTH]), rows.length
        )  # targets across documents need a token after the row
        np.add.at(counts, spans[:, SPAN_STORE], np.diff(ends, prepend=0))
    return counts


def loss_weights(rows: Rows) -> np.ndarray:
    """float32[B, L]: the loss mask, with the loss weight of each token's source in place of 1."""
    weighted = rows.loss_mask.copy()
    if np.all(rows.loss_weights == 1):
        return weighted
    for row, spans in zip(weighted, rows.spans(), strict=True):
        stores, at = spans[:, SPAN_STORE], 0
        if len(spans) and np.all(stores == stores[0]):  # always, unless the row is of a pool
            row *= rows.loss_weights[stores[0]]
            continue
        for store, length in spans[:, [SPAN_STORE, LENGTH]].tolist():
            row[at : at + length] *= rows.loss_weights[store]
            at += -(-length // rows.align) * rows.align
    return weighted


def loss_weights_of_one_row(rows: Rows) -> np.ndarray:
    """float32[1, B * L]: `loss_weights`, with all rows in one."""
    return loss_weights(rows).reshape(1, -1)


MASKED = (loss_weights, loss_weights_of_one_row)  # fields that need the loss mask
# Fields that do not need the borders of pieces
WITHOUT_BORDERS = (source_ids, sequence_ids, source_tokens, attention_cost, *MASKED)
