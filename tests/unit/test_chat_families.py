"""Built-in chat templates: what each writes and marks, and how their marks are used for a family's own template."""

import json
import re
from pathlib import Path

import pytest

from tests.support.stores.conversations import CONVERSATIONS
from tokenstore.builder.documents.chat import Conversation
from tokenstore.builder.documents.chat_templates import BUILT_IN, may_be_like
from tokenstore.builder.documents.loss_spans import Renderer
from tokenstore.builder.documents.template_families import families_like
from tokenstore.builder.documents.templates import load_template
from tools.compare_templates import main as compare_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DATE = "2025-01-31"
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "chat_templates.json").read_text("utf-8"))
FAMILIES = [name for name in BUILT_IN if may_be_like(BUILT_IN[name])]


def bare(name: str) -> str:
    """A built-in template without its marks, like most families' own."""
    return re.sub(r"{%- (end)?generation -%}", "", BUILT_IN[name])


def marked(renderer: Renderer, conversation: Conversation) -> str:
    """The text of a conversation with the parts in the loss in brackets, or why it is refused."""
    try:
        text, spans = renderer.render(conversation)
    except ValueError as error:
        return f"refused: {error}"
    for start, stop in reversed(spans):
        text = f"{text[:start]}⟦{text[start:stop]}⟧{text[stop:]}"
    return text


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_a_built_in_template_writes(name: str) -> None:
    """Facts about each format, compared with the families' own templates when they were written down."""
    renderer = Renderer(BUILT_IN[name], TOKENS, date=DATE)
    assert {title: marked(renderer, CONVERSATIONS[title]) for title in GOLDEN[name]} == GOLDEN[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_own_template_uses_the_marks_of_the_built_in_one(name: str) -> None:
    """For every conversation the built-in template writes: the same text and the same parts in the loss."""
    built_in, own = (Renderer(template, TOKENS, date=DATE) for template in (BUILT_IN[name], bare(name)))
    assert name in own.families
    for conversation in CONVERSATIONS.values():
        expected = marked(built_in, conversation)
        if not expected.startswith("refused"):
            assert marked(own, conversation) == expected


def test_conversations_with_reasoning_that_qwen3_removes_are_accepted() -> None:
    """Earlier turns are written without their reasoning; the marks of every turn are known nevertheless."""
    own = Renderer(bare("qwen3"), {}, date=DATE)
    found = marked(own, CONVERSATIONS["reasoning, earlier"])
    assert "\n⟦4<|im_end|>⟧\n" in found
    assert "\n⟦<think>\n\n</think>\n\n6<|im_end|>⟧\n" in found


def test_the_last_turn_of_a_conversation_that_ends_with_the_user() -> None:
    """`last` is the assistant's last turn, wherever it is."""
    conversation = CONVERSATIONS["ends with the user"]
    for template in (BUILT_IN["qwen3"], bare("qwen3")):
        found = marked(Renderer(template, {}, "last"), conversation)
        assert found.count("⟦") == 1
        assert "⟦Gut 👩‍👩‍👧, danke!<|im_end|>⟧\n<|im_start|>user\n今日は何曜日ですか<|im_end|>\n" in found


@pytest.mark.parametrize(
    ("train_on", "advice"),
    [
        ("assistant", "use --chat-template qwen3, --train-on last or --train-on all"),
        ("last", "use --chat-template qwen3 or --train-on all"),
    ],
)
def test_the_message_for_an_unusual_template_names_its_family(train_on: str, advice: str) -> None:
    """If the built-in template writes a conversation differently, the message says which one to use."""
    changed = bare("qwen3").replace(
        "'<|im_start|>' ~ message.role", "'<|im_start|>' ~ message.role ~ ('!' if messages | length > 3 else '')"
    )
    renderer = Renderer(changed, {}, train_on)  # type: ignore[arg-type]
    assert next(iter(renderer.families)) == "qwen3"
    conversation = CONVERSATIONS["two turns"] if train_on == "assistant" else CONVERSATIONS["ends with the user"]
    assert marked(renderer, conversation).endswith(
        f"the template writes it differently when other messages follow; {advice}"
    )


def test_the_message_for_a_template_of_no_family_asks_for_marks() -> None:
    """Marks are the remedy for an unknown template."""
    template = "{% for m in messages %}{{ (messages | length) ~ m.content }}{% endfor %}"
    found = marked(Renderer(template, {}), CONVERSATIONS["two turns"])
    assert "use a --chat-template with {% generation %} marks, --train-on last or --train-on all" in found


def test_the_most_similar_family_is_first() -> None:
    """Three Qwen templates and ChatML write some conversations alike, and others not."""
    for name in ("chatml", "qwen2.5", "qwen3", "qwen3-2507", "gemma", "gemma3", "deepseek-r1"):
        assert next(iter(families_like(load_template(bare(name), TOKENS, DATE), DATE))) == name


def test_a_family_whose_date_is_not_given_is_no_candidate() -> None:
    """Llama 3.2 prints the date; a template of Llama 3 works without one."""
    assert list(families_like(load_template(bare("llama3"), TOKENS), None)) == ["llama3"]


def test_the_comparison_with_a_familys_own_files(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A template alone, or with its vocabulary; differences are shown, and exit with 1."""
    (tmp_path / "own.jinja").write_text(bare("gemma3"), "utf-8")
    (tmp_path / "other.jinja").write_text(bare("gemma3").replace("model", "modell"), "utf-8")
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    config = {"bos_token": "<|user|>", "eos_token": "<|endoftext|>", "chat_template": bare("gemma3")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    assert compare_templates([f"gemma3={tmp_path}", f"gemma3={tmp_path / 'own.jinja'}"]) == 0
    assert capsys.readouterr().out.count("8 same") == 2
    assert compare_templates([f"gemma3={tmp_path / 'other.jinja'}"]) == 1
    assert "gemma3: one turn:\n    theirs " in capsys.readouterr().out
    assert compare_templates(["gemini=x"]) == compare_templates([]) == 2
