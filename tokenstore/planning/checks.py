"""Checks of configuration fields. Each returns the value as the configuration stores it, or notes what is wrong with it.

A class that derives from `Checked` declares each field as `Annotated[type, check]`. Its constructor takes them by name
and reports all invalid ones in a single ConfigError.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from fractions import Fraction
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

from tokenstore.errors import ConfigError

MOST = 1 << 48  # upper limit of every count; ORD-10 limits their products, checked when the schedule is computed
_MOST_MISTAKES = 20  # described per message; a file can contain thousands
MOST_PARTS = 1_000_000  # of a slice; keeps the products of its arithmetic in 62 bits
_MOST_DIGITS = 100  # of a decimal: exact arithmetic on a number of 500,000 digits would take seconds


class Mistakes:
    """What is wrong with the fields of a configuration, in the order in which it was found."""

    def __init__(self) -> None:
        self._rows: list[str] = []
        self._more = 0

    def add(self, place: str, rule: str | Callable[[], str]) -> Any:
        """Note that the field at `place` breaks `rule`, which is a function if it is costly to word. Returns None."""
        if len(self._rows) == _MOST_MISTAKES:
            self._more += 1
        else:
            self._rows.append(f"{place}: {rule if isinstance(rule, str) else rule()}")

    def refuse(self, what: str) -> None:
        """Raise a ConfigError that lists the mistakes, if there are any."""
        if self._rows:
            more = [f"and {self._more:,} more mistakes"] if self._more else []
            raise ConfigError(f"{what}: " + "; ".join([*self._rows, *more]))


Check = Callable[[Any, str, Mistakes], Any]  # (value, its place such as `sources.web.weight`, mistakes) -> value


def shown(value: Any) -> str:
    """An invalid value as shown in a message: at most 80 characters."""
    try:
        return repr(value)[:80]
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits
        return "an integer of thousands of digits"


def expected(rule: str, value: Any) -> str:
    """The text of a mistake: what was expected, and the value that was found."""
    return f"expected {rule}, found {shown(value)}"


def integer(low: int, high: int) -> Check:
    """An int in low..high; neither a bool nor a float or a string that looks like one."""

    def check(value: Any, place: str, mistakes: Mistakes) -> Any:
        rule = "a whole number" if not is_integer(value) else _broken_limit(value, low, high)
        return mistakes.add(place, expected(rule, value)) if rule else value

    return check


def is_integer(value: Any) -> bool:
    """Whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


COUNT = integer(1, MOST)


def decimal(low: str, high: str | None = None, places: int | None = None) -> Check:
    """A number in low..high, also as a string, with at most so many decimal places. The result is a Decimal.

    A float is taken as the decimal that Python prints for it, so 0.6 is 6/10.
    """
    least, most = Decimal(low), None if high is None else Decimal(high)

    def check(value: Any, place: str, mistakes: Mistakes) -> Any:
        exact = _as_decimal(value)
        if exact is None:
            return mistakes.add(place, expected("a number", value))
        rule = _broken_digits(exact, places) or _broken_limit(exact, least, most)
        return mistakes.add(place, expected(rule, value)) if rule else exact

    return check


def _broken_limit(value: Any, low: Any, high: Any) -> str:
    if value < low:
        return f"{low} or more"
    return f"at most {high}" if high is not None and value > high else ""


def _broken_digits(number: Decimal, places: int | None) -> str:
    if not number.is_finite():
        return "a finite number"
    digits, after_point = _digits(number)
    if digits > _MOST_DIGITS:
        return f"at most {_MOST_DIGITS} digits"
    return f"at most {places} digits after the point" if places is not None and after_point > places else ""


def _as_decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return Decimal(str(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None


def _digits(number: Decimal) -> tuple[int, int]:
    """(all digits, those after the point) of a finite number written without an exponent and without zeros at the end."""
    _, digits, exponent = number.as_tuple()
    power, used = int(exponent), len(digits)
    while used > 1 and power < 0 and digits[used - 1] == 0:
        power, used = power + 1, used - 1
    return max(used + max(power, 0), -power), max(-power, 0)


def text(value: Any, place: str, mistakes: Mistakes) -> Any:
    """A string."""
    return value if isinstance(value, str) else mistakes.add(place, expected("text", value))


def flag(value: Any, place: str, mistakes: Mistakes) -> Any:
    """A bool."""
    return value if isinstance(value, bool) else mistakes.add(place, expected("true or false", value))


class Take(NamedTuple):
    """Part number `part`, from 0, of `parts` interleaved parts, written `part/parts`."""

    part: int
    parts: int

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"


def proper_fraction(value: Any, place: str, mistakes: Mistakes) -> Any:
    """A fraction above 0 and at most 1, such as "1/16" or 0.25, with a denominator of at most MOST_PARTS, as a Fraction."""
    rule = f"a fraction such as 1/16, above 0 and at most 1, with a denominator of at most {MOST_PARTS:,}"
    if isinstance(value, Fraction):
        exact: Fraction | None = value
    elif isinstance(value, str) and "/" in value:
        parts = _whole_numbers(value)
        exact = Fraction(*parts) if parts and parts[1] else None
    else:
        number = _as_decimal(value)
        usable = number is not None and number.is_finite() and _digits(number)[0] <= _MOST_DIGITS
        exact = Fraction(number) if number is not None and usable else None
    valid = exact is not None and 0 < exact <= 1 and exact.denominator <= MOST_PARTS
    return exact if valid else mistakes.add(place, expected(rule, value))


def part_of(value: Any, place: str, mistakes: Mistakes) -> Any:
    """`i/n` with i below n, which is at most MOST_PARTS, as a Take. A pair (i, n) is accepted too."""
    pair = _whole_numbers(value) if isinstance(value, str) else tuple(value) if is_list(value) else None
    if pair is not None and len(pair) == 2 and all(map(is_integer, pair)) and 0 <= pair[0] < pair[1] <= MOST_PARTS:
        return Take(*pair)
    return mistakes.add(place, expected(f"i/n with i from 0 to n - 1 and n at most {MOST_PARTS:,}, such as 0/4", value))


def _whole_numbers(value: str) -> tuple[int, ...] | None:
    """The two numbers of "3/16"; None if it is written otherwise."""
    parts = [part.strip() for part in value.split("/")]
    whole = len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts)
    return tuple(map(int, parts)) if whole else None


def one_of(*words: str) -> Check:
    """One of two or more strings."""
    rule = f"one of {', '.join(map(repr, words[:-1]))} or {words[-1]!r}"

    def check(value: Any, place: str, mistakes: Mistakes) -> Any:
        is_word = isinstance(value, str) and value in words
        return value if is_word else mistakes.add(place, expected(rule, value))

    return check


def optional(inner: Check) -> Check:
    """None, or what `inner` accepts."""
    return lambda value, place, mistakes: None if value is None else inner(value, place, mistakes)


def is_list(value: Any) -> bool:
    """Whether a value lists others."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def list_of(inner: Check, rule: str = "a list", length: int | None = None) -> Check:
    """A list, tuple or the like of values that `inner` accepts, as a tuple. length: how many they must be."""

    def check(value: Any, place: str, mistakes: Mistakes) -> Any:
        if not is_list(value) or length not in (None, len(value)):
            return mistakes.add(place, expected(rule if is_list(value) else "a list", value))
        return tuple(inner(each, f"{place}[{i}]", mistakes) for i, each in enumerate(value))

    return check


def dict_of(inner: Check, at_least_one: bool = False) -> Check:
    """A mapping from names to values that `inner` accepts, as a new dict."""

    def check(value: Any, place: str, mistakes: Mistakes) -> Any:
        if not isinstance(value, Mapping):
            return mistakes.add(place, expected("fields (name: value)", value))
        if at_least_one and not value:
            return mistakes.add(place, "expected at least one, found none")
        for name in value:
            if not isinstance(name, str):
                mistakes.add(place, expected("names that are text", name))
        return {name: inner(each, f"{place}.{name}", mistakes) for name, each in value.items()}

    return check


@dataclass(frozen=True, init=False)
class Checked:
    """Base of a frozen dataclass whose constructor checks its fields, which are given by name."""

    what: ClassVar[str]  # what messages call it

    def __init__(self, /, **given: Any):
        mistakes = Mistakes()
        self._fill(given, "", mistakes)
        mistakes.refuse(self.what)

    @classmethod
    def check(cls, value: Any, place: str, mistakes: Mistakes) -> Any:
        """The check of a field that holds one: an instance, or its fields in a mapping."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            known = ", ".join(each.name for each in fields(cls))
            return mistakes.add(place, f"{expected('fields (name: value)', value)}; the fields are {known}")
        made = cls.__new__(cls)
        made._fill(value, f"{place}.", mistakes)
        return made

    def _declared(self) -> dict[str, tuple[Check, Any]]:
        cls: Any = type(self)
        return _fields_of(cls)

    def _fill(self, given: Mapping[Any, Any], prefix: str, mistakes: Mistakes) -> None:
        known = self._declared()
        for name, (check, default) in known.items():
            if name in given:
                object.__setattr__(self, name, check(given[name], prefix + name, mistakes))
            elif default is MISSING:
                mistakes.add(prefix + name, "expected a value, found none")
            else:
                object.__setattr__(self, name, default)
        for name in given:
            if name not in known:
                mistakes.add(f"{prefix}{name}", partial(_unknown_field, name, known))

    def changed_fields(self) -> dict[str, Any]:
        """The fields that differ from their defaults, in dicts and lists. Numbers stay as they are, a Take is text."""
        found = {name: (getattr(self, name), default) for name, (_, default) in self._declared().items()}
        return {name: _plain(value) for name, (value, default) in found.items() if value != default}

    def as_json(self) -> dict[str, Any]:
        """`changed_fields` as values of JSON: an exact number that is not an integer is a string."""
        found: dict[str, Any] = _as_json(self.changed_fields())
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Checked):
        return value.changed_fields()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, Take):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return str(value) if isinstance(value, Decimal | Fraction) else value


@cache
def _fields_of(cls: Any) -> dict[str, tuple[Check, Any]]:
    """Check and default (MISSING: none) of each field."""
    types: dict[str, Any] = {each.name: each.type for each in fields(cls)}
    return {each.name: (types[each.name].__metadata__[0], each.default) for each in fields(cls)}


def _unknown_field(name: Any, known: Collection[str]) -> str:
    close = get_close_matches(str(name), known, 1)
    return f"unknown field, did you mean {close[0]}?" if close else f"unknown field; the fields are {', '.join(known)}"
