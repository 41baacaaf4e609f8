"""plan.yaml -> fields, and what is wrong with fields -> sentences a person can act on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError

# What each kind of mistake is in our words; the library's speak of its own types.
_RULES = {
    "missing": "expected a value, found none",
    "greater_than_equal": "expected {ge} or more",
    "less_than_equal": "expected at most {le}",
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
# What pydantic calls the forms a value may have, in the midst of its place
_ALTERNATIVES = ("tuple[str, ...]", "dict[str,decimal]", "dict[str,constrained-decimal]")
_PLACES = {  # places where several rules are tried, or where a rule needs a word
    "pool": "expected a list of sources, or {{name: how often}}",
    "num_steps": "expected a whole number above 0, first_exhausted or all_exhausted",
}


def explain(
    mistakes: Iterable[Mapping[str, Any]], fields_at: Callable[[Sequence[int | str]], Sequence[str]] = lambda _: ()
) -> str:
    """One line of text for the mistakes pydantic lists: place, rule and what was found, each place once.

    Args:
        mistakes: as pydantic lists them.
        fields_at: names of the fields that a place such as ("sources", "web") may have.
    """
    rows: dict[str, str] = {}
    for mistake in mistakes:
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
        found = "" if "found" in rule else f", found {repr(mistake['input'])[:80]}"
        rows.setdefault(place, f"{place}: {rule}{found}")
    # of a value that may be one thing or another, what is wrong inside says more than that it is not the other
    return "; ".join(
        row for place, row in rows.items() if not any(other.startswith((f"{place}.", f"{place}[")) for other in rows)
    )


def _meant(name: int | str, known: Sequence[str]) -> str:
    """What somebody who wrote `name` may have meant."""
    close = get_close_matches(str(name), known, 1)
    return f", did you mean {close[0]}?" if close else f"; the fields are {', '.join(known)}" if known else ""


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields in a YAML (or JSON) file. A key that stands twice is refused; YAML itself keeps the last silently."""
    import yaml

    def joined(text: str) -> str:
        """JSON writes a character beyond 16 bits as two escapes, which YAML takes for two characters."""
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            if twice := sorted({key for key in keys if keys.count(key) > 1}):
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected every key once, found twice: {twice}", node.start_mark
                )
            return super().construct_mapping(node, deep)

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            return joined(value) if isinstance(value, str) else value

    try:
        fields = yaml.load(path.read_text("utf-8"), Loader)
    except OSError as error:
        raise ConfigError(f"plan: expected a file to read, found {error.strerror} ({path})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"plan: expected YAML, found {' '.join(str(error).split())} ({path})") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        kind = type(fields).__name__
        raise ConfigError(f"plan: expected fields such as sequence_length and sources, found {kind} ({path})")
    return fields
