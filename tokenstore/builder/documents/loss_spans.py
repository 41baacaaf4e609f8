"""Finds the part of a conversation's text that is in the loss: first as characters, then as tokens.

A template with `{% generation %}` marks says it itself. Most model families' own templates have no marks. For those:

1. If a built-in template of the family, which has marks, writes exactly the same text for the conversation, its marks count.
2. Otherwise two texts are compared: the messages before the assistant's, with the beginning of an answer, and the messages up
   to and including it. What the second adds to the first is in the loss. Both must be prefixes of the whole text. If they are
   not, the template writes a turn differently when others follow: it drops earlier reasoning or moves the system message. Then
   no position in the text is certain, and the conversation is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from tokenstore.builder.documents.chat import REASONING, Conversation
from tokenstore.builder.documents.template_families import families_like
from tokenstore.builder.documents.templates import Span, Template, load_template
from tokenstore.errors import ConfigError

TrainOn = Literal["assistant", "last", "all"]


class Renderer:
    """Writes conversations as text and says which characters are in the loss; deterministic."""

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, str],
        train_on: TrainOn = "assistant",
        date: str | None = None,
        all_special: Sequence[str] = (),
    ):
        """Load the template.

        Args:
            template: Jinja, from `find_template`.
            special_tokens: strings by the names that templates use, such as {"eos_token": "</s>"}.
            train_on: every assistant message, the last one, or the whole text.
            date: the date for a template that prints today's, as YYYY-MM-DD.
            all_special: special tokens of the vocabulary. White space after one that ends a turn is not in the loss.

        Raises:
            ConfigError: the template cannot be used (see `load_template`), or `train_on` is unknown.
        """
        if train_on not in get_args(TrainOn):
            raise ConfigError(f"train on: expected one of {', '.join(get_args(TrainOn))}, found {train_on!r}")
        self.train_on = train_on
        self.ends = tuple(filter(None, (*all_special, *special_tokens.values())))
        self.template = load_template(template, special_tokens, date)
        self.families = {} if self.template.has_marks else families_like(self.template, date)

    def render(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The text of a conversation, and its spans of characters in the loss: in order, separated, not empty.

        Raises:
            ValueError: the template fails on the conversation or omits a part of it, or the spans cannot be determined.
        """
        self._check_read(conversation)
        if self.train_on == "all":
            text, _ = self.template.render(conversation.messages, conversation.tools)
            return text, _joined([(0, len(text))])
        spoken = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if not spoken:
            raise ValueError("nothing to train on: expected an assistant message, found none")
        wanted = spoken[-1:] if self.train_on == "last" else spoken
        wanted = [i for i in wanted if conversation.messages[i].get("weight", 1)]
        text, spans = self._text_and_spans(conversation, spoken, wanted)
        return text, _joined(spans)

    def _text_and_spans(
        self, conversation: Conversation, spoken: list[int], wanted: list[int]
    ) -> tuple[str, list[Span]]:
        if self.template.has_marks:
            return _marked(self.template, conversation, spoken, wanted)
        text, _ = self.template.render(conversation.messages, conversation.tools)
        for family in self.families.values():
            try:
                theirs, spans = _marked(family, conversation, spoken, wanted)
            except ValueError:
                continue
            if theirs == text:
                return text, spans
        return text, self._gained(text, conversation, wanted)

    def _check_read(self, conversation: Conversation) -> None:
        """ValueError if the template never mentions tools, tool calls or reasoning that the conversation has."""
        if conversation.tools and not self.template.reads_tools:
            raise ValueError("tools: the chat template does not write them")
        for i, message in enumerate(conversation.messages, 1):
            for names in (("tool_calls",), REASONING):
                if message.keys() & set(names) and not any(name in self.template.text for name in names):
                    raise ValueError(f"message {i}: the chat template does not write {names[0]}")

    def _gained(self, text: str, conversation: Conversation, wanted: list[int]) -> list[Span]:
        """The spans that each wanted message adds to `text`, the text of the whole conversation."""
        spans = []
        for i in wanted:
            before, _ = self.template.render(conversation.messages[:i], conversation.tools, prompt=True)
            through, _ = self.template.render(conversation.messages[: i + 1], conversation.tools)
            if not text.startswith(through):
                raise ValueError(
                    f"message {i + 1}: the template writes it differently when other messages follow; {self._advice()}"
                )
            if not through.startswith(before):
                raise ValueError(
                    f"message {i + 1}: the template begins a prompted answer differently from a given one, "
                    f"or rewrites earlier messages; {self._advice(last=False)}"
                )
            if len(before) == len(through):
                raise ValueError(f"message {i + 1}: the template omits it; use another template, or --train-on all")
            if i == len(conversation.messages) - 1:
                self._check_end(conversation, before, through)
            end = len(through.rstrip()) if through.rstrip().endswith(self.ends) else len(through)
            spans.append((len(before), max(len(before), end)))
        return spans

    def _advice(self, last: bool = True) -> str:
        """What to do if the spans in the loss cannot be determined from a template."""
        like = next(iter(self.families), None)
        way = f"--chat-template {like}" if like else "a --chat-template with {% generation %} marks"
        return f"use {way}{', --train-on last' if last and self.train_on != 'last' else ''} or --train-on all"

    def _check_end(self, conversation: Conversation, before: str, through: str) -> None:
        """ValueError if the template always ends with the beginning of an answer.

        That beginning would be in the loss, as a part of the last message.
        """
        last = len(conversation.messages) - 1
        if self.template.render(conversation.messages[:last], conversation.tools)[0] == before:
            another = {"role": "user", "content": "?"}
            if not self.template.render((*conversation.messages, another), conversation.tools)[0].startswith(through):
                raise ValueError(
                    f"message {last + 1}: the template ignores add_generation_prompt and rewrites the end; "
                    f"{self._advice(last=False)}"
                )


def _marked(
    template: Template, conversation: Conversation, spoken: list[int], wanted: list[int]
) -> tuple[str, list[Span]]:
    """The text by a template with marks, and the marked spans of the wanted messages.

    `spoken` and `wanted` are indices of messages: all of the assistant, and those in the loss.
    """
    text, marks = template.render(conversation.messages, conversation.tools, marks=True)
    spans = []
    for i in wanted:
        if len(marks) == len(spoken):
            mine = [marks[spoken.index(i)]]
        else:
            mine = marks[_num_marks(template, conversation, i) : _num_marks(template, conversation, i + 1)]
        if all(start == stop for start, stop in mine):
            raise ValueError(f"message {i + 1}: expected generation marks around some text, found none")
        spans += mine
    return text, spans


def _num_marks(template: Template, conversation: Conversation, count: int) -> int:
    """Number of marks in the text of the first `count` messages."""
    return len(template.render(conversation.messages[:count], conversation.tools, marks=True)[1]) if count else 0


def _joined(spans: list[Span]) -> list[Span]:
    """Spans without empty ones, adjacent ones joined; ValueError if they overlap or nothing is left."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and start < joined[-1][1]:
            raise ValueError("the generation marks of the chat template overlap")
        if start == stop:
            continue
        if joined and start == joined[-1][1]:
            start = joined.pop()[0]
        joined.append((start, stop))
    if not joined:
        raise ValueError("nothing to train on: expected some text of an assistant, found none")
    return joined


def in_loss(token_spans: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Which tokens are in the loss: those whose characters are all in one span.

    A token without characters, or one that extends over the edge of a span, is not.

    Args:
        token_spans: int64[n, 2], the half-open span of characters of each token, in order.
        spans: from `Renderer.render`.

    Returns:
        bool[n].
    """
    edges = np.array(spans, np.int64).reshape(-1, 2)
    if not len(edges):
        return np.zeros(len(token_spans), bool)
    starts, stops = token_spans[:, 0], token_spans[:, 1]
    at = np.searchsorted(edges[:, 0], starts, "right") - 1  # the last span that begins at or before the token
    inside: np.ndarray = (at >= 0) & (starts < stops) & (stops <= edges[np.maximum(at, 0), 1])
    return inside
