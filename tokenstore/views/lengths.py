"""Lengths of a store's documents from the runs of its length index: no document is looked at."""

from dataclasses import dataclass

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.store import Store

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class LengthBin:
    """Documents of low..high tokens: how many, and their tokens together."""

    low: int
    high: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of documents, in tokens.

    Attributes:
        shortest, longest, mean: over documents.
        percentiles: {"50": n}: at least 50 % of the documents have at most n tokens.
        half_of_tokens: at least half of all tokens stand in documents of at most so many.
        distinct: how many lengths occur.
        bins: by powers of two, from the first to the last that is not empty.
    """

    shortest: int
    longest: int
    mean: float
    percentiles: dict[str, int]
    half_of_tokens: int
    distinct: int
    bins: tuple[LengthBin, ...]


def percentile_name(percent: str) -> str:
    """What a percentile is called: median, p95."""
    return "median" if percent == "50" else f"p{percent}"


def summarize_lengths(store: Store) -> Lengths | None:
    """Of a store with a length index; None for one without. Exact; O(distinct lengths)."""
    if not store.has_length_index:
        return None
    lengths, starts = store.runs().T
    upto = np.append(starts[1:], len(store))
    tokens = np.cumsum(lengths * np.diff(upto, prepend=0))
    ranks = {p: -(-len(store) * p // 100) for p in PERCENTILES}  # the document that many are no longer than
    return Lengths(
        shortest=int(lengths[0]),
        longest=int(lengths[-1]),
        mean=store.num_tokens / len(store),
        percentiles={str(p): int(lengths[np.searchsorted(upto, rank)]) for p, rank in ranks.items()},
        half_of_tokens=int(lengths[np.searchsorted(tokens, -(-store.num_tokens // 2))]),
        distinct=len(lengths),
        bins=_bins(lengths, upto, tokens),
    )


def _bins(lengths: np.ndarray, upto: np.ndarray, tokens: np.ndarray) -> tuple[LengthBin, ...]:
    """From running totals of documents and tokens, which begin with the shortest length."""
    powers = range(int(lengths[0]).bit_length() - 1, int(lengths[-1]).bit_length())
    ends = [int(np.searchsorted(lengths, 2 << power)) for power in powers]
    documents = np.diff([int(upto[end - 1]) for end in ends], prepend=0).tolist()
    sums = np.diff([int(tokens[end - 1]) for end in ends], prepend=0).tolist()
    rows = zip(powers, documents, sums, strict=True)
    return tuple(LengthBin(1 << power, (2 << power) - 1, count, total) for power, count, total in rows)


def largest_documents(store: Store, count: int) -> list[int]:
    """Numbers of the longest documents, the longest first; of equal ones the later first. [] without a length index."""
    if not store.has_length_index:
        return []
    numbers: list[int] = store.length_index()[-count:][::-1].tolist()
    if wrong := [number for number in numbers if not 0 <= number < len(store)]:
        raise CorruptionError(
            f"length index: expected numbers of {len(store)} documents, found {wrong[0]} ({store.file(LENGTH_INDEX_NAME)});"
            f" run `tokenstore verify {store.path}`"
        )
    return numbers
