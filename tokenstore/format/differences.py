"""Compares two JSON values field by field, for messages and reports: histories of runs, options of builds."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

_MOST_SHOWN = 20  # differences in a message
_MOST_CHARACTERS = 300  # of a value in a message


class Difference(NamedTuple):
    """A field that differs, such as `stages[1].from_step`, and its two values; None: the field is absent."""

    field: str
    old: Any
    new: Any


def differences(old: Any, new: Any, field: str = "") -> list[Difference]:
    """The innermost fields in which two JSON values differ. Of lists of unequal length only the first such entry."""
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        return [row for key in keys for row in differences(old.get(key), new.get(key), f"{field}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list):
        shared = [
            row for i, (a, b) in enumerate(zip(old, new, strict=False)) for row in differences(a, b, f"{field}[{i}]")
        ]
        if len(old) == len(new):
            return shared
        i = min(len(old), len(new))
        return shared[:1] or [
            Difference(f"{field}[{i}]", *(values[i] if i < len(values) else None for values in (old, new)))
        ]
    return [Difference(field, old, new)]


def describe(found: Sequence[Difference]) -> str:
    """Differences as text: `seed was 0, is 1; packing was "concat", is "none"`."""
    shown = [f"{field} was {short(old)}, is {short(new)}" for field, old, new in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        shown.append(f"and {len(found) - _MOST_SHOWN} more fields")
    return "; ".join(shown)


def short(value: Any) -> str:
    """Any value as JSON of at most 300 characters, for a message."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # not JSON, a number of thousands of digits, or nested too deeply
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
