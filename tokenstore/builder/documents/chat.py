"""Conversations for fine-tuning: turns records of the usual shapes into lists of messages.

    {"messages": [{"role": "user", "content": "Hi"}, ...]}              also with tools, tool_calls, reasoning_content
    {"conversations": [{"from": "human", "value": "Hi"}, ...]}          or with role and content
    {"instruction": "Sum up:", "input": "A text.", "output": "A."}      the user's message: instruction, empty line, input
    {"prompt": "Hi", "completion": "Hello"}                             or two lists of messages
    {"question": "How many?", "answer": "Four."}

The first of these shapes whose fields are present is used. The text of a `system` field becomes the first message. An
assistant's message is trained on unless its `weight` is 0, even inside a `prompt`. It may be empty: then only the end of its
turn is trained on.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

_SHAPES = (
    ("messages",),
    ("conversations",),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("question", "answer"),
)
_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
REASONING = ("reasoning_content", "reasoning", "thinking")
_KINDS = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """A conversation.

    Attributes:
        messages: each has a role, and content or tool calls; no value is None.
        tools: JSON schemas of the tools, or None.
    """

    messages: tuple[Message, ...]
    tools: list[Any] | None = None


def read_conversation(row: dict[str, Any], table: bool = False) -> Conversation:
    """The conversation of one record.

    Args:
        row: a JSON object, or a row of a table. Fields that are None count as missing.
        table: whether nulls inside tool calls and tools count as missing too, as tables fill structs with them.

    Raises:
        ValueError: it is no conversation; a short reason such as `message 3: expected a role, found null`.
    """
    row = {name: value for name, value in row.items() if value is not None}
    shape = next((shape for shape in _SHAPES if row.keys() >= set(shape)), None)
    if shape is None:
        wanted = ", or ".join(" and ".join(shape) for shape in _SHAPES)
        raise ValueError(f"expected the fields {wanted}, found {', '.join(row) or 'none'}")
    listed = _with_system(_listed(row, shape), row.get("system"))
    messages = [_message(message, f"message {i}", table) for i, message in enumerate(listed, 1)]
    return Conversation(tuple(messages), _tools(row.get("tools"), table))


def _listed(row: dict[str, Any], shape: tuple[str, ...]) -> list[Any]:
    """The messages of a record, unchecked, with their text under `role` and `content`."""
    if shape == ("messages",):
        return _list(row["messages"], "messages")
    if shape == ("conversations",):
        messages = _list(row["conversations"], "conversations")
        return [_from_sharegpt(message, f"message {i}") for i, message in enumerate(messages, 1)]
    asked, answered = (row[name] for name in shape)
    if "instruction" in shape:
        parts = [_text(row[name], name) for name in ("instruction", "input") if name in row]
        asked = "\n\n".join(filter(None, parts))
    return _said("user", asked, shape[0]) + _said("assistant", answered, shape[1])


def _said(role: str, value: Any, name: str) -> list[Any]:
    """The messages of a field that holds a text or a list of messages."""
    if isinstance(value, list):
        return _list(value, name)
    if not _text(value, name).strip() and role != "assistant":
        raise ValueError(f"{name}: expected a text, found an empty one")
    return [{"role": role, "content": value}]


def _with_system(messages: list[Any], system: Any) -> list[Any]:
    if system is None or system == "":
        return messages
    first = messages[0] if isinstance(messages[0], dict) else {}
    if first.get("role") == "system":
        if first.get("content") != system:
            raise ValueError("system: the `system` field and the first message have different texts")
        return messages
    return [*_said("system", _text(system, "system"), "system"), *messages]


def _from_sharegpt(message: Any, where: str) -> Any:
    """{"from": "human", "value": "Hi"} as {"role": "user", "content": "Hi"}."""
    if not isinstance(message, dict) or "from" not in message or message.get("role") is not None:
        return message
    name, rest = message["from"], {key: value for key, value in message.items() if key not in ("from", "value", "role")}
    if not isinstance(name, str) or name not in _ROLES:
        raise ValueError(f"{where}: expected `from` to be one of {', '.join(_ROLES)}, found {_shown(name)}")
    return {"role": _ROLES[name], "content": message.get("value"), **rest}


def _message(message: Any, where: str, table: bool) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"{where}: expected an object, found {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{where}: expected a role, found {_shown(role)}")
    kept = {name: value for name, value in message.items() if value is not None}
    if "content" in kept:
        kept["content"] = _content(kept["content"], where)
    if "tool_calls" in kept:
        kept["tool_calls"] = _calls(kept["tool_calls"], where, table)
        if not kept["tool_calls"]:
            del kept["tool_calls"]
    _check(kept, where)
    return kept


def _check(message: Message, where: str) -> None:
    """ValueError unless the message has content, which may be empty, or tool calls, and its other fields are valid."""
    if "content" not in message and "tool_calls" not in message:
        raise ValueError(f"{where}: expected content, found null")
    for name in REASONING:
        if name in message:
            _text(message[name], f"{where}: {name}")
    if message.get("weight", 1) not in (0, 1):
        raise ValueError(f"{where}: expected a weight of 0 or 1, found {_shown(message['weight'])}")


def _content(value: Any, where: str) -> str:
    """A text, or the concatenated text parts of a list."""
    if not isinstance(value, list):
        return _text(value, f"{where}: content")
    texts = []
    for part in _list(value, f"{where}: content"):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"{where}: expected parts of type text, found {_shown(kind or part)}")
        texts.append(_text(part.get("text"), f"{where}: a part of type text"))
    return "".join(texts)


def _calls(value: Any, where: str, table: bool) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise ValueError(f"{where}: expected tool_calls to be a list of objects, found {_shown(value)}")
    return _filled(value) if table else value


def _tools(value: Any, table: bool) -> list[Any] | None:
    """Schemas of tools: a list of objects, or the JSON of such a list; None if there are none."""
    tools = _parsed(value) if isinstance(value, str) and value.strip() else value
    if not tools and not isinstance(tools, dict):  # null, "", []
        return None
    tools = [_parsed(tool) if isinstance(tool, str) else tool for tool in tools] if isinstance(tools, list) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"tools: expected a list of objects, found {_shown(tools)}")
    return _filled(tools) if table else tools


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"tools: expected JSON, found {error}") from error


def _filled(value: Any) -> Any:
    """`value` without the nulls in its objects, at any depth."""
    if isinstance(value, dict):
        return {name: _filled(one) for name, one in value.items() if one is not None}
    return [_filled(one) for one in value] if isinstance(value, list) else value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        found = "an empty one" if isinstance(value, list) else _kind(value)
        raise ValueError(f"{where}: expected a list, found {found}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a string, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    return repr(value[:60]) if isinstance(value, str) else _kind(value)


def special_in_content(conversation: Conversation, special_tokens: Sequence[str]) -> str | None:
    """Find a special token in the strings of a conversation, where it could end a turn or begin another one.

    Names of fields count too, as tool calls print them.

    Returns:
        A message such as `message 2: special token '<|im_end|>' in content`; None if there is none.
    """
    pattern = _pattern(tuple(special_tokens))
    places = [(f"message {i}", message) for i, message in enumerate(conversation.messages, 1)]
    for where, value in [*places, ("tools", {"tools": conversation.tools})]:
        for field, inside in value.items():
            for text in (field, *_strings(inside)):
                if found := pattern.search(text):
                    return f"{where}: special token {found[0]!r} in {field}"
    return None


@lru_cache(maxsize=8)
def _pattern(special_tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, filter(None, special_tokens))) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _strings(name)
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
