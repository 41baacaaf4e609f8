"""Chat templates: finds and checks them, and renders conversations.

The engine is that of `transformers`, so a store holds exactly the text that inference will use. It is Jinja's immutable
sandbox: a template, which may come from anyone, cannot reach files or Python, but it can fill memory or loop for very long. A
template whose text depends on chance is refused; one that prints the date needs a date that is part of the build's options.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenstore.builder.documents.chat_templates import BUILT_IN, TURN_ENDS
from tokenstore.errors import ConfigError, how_to_install
from tokenstore.outside import MAX_SIDE_FILE_BYTES, read_file

_NAMES = ", ".join(BUILT_IN)

Span = tuple[int, int]  # characters [start, stop)


def find_template(spec: str | None, own: str | None) -> str:
    """The text of a chat template.

    Args:
        spec: a built-in name, or the path of a Jinja file; None for the tokenizer's own template.
        own: the text of the tokenizer's own template, if it has one.

    Raises:
        ConfigError: there is no such template, or its file is empty.
    """
    if spec is None:
        if own is None:
            raise ConfigError(
                f"chat template: the tokenizer has none; name one with --chat-template: {_NAMES}, or a .jinja file"
            )
        return own
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    try:
        data = read_file(Path(spec), MAX_SIDE_FILE_BYTES).decode("utf-8-sig")
        text = data.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"chat template: {spec!r} is neither a built-in template nor a readable file ({reason}); built-in: {_NAMES}"
        ) from error
    if not text.strip():
        raise ConfigError(f"chat template: {spec} is empty; use another template")
    return text


def foreign_template_note(spec: str | None, special_tokens: Sequence[str]) -> str:
    """A note for the user if a built-in template ends turns with a token that the vocabulary lacks; "" if not."""
    end = TURN_ENDS.get(spec or "", "")
    if not end or end in special_tokens:
        return ""
    return (
        f"chat template {spec} ends turns with {end!r}, which is not a special token of this tokenizer and will be encoded as"
        " several tokens of plain text; check that the template belongs to this model's family"
    )


@dataclass(frozen=True)
class Template:
    """A checked template, made by `load_template`.

    Attributes:
        text: Jinja, as the engine gets it.
        special_tokens: strings of special tokens by the names that templates use, such as "eos_token".
        has_marks: whether it marks the model's turns with `{% generation %}`.
        reads_tools: whether it uses the tools of a conversation.
    """

    text: str
    special_tokens: Mapping[str, str]
    has_marks: bool
    reads_tools: bool

    def render(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        """Render messages.

        Args:
            messages: each a dict with a role.
            tools: JSON schemas of the tools; None for none.
            prompt: end the text with the beginning of an assistant's message.
            marks: return the spans of the generation marks; only for a template with marks.

        Returns:
            The text, and the marked spans of characters in order, including empty ones; [] without `marks`.

        Raises:
            ValueError: the template rejects the messages or fails on them, with its own message.
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
            raise ValueError(
                f"the template fails: {' '.join(str(error).split())[:300] or type(error).__name__}"
            ) from error
        return texts[0], [(start, stop) for start, stop in found[0]] if marks else []


def load_template(text: str, special_tokens: Mapping[str, str], date: str | None = None) -> Template:
    """Check a template, before it renders any conversation.

    Args:
        text: Jinja, from `find_template`.
        special_tokens: such as {"eos_token": "</s>"}; "" for a token that the tokenizer does not have.
        date: the date for a template that prints today's, as YYYY-MM-DD.

    Raises:
        ConfigError: the text is not Jinja, has marks whose position cannot be determined, writes a special token or date that
            is not given, or depends on chance; or a library is missing.
    """
    try:
        return _checked(text, special_tokens, date)
    except ConfigError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # a number with thousands of digits; nested too deeply
        raise ConfigError(f"chat template: not valid Jinja: {str(error)[:200]}; use another template") from error


def _checked(text: str, special_tokens: Mapping[str, str], date: str | None) -> Template:
    try:
        import jinja2
        import transformers.utils.chat_template_utils  # noqa: F401  # if missing, fail now, not at the first conversation
        from jinja2.meta import find_undeclared_variables

        tree = _parse(text)
        names = find_undeclared_variables(tree)
    except ImportError as error:
        raise _missing(error) from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template: not valid Jinja: {error.message} (line {error.lineno})") from error
    _check_special(tree, names, special_tokens)
    _check_chance(tree, names)
    places = list(_mark_places(tree, False))
    if any(places):
        raise ConfigError(
            "chat template: a {% generation %} mark is inside a macro, call, filter, recursive loop or {% set %} block, where "
            "its position in the text cannot be determined; move it out"
        )
    if "strftime_now" in names:
        text = _dated(text, tree, date)
    return Template(text, dict(special_tokens), bool(places), "tools" in names)


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"chat template: the libraries transformers and jinja2 are needed ({error}); {how_to_install('chat')}"
    )


def _parse(text: str) -> Any:
    """The syntax tree, in which a generation mark is a `Scope`, which nothing else in a template is."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Marks(Extension):
        tags = {"generation"}  # noqa: RUF012  # as Jinja has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    environment = ImmutableSandboxedEnvironment(extensions=[Marks, loopcontrols])
    environment.globals.clear()  # so that names the engine provides are reported as undeclared too
    return environment.parse(text)


def _mark_places(node: Any, apart: bool) -> Iterator[bool]:
    """For every mark below `node`: whether it is in a part that is rendered separately, so that the engine misplaces it."""
    from jinja2 import nodes

    for child in node.iter_child_nodes():
        if is_mark := isinstance(child, nodes.Scope):
            yield apart
        buffers = isinstance(child, (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock))
        buffers = buffers or (isinstance(child, nodes.For) and child.recursive)
        yield from _mark_places(child, apart or is_mark or buffers)


def _check_special(tree: Any, names: set[str], special_tokens: Mapping[str, str]) -> None:
    """ConfigError for a special token that is not given. Jinja would write nothing for it, such as no end of turn."""
    from jinja2 import nodes

    tested = {test.node.name for test in tree.find_all(nodes.Test) if isinstance(test.node, nodes.Name)}
    missing = sorted(name for name in names - tested if name.endswith("_token") and special_tokens.get(name) is None)
    if missing:
        raise ConfigError(
            f"chat template: it writes {', '.join(missing)}, which the tokenizer does not have; put the "
            "tokenizer_config.json next to the tokenizer.json, name the token, or use another template"
        )


def _check_chance(tree: Any, names: set[str]) -> None:
    from jinja2 import nodes

    if "lipsum" in names or any(found.name == "random" for found in tree.find_all(nodes.Filter)):
        raise ConfigError(
            "chat template: its text depends on chance, so every build would differ; use another template"
        )


def _dated(text: str, tree: Any, date: str | None) -> str:
    """The template with a fixed date: a macro replaces `strftime_now` and knows all format strings in the template."""
    from jinja2 import nodes

    if date is None:
        raise ConfigError(
            "chat template: it prints today's date (strftime_now), so every build would differ; "
            "give a date with --chat-date, or use another template"
        )
    try:
        day = datetime.fromisoformat(date)
    except ValueError as error:
        raise ConfigError(f"chat date: expected a date like 2025-01-31, found {date!r}") from error
    texts = (const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str))
    days = {form: day.strftime(form) for form in sorted(set(texts)) if "%" in form}  # other strings do no harm
    known = f"{{{{ {days}[f] if f in {days} else raise_exception('date format not known: ' ~ f) }}}}"
    return f"{{% macro strftime_now(f) %}}{known}{{% endmacro %}}\n{text}"  # the engine removes the newline
