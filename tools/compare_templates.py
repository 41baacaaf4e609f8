"""Compares the built-in chat templates with a model family's own, for the conversations in tests/support/stores/conversations.py.

    python -m tools.compare_templates qwen3=qwen3.jinja llama3=llama3.jinja
    python -m tools.compare_templates qwen3=Qwen3-8B/            a folder with tokenizer.json and tokenizer_config.json

A file is compared by text. With a folder, the tokens of a build are also compared with those of `apply_chat_template`. The
PyPI package trl has many families' own templates in its chat_templates folder. Exit code 1 if any text or token differs.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.support.stores.conversations import CONVERSATIONS
from tokenstore.builder.documents.chat import Conversation
from tokenstore.builder.documents.chat_templates import BUILT_IN
from tokenstore.builder.documents.convert import Document, DocumentReader
from tokenstore.builder.documents.encode import encode_documents
from tokenstore.builder.documents.loss_spans import Renderer
from tokenstore.builder.documents.templates import load_template
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.recipe import open_tokenizer
from tokenstore.tokenizer import load_tokenizer

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_DATE = "2025-01-31"


def compare(name: str, path: Path) -> tuple[dict[str, int], list[str]]:
    """Compare one built-in template with a family's own.

    Returns:
        The number of conversations that are the same and that one or both templates refuse; and a text for each difference.
    """
    tokenizer = load_tokenizer(str(path / "tokenizer.json"), special_text="special") if path.is_dir() else None
    text = path.read_text("utf-8") if tokenizer is None else tokenizer.chat_template or ""
    tokens = _TOKENS if tokenizer is None else dict(tokenizer.token_names)
    theirs, ours = load_template(text, tokens, _DATE), Renderer(BUILT_IN[name], tokens, "all", _DATE)
    counts = {"same": 0, "refused by both": 0, "refused here": 0, "refused there": 0}
    differences = []
    for title, conversation in CONVERSATIONS.items():
        expected = _or_none(partial(theirs.render, conversation.messages, conversation.tools))
        found = _or_none(partial(ours.render, conversation))
        if found is None or expected is None:
            counts[f"refused {'by both' if found == expected else 'here' if found is None else 'there'}"] += 1
        elif found != expected:
            differences.append(f"{name}: {title}:\n    theirs {expected!r}\n    ours   {found!r}")
        elif tokenizer is not None and (difference := _tokens_differ(path, tokens, text, name, conversation)):
            differences.append(f"{name}: {title}: {difference}")
        else:
            counts["same"] += 1
    return counts, differences


def _or_none(render: Callable[[], tuple[str, object]]) -> str | None:
    try:
        return render()[0]
    except ValueError:
        return None


def _tokens_differ(path: Path, names: dict[str, str], template: str, name: str, conversation: Conversation) -> str:
    """How the tokens of a build with the built-in template differ from the library's with the family's own; "" if not."""
    from transformers import PreTrainedTokenizerFast

    file = str(path / "tokenizer.json")
    library = PreTrainedTokenizerFast(tokenizer_file=file, **names)
    expected = library.apply_chat_template(
        list(conversation.messages), tools=conversation.tools, chat_template=template, return_dict=False
    )
    options = BuildOptions(("x",), Path("x"), file, records="chat", chat_template=name, train_on="all", eos=False)
    tokenizer = open_tokenizer(options)
    row = {"messages": list(conversation.messages), "tools": conversation.tools}
    document = DocumentReader(options, tokenizer).document(row)
    if not isinstance(document, Document):
        return document if isinstance(document, str) else document.reason
    found = encode_documents([document], tokenizer, options)
    return "" if np.array_equal(found.tokens, expected) else f"tokens {found.tokens.tolist()}, theirs {expected}"


def main(arguments: list[str]) -> int:
    """Compare all templates named; return 0 if nothing differs, 1 if something does, 2 for wrong usage."""
    if not arguments or not all("=" in argument and argument.split("=")[0] in BUILT_IN for argument in arguments):
        sys.stderr.write(f"{__doc__}\nNames: {', '.join(BUILT_IN)}\n")
        return 2
    differ = False
    for argument in arguments:
        name, path = argument.split("=", 1)
        counts, differences = compare(name, Path(path))
        differ |= bool(differences)
        sys.stdout.write(
            f"{name:<18}{', '.join(f'{n} {what}' for what, n in counts.items())}, {len(differences)} differ ({path})\n"
        )
        sys.stdout.write("".join(f"  {line}\n" for line in differences))
    return int(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
