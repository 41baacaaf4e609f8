"""Fields of records: their values by path, texts made of several, and those kept as metadata."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from string import Formatter
from typing import Any

from tokenstore.builder.reading.records import Bad, Row, decoded
from tokenstore.errors import ConfigError
from tokenstore.format.layout import MAX_METADATA_BYTES

_SHOWN_NAME, _MOST_NAMES = 40, 8
_ABSENT = object()
_INDEX, _IS_INDEX = re.compile(r"\[(-?[0-9]{1,9})\]"), re.compile(r"-?[0-9]{1,9}")
_ESCAPE = re.compile(r"\\([nt\\])")
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


class Template:
    """A text made of several fields: `{title}\\n\\n{body}`. Two braces are one; \\n, \\t and \\\\ are escapes.

    Raises:
        ConfigError: the template is malformed, or names no field.
    """

    def __init__(self, text: str):
        try:
            parts = [*Formatter().parse(text)]
        except ValueError as error:
            raise ConfigError(f"text: {error} ({text!r}); such as '{{title}}\\n\\n{{body}}'") from error
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise ConfigError(f"text: expected fields as {{title}}, found one with ! or : ({text!r}); remove it")
        self._parts = [(_ESCAPE.sub(lambda match: _ESCAPED[match[1]], literal), name) for literal, name, _, _ in parts]
        self.fields = tuple(dict.fromkeys(name for _, name in self._parts if name))
        if not self.fields or "" in [name for _, name in self._parts]:
            raise ConfigError(
                f"text: expected a field in each pair of braces, found none ({text!r}); such as {{title}}"
            )

    def render(self, row: Row) -> str:
        """The text of a record. ValueError if a field is missing or is neither text nor a number."""
        return "".join(
            literal + ("" if name is None else _as_text(field(row, name), name)) for literal, name in self._parts
        )


def _as_text(value: Any, name: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return checked_text(value, name)


def optional_field(row: Row, name: str) -> Any:
    """Like `field`, but None if there is no such field."""
    try:
        return field(row, name)
    except ValueError:
        return None


def encoded_metadata(values: Sequence[Any]) -> bytes:
    """The JSON list of the fields to keep of a document. Times are ISO 8601 texts; other objects are their text.

    Raises:
        ValueError: it has more than MAX_METADATA_BYTES bytes, or holds text that is not Unicode or objects nested too deeply.
    """
    import orjson

    try:
        found = orjson.dumps(values, default=_text_of, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except (orjson.JSONEncodeError, UnicodeError) as error:
        raise ValueError(f"metadata: {error}") from error
    if len(found) > MAX_METADATA_BYTES:
        raise ValueError(
            f"metadata: expected at most {MAX_METADATA_BYTES} bytes, found {len(found)}; keep shorter fields"
        )
    return found


def _text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def field(row: Row, name: str) -> Any:
    """The value of a field: by its name or else its path.

    `a.b` is field b inside field a; `a[0].b`, or `a.0.b`, is field b of the first item of the list a, and `a[-1]` its last item.

    Raises:
        ValueError: there is no such field; the message lists those there are.
    """
    value = row.get(name, _ABSENT)
    if value is not _ABSENT:
        return value
    value, above = row, "the record"
    for part in path_of(name):
        if value is None:
            return None  # a field inside null is null
        if isinstance(value, list) and _IS_INDEX.fullmatch(part):
            if not -len(value) <= int(part) < len(value):
                raise ValueError(f"no field {name!r}; {above} has {len(value)} items")
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            raise ValueError(f"no field {name!r}; {above} has {_fields_of(value)}")
        above = repr(part)
    return value


@cache
def path_of(name: str) -> tuple[str, ...]:
    """The parts of a path: a.b[0] is ("a", "b", "0")."""
    return tuple(_INDEX.sub(r".\1", name).split("."))


def _fields_of(value: Any) -> str:
    """Names of the fields of `value`, for messages."""
    if not isinstance(value, dict):
        return f"no fields, it is {kind_of(value)}"
    names = [repr(str(name))[:_SHOWN_NAME] for name in islice(value, _MOST_NAMES)]
    more = f" and {len(value) - len(names)} more" if len(value) > len(names) else ""
    return (", ".join(names) or "none") + more


def checked_text(value: Any, name: str) -> str:
    """`value` if it is text that can be stored; ValueError if it is not."""
    if isinstance(value, bytes):
        value = decoded(value)
        if isinstance(value, Bad):
            raise ValueError(value.reason)
    if not isinstance(value, str):
        raise ValueError(f"field {name!r}: expected a string, found {kind_of(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:  # a lone surrogate, from the user's code: no reader lets one through
            raise ValueError(
                f"field {name!r}: expected text, found {error.reason} at character {error.start}"
            ) from error
    return value


def kind_of(value: Any) -> str:
    """The kind of a JSON value, for messages."""
    return "null" if value is None else type(value).__name__
