"""Finds the built-in templates that resemble a given template, by the text both write for a few conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenstore.builder.documents.chat_templates import BUILT_IN, may_be_like
from tokenstore.builder.documents.templates import Template, load_template
from tokenstore.errors import ConfigError

_MOST = 3


@dataclass(frozen=True)
class _Probe:
    messages: Sequence[dict[str, Any]]
    tools: list[Any] | None = None


_SYSTEM, _ASKED = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}
_ANSWERED, _AGAIN = {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}
_LAST = {"role": "assistant", "content": "6"}
_PROBES = (  # nearly every conversation is like one of the first three
    _Probe([_ASKED, _ANSWERED]),
    _Probe([_ASKED, _ANSWERED, _AGAIN, _LAST]),
    _Probe([_SYSTEM, _ASKED, _ANSWERED]),
    _Probe([_ASKED, _ANSWERED, _AGAIN]),
    _Probe([_ASKED, {**_ANSWERED, "reasoning_content": "2 and 2"}]),
    _Probe([_ASKED, {**_ANSWERED, "content": "<think>\n2 and 2\n</think>\n\n4"}]),
    _Probe([_ASKED, _ANSWERED], [{"type": "function", "function": {"name": "add", "description": "Adds."}}]),
)


def families_like(template: Template, date: str | None) -> dict[str, Template]:
    """Built-in templates, by name, that write some of the probes as `template` does: at most 3, the most similar first.

    They are only candidates: for each conversation it must be checked that the text is the same.

    Args:
        template: usually a model family's own.
        date: as in `load_template`.
    """
    theirs = [_written(template, probe) for probe in _PROBES]
    alike: list[tuple[int, str, Template]] = []
    for name in may_be_like(template.text):
        try:
            family = load_template(BUILT_IN[name], template.special_tokens, date)
        except ConfigError:  # this family writes a special token or date that is not given
            continue
        same = [text is not None and text == _written(family, p) for text, p in zip(theirs, _PROBES, strict=True)]
        if any(same[:3]):
            alike.append((sum(same), name, family))
    alike.sort(key=lambda one: -one[0])
    return {name: family for _, name, family in alike[:_MOST]}


def _written(template: Template, probe: _Probe) -> str | None:
    try:
        return template.render(probe.messages, probe.tools)[0]
    except ValueError:
        return None
