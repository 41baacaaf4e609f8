"""Which part of a conversation's text is trained on: characters first, then tokens.

A template with `{% generation %}` marks says it itself. Most families' own templates have none. For those:

1. If a built-in template of the family (which has marks) writes the conversation as the very same text, its marks count.
2. Else an assistant's message is what the text gains when the message is added: the text up to it, with the beginning of
   an answer, against the text with it. Both must be beginnings of the whole text. Where they are not, the template writes
   a turn differently once others follow (it removes earlier reasoning, moves the system message), no place in the text is
   certain, and the conversation is refused.
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
    """Writes conversations as text and says which characters are in the loss. The same for the same conversation, anywhere."""

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, str],
        train_on: TrainOn = "assistant",
        date: str | None = None,
        all_special: Sequence[str] = (),
    ):
        """A renderer.

        Args:
            template: Jinja, from `find_template`.
            special_tokens: strings by the names templates know them by, such as {"eos_token": "</s>"}.
            train_on: every assistant message, the last one, or the whole text.
            date: what a template that prints today's date gets to print, as 2025-01-31.
            all_special: special tokens of the vocabulary. White space after one that ends a turn is not trained on.

        Raises:
            ConfigError: a template that cannot be used (see `load_template`), or an unknown `train_on`.
        """
        if train_on not in get_args(TrainOn):
            raise ConfigError(f"train on: expected one of {', '.join(get_args(TrainOn))}, found {train_on!r}")
        self.train_on = train_on
        self.ends = tuple(filter(None, (*all_special, *special_tokens.values())))
        self.template = load_template(template, special_tokens, date)
        self.families = {} if self.template.has_marks else families_like(self.template, date)

    def render(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The text of a conversation and its characters in the loss: half-open, in order, neither overlapping nor touching.

        Raises:
            ValueError: the template fails on it, leaves something of it out, or does not say what is in the loss.
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
        """Jinja passes over what a template does not name: a lost tool call must not pass silently."""
        if conversation.tools and not self.template.reads_tools:
            raise ValueError("tools: expected a template that writes them, found one that leaves them out")
        for i, message in enumerate(conversation.messages, 1):
            for names in (("tool_calls",), REASONING):
                if message.keys() & set(names) and not any(name in self.template.text for name in names):
                    raise ValueError(
                        f"message {i}: expected a template that writes {names[0]}, found one that leaves it out"
                    )

    def _gained(self, text: str, conversation: Conversation, wanted: list[int]) -> list[Span]:
        """What `text`, that of the whole conversation, gains with each wanted message."""
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
                    f"message {i + 1}: the template begins an answer in another way than it writes one, "
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
        """What to do about a template that does not show what is trained on."""
        like = next(iter(self.families), None)
        way = f"--chat-template {like}" if like else "a --chat-template with {% generation %} marks"
        return f"use {way}{', --train-on last' if last and self.train_on != 'last' else ''} or --train-on all"

    def _check_end(self, conversation: Conversation, before: str, through: str) -> None:
        """Some templates begin an answer at every end, asked or not: it would be in the loss as part of the last message."""
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
    """The text by a template with marks, and the marked characters of the wanted messages; `spoken`: all assistant messages."""
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
    """How many marks the first messages of a conversation have."""
    return len(template.render(conversation.messages[:count], conversation.tools, marks=True)[1]) if count else 0


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, without empty ones, those that touch joined."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and start < joined[-1][1]:
            raise ValueError("expected the parts to train on one after the other, found some that overlap")
        if start == stop:
            continue
        if joined and start == joined[-1][1]:
            start = joined.pop()[0]
        joined.append((start, stop))
    if not joined:
        raise ValueError("nothing to train on: expected some text of an assistant, found none")
    return joined


def in_loss(token_spans: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Which tokens are in the loss: those that lie wholly in one span. One without characters, or on an edge, is not.

    Args:
        token_spans: int64[n, 2], characters of each token, half-open.
        spans: as `Renderer.render` gives them.

    Returns: bool[n].
    """
    edges = np.array(spans, np.int64).reshape(-1, 2)
    if not len(edges):
        return np.zeros(len(token_spans), bool)
    starts, stops = token_spans[:, 0], token_spans[:, 1]
    at = np.searchsorted(edges[:, 0], starts, "right") - 1  # the last span that begins at or before the token
    inside: np.ndarray = (at >= 0) & (starts < stops) & (stops <= edges[np.maximum(at, 0), 1])
    return inside
