"""The fields of a plan that say how pieces are placed in rows (`align`), and how rows are dealt to ranks (`balance`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict, Unpack

from tokenstore.planning.checks import Checked, Mistakes, expected, integer

_MOST_COST = 1 << 62  # costs are int64


class BalanceFields(TypedDict, total=False):
    """Fields of a BalanceConfig, as a dictionary."""

    attention: int
    linear: int


@dataclass(frozen=True, init=False)
class BalanceConfig(Checked):
    """The cost of a row, by which a balanced plan deals the rows of a step to ranks.

    A row costs attention * (sum of the squares of the tokens of its pieces) + linear * sequence_length. Only `attention`
    affects the order of rows, because every row has the same number of positions. `linear` makes reported costs
    proportional to the work of a whole model.

    Attributes:
        attention: cost per squared token of a piece, at most 10**6.
        linear: cost per position of a row, at most 10**12. For the floating-point operations of a transformer with
            attention 1: its parameters / (layers x width).
    """

    what: ClassVar[str] = "balance"
    attention: Annotated[int, integer(1, 10**6)] = 1
    linear: Annotated[int, integer(0, 10**12)] = 0

    def __init__(self, /, **fields: Unpack[BalanceFields]):
        super().__init__(**fields)


def check_balance(value: Any, place: str, mistakes: Mistakes) -> Any:
    """`attention`, or a BalanceConfig."""
    if isinstance(value, BalanceConfig | Mapping):
        return BalanceConfig.check(value, place, mistakes)
    if isinstance(value, str) and value == "attention":
        return value
    return mistakes.add(place, expected("'attention' or {attention: a, linear: b}", value))


def wrong_balance(row_costs: tuple[int, int] | None, length: int) -> list[str]:
    """What is wrong with the costs of rows of `length` tokens."""
    attention, linear = row_costs or (0, 0)
    if attention * length * length + linear * length < _MOST_COST:
        return []
    return [
        f"balance: a row of {length} tokens would cost 2**62 or more with attention {attention} and linear {linear};"
        " divide both by the same number"
    ]


def wrong_align(align: int | None, packing: str, length: int) -> list[str]:
    """What is wrong with `align`, and what would work."""
    if align is None:
        return []
    if packing == "concat":
        return [
            "align: only valid with packing best_fit or none, found packing concat, whose windows have no room for padding;"
            " use packing: best_fit, or omit align"
        ]
    return [_unaligned(align, length)] if length % align else []


def _unaligned(align: int, length: int) -> str:
    """What is wrong with an `align` that does not divide the sequence length, and what would work."""
    smaller = next(d for d in range(min(align, length), 0, -1) if length % d == 0)
    larger = next(d for d in range(min(align, length), length + 1) if length % d == 0)
    lengths = {length - length % align, length - length % align + align} - {0}
    return (
        f"align: expected a divisor of sequence_length {length}, found {align}; use align"
        f" {' or '.join(map(str, sorted({smaller, larger})))}, or sequence_length {' or '.join(map(str, sorted(lengths)))}"
    )
