"""Document lengths of a store, from the runs of its length index: no document is read."""

from dataclasses import dataclass

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.store import Store

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class LengthBin:
    """Documents of low to high tokens, both included: their number and their tokens."""

    low: int
    high: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of documents, in tokens.

    Attributes:
        shortest: length of the shortest document.
        longest: length of the longest document.
        mean: mean length.
        percentiles: {"50": n} means that at least 50 % of the documents have at most n tokens.
        half_of_tokens: documents of at most this length hold at least half of all tokens.
        distinct: number of distinct lengths.
        bins: powers of two, from the first to the last that is not empty.
    """

    shortest: int
    longest: int
    mean: float
    percentiles: dict[str, int]
    half_of_tokens: int
    distinct: int
    bins: tuple[LengthBin, ...]


def percentile_name(percent: str) -> str:
    """The name of a percentile: "50" is the median, "95" is p95."""
    return "median" if percent == "50" else f"p{percent}"


def summarize_lengths(store: Store) -> Lengths | None:
    """Exact document lengths in O(distinct lengths); None if the store has no length index."""
    if not store.has_length_index:
        return None
    lengths, starts = store.runs().T
    upto = np.append(starts[1:], len(store))
    tokens = np.cumsum(lengths * np.diff(upto, prepend=0))
    counts = {p: -(-len(store) * p // 100) for p in PERCENTILES}  # the least number of documents that is p percent
    return Lengths(
        shortest=int(lengths[0]),
        longest=int(lengths[-1]),
        mean=store.num_tokens / len(store),
        percentiles={str(p): int(lengths[np.searchsorted(upto, count)]) for p, count in counts.items()},
        half_of_tokens=int(lengths[np.searchsorted(tokens, -(-store.num_tokens // 2))]),
        distinct=len(lengths),
        bins=_bins(lengths, upto, tokens),
    )


def _bins(lengths: np.ndarray, upto: np.ndarray, tokens: np.ndarray) -> tuple[LengthBin, ...]:
    """lengths, upto, tokens: int64[distinct]; the last two are running totals of documents and of tokens."""
    powers = range(int(lengths[0]).bit_length() - 1, int(lengths[-1]).bit_length())
    ends = [int(np.searchsorted(lengths, 2 << power)) for power in powers]
    documents = np.diff([int(upto[end - 1]) for end in ends], prepend=0).tolist()
    sums = np.diff([int(tokens[end - 1]) for end in ends], prepend=0).tolist()
    rows = zip(powers, documents, sums, strict=True)
    return tuple(LengthBin(1 << power, (2 << power) - 1, count, total) for power, count, total in rows)


def largest_documents(store: Store, count: int) -> list[int]:
    """Numbers of the `count` longest documents, longest first, and later first among equals; [] without a length index."""
    if not store.has_length_index:
        return []
    numbers: list[int] = store.length_index()[-count:][::-1].tolist()
    if wrong := [number for number in numbers if not 0 <= number < len(store)]:
        raise CorruptionError(
            f"length index: expected numbers of {len(store)} documents, found {wrong[0]} ({store.file(LENGTH_INDEX_NAME)});"
            f" run `tokenstore verify {store.place}`"
        )
    return numbers
