"""Pieces of documents in the sequences of a run, as `Plan.documents` and `Plan.sequence` return them."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenstore.batches.spans import DOCUMENT, DOCUMENT_START, LENGTH, SPAN_STORE, START


class Piece(NamedTuple):
    """Tokens [start, stop) of document `document` of a source."""

    source: str
    document: int
    start: int
    stop: int


class SequenceInfo(NamedTuple):
    """A sequence of a run: row `row` of `step`, or in other words sequence `number` of `source`, in its pass `epoch`.

    The pieces of documents are in the order of the row. `source`, `number` and `epoch` are None for a row of padding.
    """

    step: int
    row: int
    source: str | None
    number: int | None
    epoch: int | None
    pieces: tuple[Piece, ...]


def piece_of(names: Sequence[str], span: Sequence[int]) -> Piece:
    """The piece of a span: int[SPAN_COLUMNS] as a list. names: of the sources with a path."""
    start = span[START] - span[DOCUMENT_START]
    return Piece(names[span[SPAN_STORE]], span[DOCUMENT], start, start + span[LENGTH])
