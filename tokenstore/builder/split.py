"""Assigns documents to splits by a hash of their content, so that equal documents are always in the same split."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import xxhash

from tokenstore.errors import ConfigError
from tokenstore.format.layout import is_plain_name
from tokenstore.store.work import WORK_SUFFIX

HASH_WORDS = 2  # uint64 each: xxh3-128
MAX_SPLITS = 256  # a split's number is one byte
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Split:
    """A named share of the documents: those whose first hash word is below `stop` but not below the previous split's."""

    name: str
    stop: int


def parse_split(text: str) -> tuple[Split, ...]:
    """The splits of a text such as `train=0.99,validation=0.01`.

    Raises:
        ConfigError: a name is repeated or not a plain name; a share is not above 0 or has more than 18 decimals; the shares do
            not add up to 1; or there are more than 256.
    """
    shares: dict[str, Decimal] = {}
    for item in text.split(","):
        name, _, written = (part.strip() for part in item.partition("="))
        value = _share(written)
        if not is_plain_name(name) or name in shares or value is None:
            raise ConfigError(
                f"split: expected name=share, each name once, found {item!r} ({text}); such as train=0.99"
            )
        shares[name] = value
    if len(shares) > MAX_SPLITS:
        raise ConfigError(f"split: expected at most {MAX_SPLITS}, found {len(shares)} ({text[:60]}...); name fewer")
    if sum(shares.values()) != 1:
        raise ConfigError(f"split: the shares add up to {sum(shares.values())}, not 1 ({text}); change them")
    splits: list[Split] = []
    total = Decimal(0)
    for name, share in shares.items():
        total += share
        splits.append(Split(name, int(total * (1 << 64))))
    return tuple(splits)


def _share(text: str) -> Decimal | None:
    """A share above 0 and at most 1, with so few decimals that sums are exact; None for anything else."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent  # a letter if the value is not finite
    exact = isinstance(exponent, int) and 0 < value <= 1 and exponent >= -_MOST_DIGITS
    return value if exact else None


def sample_bound(share: str | None) -> int:
    """The bound below which the second word of a document's hash must be for it to be in a sample; 2**64 for all.

    The first word decides about splits, so a sample has the same shares in every split. A larger sample contains a smaller one.

    Raises:
        ConfigError: the share is not a number above 0 and at most 1, or such a percentage.
    """
    if share is None:
        return 1 << 64
    is_percentage = share.endswith("%")
    value = _share(share.removesuffix("%").strip()) if not is_percentage else _percentage(share[:-1])
    if value is None:
        raise ConfigError(f"sample: expected a share such as 1% or 0.01, above 0 and at most 100%, found {share!r}")
    return int(value * (1 << 64))


def _percentage(text: str) -> Decimal | None:
    try:
        return _share(str(Decimal(text.strip()).scaleb(-2)))
    except (InvalidOperation, ValueError):
        return None


def is_partition_name(name: str) -> bool:
    """Whether a value can be the name of a store's folder."""
    return is_plain_name(name) and not name.endswith(WORK_SUFFIX)


def content_hash(content: bytes) -> tuple[int, int]:
    """xxh3-128 of a document's content as two uint64 words, the low one first."""
    value = xxhash.xxh3_128_intdigest(content)
    return value & (1 << 64) - 1, value >> 64


def split_numbers(words: np.ndarray, splits: tuple[Split, ...]) -> np.ndarray:
    """The split of each document: uint8[n], indices of `splits`, from `words`, uint64[n], the first word of its hash."""
    stops = np.array([split.stop for split in splits[:-1]], np.uint64)  # the last split has no upper bound
    return np.searchsorted(stops, words, side="right").astype(np.uint8)
