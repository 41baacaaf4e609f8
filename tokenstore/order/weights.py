"""Converts weights to integer shares (ORD-3) with exact arithmetic."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm

MAX_PERIOD = 1 << 20
_MOST_RATIO = 10**30


def integer_shares(weights: Mapping[str, object]) -> dict[str, int]:
    """Positive integer shares in the proportions of `weights`, with a sum of at most MAX_PERIOD.

    Args:
        weights: by source name. Ints, Fractions, Decimals, decimal strings, or floats, which are read as their decimal
            representation (0.6 is 6/10).

    Returns: the share of each source with a weight above 0, by name. They are exact, with gcd 1, if their sum is at
    most MAX_PERIOD; otherwise they are rounded.

    Raises: ValueError: no weight is above 0; a weight is negative or not a number; there are more than MAX_PERIOD
    sources.

    Example:
        >>> integer_shares({"web": 0.6, "code": "0.4"})
        {'code': 2, 'web': 3}
    """
    exact = {name: _fraction(name, weight) for name, weight in sorted(weights.items())}
    exact = {name: weight for name, weight in exact.items() if weight > 0}
    if not exact:
        raise ValueError("expected at least one weight above 0, found none")
    if len(exact) > MAX_PERIOD:
        raise ValueError(f"expected at most {MAX_PERIOD} sources, found {len(exact)}")
    scale = lcm(*(weight.denominator for weight in exact.values()))
    shares = {name: int(weight * scale) for name, weight in exact.items()}
    divisor = gcd(*shares.values())
    shares = {name: share // divisor for name, share in shares.items()}
    return shares if sum(shares.values()) <= MAX_PERIOD else _rounded(shares)


def tempered(sizes: Mapping[str, int], temperature: Decimal) -> dict[str, int]:
    """Integer weights in proportion to sizes ** (1 / temperature).

    The precision is 2**-32 of the smallest size. The result is the same on every platform, because no floats are used.
    """
    ratio = Fraction(temperature)
    scale = 1 << (32 * ratio.numerator)
    return {name: _root(size**ratio.denominator * scale, ratio.numerator) for name, size in sizes.items()}


def _root(value: int, degree: int) -> int:
    """The greatest integer whose power `degree` is at most `value`, by bisection."""
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low


def _fraction(name: str, weight: object) -> Fraction:
    """Read one weight. Raises: ValueError: it is not a number, negative, or out of range."""
    try:
        value = weight if isinstance(weight, Fraction) else _exactly(Decimal(str(weight)))
    except (ArithmeticError, ValueError, OverflowError):
        raise ValueError(f"weight of {name}: expected a decimal number, found {weight!r}") from None
    if value and not Fraction(1, _MOST_RATIO) <= abs(value) <= _MOST_RATIO:
        raise ValueError(f"weight of {name}: expected a number in 1e-30..1e30, found {weight!r}")
    if value < 0:
        raise ValueError(f"weight of {name}: expected 0 or more, found {weight!r}")
    return value


def _exactly(weight: Decimal) -> Fraction:
    """Convert to a fraction. With a huge exponent, which would fill the memory, return a value that is out of range."""
    return Fraction(weight) if not weight or abs(weight.adjusted()) < 100 else Fraction(10**40)


def _rounded(weights: dict[str, int]) -> dict[str, int]:
    """Shares with sum MAX_PERIOD: 1 for very small weights, the others by largest remainder."""
    shares: dict[str, int] = {}
    rest = dict(weights)
    while True:
        room, total = MAX_PERIOD - len(shares), sum(rest.values())
        below = [name for name, weight in rest.items() if weight * room < total]
        if not below:
            break
        for name in below:
            shares[name] = 1
            del rest[name]
    whole = {name: weight * room // total for name, weight in rest.items()}
    by_remainder = sorted(rest, key=lambda name: (-(rest[name] * room % total), name))
    for name in by_remainder[: room - sum(whole.values())]:
        whole[name] += 1
    return dict(sorted({**shares, **whole}.items()))
