"""Chooses the texts of a batch that are also given to the reference: some of every kind, and others in every batch."""

from collections.abc import Sequence

import numpy as np

_LONGEST, _PIECE = 4096, 1024  # characters; of a longer text only a piece is checked
_FEWEST_CHARS = 1 << 9


def choose(texts: Sequence[str], kinds: np.ndarray, share: int, turn: int) -> tuple[list[int], list[str]]:
    """Choose texts to check; deterministic.

    Args:
        texts: a batch.
        kinds: uint8[len(texts)], as returned by `kinds_of`.
        share: about one character in `share` is checked, and at least one text of every kind.
        turn: number of the batch.

    Returns:
        Indices of texts to check completely, and pieces of texts that are too long for that.
    """
    left = sum(map(len, texts)) // share + _FEWEST_CHARS
    whole: list[int] = []
    pieces: list[str] = []
    queues = [_in_turn(np.flatnonzero(kinds == kind), texts, turn) for kind in np.unique(kinds)]
    while left > 0 and (queues := [queue for queue in queues if queue]):
        for i in [queue.pop() for queue in queues]:
            text = texts[i] if len(texts[i]) <= _LONGEST else _piece(texts[i], turn)
            left -= len(text)
            if text is texts[i]:
                whole.append(i)
            else:
                pieces.append(text)
    return whole, pieces


def _in_turn(numbers: np.ndarray, texts: Sequence[str], turn: int) -> list[int]:
    """Indices of texts of one kind, to be popped from the end: the longest checked whole, the shortest, then by turn."""
    lengths = np.fromiter((len(texts[i]) for i in numbers), np.int64, numbers.size)
    longest, shortest = np.where(lengths <= _LONGEST, lengths, 0).argmax(), lengths.argmin()
    order = [longest, shortest, *np.roll(np.arange(numbers.size), -17 * turn)[:256]]
    chosen: list[int] = numbers[list(dict.fromkeys(order))].tolist()
    return chosen[::-1]


def _piece(text: str, turn: int) -> str:
    start = turn * 7919 * _PIECE % (len(text) - _PIECE + 1)
    return text[start : start + _PIECE]
