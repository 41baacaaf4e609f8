"""Chat templates: finding one, what it reads, and its text for a list of messages.

The engine is the one of `transformers`, so a store holds the very text that inference will see. It is Jinja's immutable
sandbox: a template, which may come from anywhere, reaches neither files nor Python. It can still fill memory or loop for
very long. A template whose text changes from run to run (the date, chance) is refused, or given a date that is part of
the build.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenstore.builder.documents.chat_templates import BUILT_IN, TURN_ENDS
from tokenstore.errors import ConfigError
from tokenstore.outside import MAX_SIDE_FILE_BYTES, read_file
from tokenstore.tokenizer.request import how_to_install

_NAMES = ", ".join(BUILT_IN)

Span = tuple[int, int]  # characters from, to (not included)


def find_template(spec: str | None, own: str | None) -> str:
    """The text of a chat template.

    Args:
        spec: a built-in name, or the path of a Jinja file; None takes the tokenizer's own template.
        own: the text of the tokenizer's own template, if it has one.

    Raises:
        ConfigError: there is no such template.
    """
    if spec is None:
        if own is None:
            raise ConfigError(
                f"chat template: there is none beside the tokenizer; name one with --chat-template: {_NAMES}, or a .jinja file"
            )
        return own
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    try:
        data = read_file(Path(spec), MAX_SIDE_FILE_BYTES).decode("utf-8-sig")
        text = data.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"chat template: {spec!r} is no built-in template and no file ({reason}); the built-in ones are {_NAMES}"
        ) from error
    if not text.strip():
        raise ConfigError(f"chat template: expected a Jinja template, found an empty file ({spec}); write one")
    return text


def foreign_template_note(spec: str | None, special_tokens: Sequence[str]) -> str:
    """What a person should know where a built-in template ends its turns with a token that the vocabulary lacks; else ""."""
    end = TURN_ENDS.get(spec or "", "")
    if not end or end in special_tokens:
        return ""
    return (
        f"chat template {spec} ends turns with {end!r}, which is not a special token of this tokenizer and becomes several"
        " tokens of plain text; check that the template is the one of this model's family"
    )


@dataclass(frozen=True)
class Template:
    """A checked template. Made by `load_template`.

    Attributes:
        text: Jinja, as the engine gets it.
        special_tokens: strings by the names templates know them by, such as "eos_token".
        has_marks: it tells with `{% generation %}` what the model is to say.
        reads_tools: it does something with the tools of a conversation.
    """

    text: str
    special_tokens: Mapping[str, str]
    has_marks: bool
    reads_tools: bool

    def render(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        """The text of some messages, and where its generation marks are: characters, in order, also empty ones.

        Args:
            tools: JSON schemas of the tools, None for none.
            prompt: end with the beginning of an assistant's message.
            marks: look for the marks; only for a template that has them.

        Raises:
            ValueError: the template refuses the messages or fails on them; its own message.
        """
        try:
            from transformers.utils import chat_template_utils as library

            render: Any = library.render_jinja_template  # its annotation is that of another function
            texts, found = render(
                conversations=[list(messages)],
                tools=tools,
                chat_template=self.text,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **self.special_tokens,
            )
        except ImportError as error:
            raise _missing(error) from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise ValueError(f"the template fails: {' '.join(str(error).split())[:300]}") from error
        return texts[0], [(start, stop) for start, stop in found[0]] if marks else []


def load_template(text: str, special_tokens: Mapping[str, str], date: str | None = None) -> Template:
    """A template, checked before any conversation is seen.

    Args:
        text: Jinja, from `find_template`.
        special_tokens: such as {"eos_token": "</s>"}; "" says that the tokenizer has none.
        date: what a template that prints today's date gets to print, as 2025-01-31.

    Raises:
        ConfigError: not Jinja; marks whose place cannot be told; a special token that is written and not given; a date
            that is printed and not given; chance; a library is missing.
    """
    try:
        return _checked(text, special_tokens, date)
    except ConfigError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # a number of thousands of digits; nested too deep
        raise ConfigError(f"chat template: expected Jinja, found {str(error)[:200]}; use another template") from error


def _checked(text: str, special_tokens: Mapping[str, str], date: str | None) -> Template:
    try:
        import jinja2
        import transformers.utils.chat_template_utils  # noqa: F401  # told now and not at the first conversation
        from jinja2.meta import find_undeclared_variables

        tree = _parse(text)
        names = find_undeclared_variables(tree)
    except ImportError as error:
        raise _missing(error) from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template: expected Jinja, found {error.message} (line {error.lineno})") from error
    _check_special(tree, names, special_tokens)
    _check_chance(tree, names)
    places = list(_mark_places(tree, False))
    if any(places):
        raise ConfigError(
            "chat template: expected {% generation %} marks outside of macros, calls, filters, recursive loops and "
            "{% set %} blocks, where their place in the text cannot be told, found one inside; move it out"
        )
    if "strftime_now" in names:
        text = _dated(text, tree, date)
    return Template(text, dict(special_tokens), bool(places), "tools" in names)


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"chat template: expected the libraries transformers and jinja2, found {error}; {how_to_install('chat')}"
    )


def _parse(text: str) -> Any:
    """The syntax tree, a generation mark being a `Scope`, which no other part of a template is."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Marks(Extension):
        tags = {"generation"}  # noqa: RUF012  # as Jinja has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    environment = ImmutableSandboxedEnvironment(extensions=[Marks, loopcontrols])
    environment.globals.clear()  # so that a name the engine provides is told like any other
    return environment.parse(text)


def _mark_places(node: Any, apart: bool) -> Iterator[bool]:
    """For every mark below a node: is it in a part whose text is made apart, so that the engine misplaces it?"""
    from jinja2 import nodes

    for child in node.iter_child_nodes():
        if is_mark := isinstance(child, nodes.Scope):
            yield apart
        buffers = isinstance(child, (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock))
        buffers = buffers or (isinstance(child, nodes.For) and child.recursive)
        yield from _mark_places(child, apart or is_mark or buffers)


def _check_special(tree: Any, names: set[str], special_tokens: Mapping[str, str]) -> None:
    """An unknown name is an empty text to Jinja: a missing end-of-turn token must not pass silently."""
    from jinja2 import nodes

    tested = {test.node.name for test in tree.find_all(nodes.Test) if isinstance(test.node, nodes.Name)}
    missing = sorted(name for name in names - tested if name.endswith("_token") and special_tokens.get(name) is None)
    if missing:
        raise ConfigError(
            f"chat template: expected a tokenizer with {', '.join(missing)}, which the template writes, found none; "
            "put the tokenizer_config.json beside the tokenizer.json, name the token, or take another template"
        )


def _check_chance(tree: Any, names: set[str]) -> None:
    from jinja2 import nodes

    if "lipsum" in names or any(found.name == "random" for found in tree.find_all(nodes.Filter)):
        raise ConfigError(
            "chat template: expected the same text at every build, found one that draws at random; take another"
        )


def _dated(text: str, tree: Any, date: str | None) -> str:
    """The template with its clock stopped: a macro of the clock's name knows every format that is asked for."""
    from jinja2 import nodes

    if date is None:
        raise ConfigError(
            "chat template: expected the same text at every build, found one that prints the date (strftime_now); "
            "give the date it shall print, or take another template"
        )
    try:
        day = datetime.fromisoformat(date)
    except ValueError as error:
        raise ConfigError(f"chat date: expected a date like 2025-01-31, found {date!r}") from error
    texts = (const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str))
    days = {
        form: day.strftime(form) for form in sorted(set(texts)) if "%" in form
    }  # one that is no format does no harm
    known = f"{{{{ {days}[f] if f in {days} else raise_exception('date format not known: ' ~ f) }}}}"
    return f"{{% macro strftime_now(f) %}}{known}{{% endmacro %}}\n{text}"  # the engine takes the newline away
