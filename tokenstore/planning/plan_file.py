"""Reads the fields of a plan.yaml, and words validation errors so that a person can act on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.outside import MAX_PLAN_BYTES, read_file

# Our wording for each kind of error; the library's wording names its own types.
_RULES = {
    "missing": "expected a value, found none",
    "greater_than_equal": "expected {ge} or more",
    "less_than_equal": "expected at most {le}",
    "decimal_max_digits": "expected at most {max_digits} digits",
    "decimal_max_places": "expected at most {decimal_places} digits after the point",
    "literal_error": "expected one of {expected}",
    "too_short": "expected at least one, found none",
    "too_long": "expected [start, stop]",
    "finite_number": "expected a finite number",
}
_KINDS = (
    ("int", "expected a whole number"),
    ("decimal", "expected a number"),
    ("bool", "expected true or false"),
    ("string", "expected text"),
    ("tuple", "expected a list"),
    ("model", "expected fields (name: value)"),
    ("dict", "expected fields (name: value)"),
)
_MOST_MISTAKES = 20  # errors per message: each is compared with all field names and with the other errors
# Names that pydantic inserts into an error's location when a value may have several types
_ALTERNATIVES = ("tuple[str, ...]", "dict[str,decimal]", "dict[str,constrained-decimal]")
_PLACES = {  # fields that accept several types, so that no single rule describes them
    "pool": "expected a list of sources, or {{name: repeats}}",
    "num_steps": "expected a whole number above 0, first_exhausted or all_exhausted",
}


def explain(
    mistakes: Iterable[Mapping[str, Any]], fields_at: Callable[[Sequence[int | str]], Sequence[str]] = lambda _: ()
) -> str:
    """One line of text that lists validation errors: field, rule and value found. Each field is listed once.

    Args:
        mistakes: the errors as pydantic lists them; only the first 20 are described.
        fields_at: returns the names of the fields allowed at a location such as ("sources", "web").
    """
    rows: dict[str, str] = {}
    mistakes = list(mistakes)
    more = len(mistakes) - _MOST_MISTAKES
    for mistake in mistakes[:_MOST_MISTAKES]:
        names = [part for part in mistake["loc"] if part not in _ALTERNATIVES]
        names = names[:1] if names[:1] == ["num_steps"] else names
        place = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names).removeprefix(".")
        if mistake["type"] == "value_error":
            rows.setdefault(place, mistake["msg"].removeprefix("Value error, "))
            continue
        kind = mistake["type"]
        if kind == "extra_forbidden":
            rows.setdefault(place, f"{place}: unknown field{_meant(names[-1], fields_at(names[:-1]))}")
            continue
        rule = (
            _PLACES.get(names[-1] if len(names) in (1, 3) else "")
            or _RULES.get(kind)
            or next((text for name, text in _KINDS if kind.startswith(name)), mistake["msg"])
        )
        rule = rule.format(**mistake.get("ctx", {}))
        found = "" if "found" in rule else f", found {shown(mistake['input'])}"
        rows.setdefault(place, f"{place}: {rule}{found}")
    # If a value may have one of several types, an error inside the value says more than "wrong type" for the value.
    kept = [row for place, row in rows.items() if not any(o.startswith((f"{place}.", f"{place}[")) for o in rows)]
    return "; ".join([*kept, f"and {more:,} more mistakes"] if more > 0 else kept)


def _meant(name: int | str, known: Sequence[str]) -> str:
    """A hint for an unknown field `name`: the closest known field, or all of them."""
    close = get_close_matches(str(name), known, 1)
    return f", did you mean {close[0]}?" if close else f"; the fields are {', '.join(known)}" if known else ""


def shown(value: Any) -> str:
    """An invalid value as shown in a message: at most 80 characters."""
    try:
        return repr(value)[:80]
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits
        return "an integer of thousands of digits"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the fields of a YAML or JSON file.

    Raises:
        ConfigError: the file is not a regular file, is too large or is not YAML; a key is repeated (plain YAML would
            silently keep the last one); values are nested too deeply, aliases expand to too many values, or a number
            has too many digits.
    """
    from tokenstore.planning.yaml_text import parse  # imports the YAML library, needed only for plans in files

    try:
        text = read_file(path, MAX_PLAN_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"plan: expected text in UTF-8, found {error.reason} at byte {error.start} ({path})"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        found = getattr(error, "strerror", None) or error
        raise ConfigError(f"plan: cannot read {path}: {found}; give the path of a plan file") from error
    try:
        fields = parse(text)
    except Exception as error:  # a tag such as !!bool with an invalid value raises errors of many types
        found = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"plan: expected YAML, found {found} ({path})") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        kind = type(fields).__name__
        raise ConfigError(f"plan: expected fields such as sequence_length and sources, found {kind} ({path})")
    return fields
