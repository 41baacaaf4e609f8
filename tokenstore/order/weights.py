"""Weights -> integer shares (ORD-3), exactly and without floats."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm

MAX_PERIOD = 1 << 20
_MOST_RATIO = 10**30


def integer_shares(weights: Mapping[str, object]) -> dict[str, int]:
    """Shares c_s >= 1 with gcd 1 and sum at most MAX_PERIOD, in the proportions of `weights`.

    Args:
        weights: by source name; ints, Fractions, Decimals, decimal strings, or numbers whose str() is the decimal meant
            (a YAML 0.6 is read as 6/10). Sources of weight 0 are omitted.
    Returns: {name: share}. Exact when the weights' common denominator gives a sum <= MAX_PERIOD.
    Raises: ValueError: no weight is above 0, one is negative or not a number, or there are more than MAX_PERIOD of them.
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
    """Weights in proportion to sizes ** (1 / temperature), accurate to 2**-32 of the smallest and identical on every
    platform.
    """
    ratio = Fraction(temperature)
    scale = 1 << (32 * ratio.numerator)
    return {name: _root(size**ratio.denominator * scale, ratio.numerator) for name, size in sizes.items()}


def _root(value: int, degree: int) -> int:
    """The greatest integer whose `degree`-th power is at most `value`, by bisection."""
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low


def _fraction(name: str, weight: object) -> Fraction:
    try:
        value = weight if isinstance(weight, Fraction) else _exactly(Decimal(str(weight)))
    except (ArithmeticError, ValueError, OverflowError):
        raise ValueError(f"weight of {name}: expected a decimal number, found {weight!r}") from None
    if value and not Fraction(1, _MOST_RATIO) <= abs(value) <= _MOST_RATIO:
        raise ValueError(f"weight of {name}: expected one in 1e-30..1e30, found {weight!r}")
    if value < 0:
        raise ValueError(f"weight of {name}: expected 0 or more, found {weight!r}")
    return value


def _exactly(weight: Decimal) -> Fraction:
    """The number as a fraction; 10**40, which is out of range, if its exponent is so large that the fraction would fill
    the memory.
    """
    return Fraction(weight) if not weight or abs(weight.adjusted()) < 100 else Fraction(10**40)


def _rounded(weights: dict[str, int]) -> dict[str, int]:
    """Shares with sum MAX_PERIOD: at least one slot each, the larger ones by largest remainder."""
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
