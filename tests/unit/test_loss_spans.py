"""The parts of a conversation in the loss: right for templates of every family, or refused with a reason. Templates are sandboxed."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores import chat_templates as styles
from tokenstore.builder.documents.chat import Conversation, read_conversation
from tokenstore.builder.documents.loss_spans import Renderer, in_loss
from tokenstore.builder.documents.templates import BUILT_IN, find_template
from tokenstore.errors import ConfigError

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DATE = "2025-01-31"


def dialogue(*texts: str, system: str | None = None, **last: object) -> Conversation:
    """User and assistant in turn; `last` has more fields for the last message."""
    said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    said[-1] |= last
    return read_conversation({"messages": said, "system": system})


TURNS = dialogue("Wie geht's? 🦊", "Gut 👩‍👩‍👧, danke!", "今日は何曜日ですか", "Пятница.")
SYSTEM = dialogue("¿Qué tal?", "Bien.", "مرحبا", "أهلا", system="Sei knapp.")


def parts(template: str, said: Conversation, train_on: str = "assistant", date: str | None = None) -> list[str]:
    """The parts in the loss of a conversation."""
    text, spans = Renderer(template, TOKENS, train_on, date).render(said)  # type: ignore[arg-type]
    return [text[start:stop] for start, stop in spans]


@pytest.mark.parametrize(
    ("template", "text", "first", "second"),
    [
        (
            "chatml",
            "<|im_start|>user\nWie geht's? 🦊<|im_end|>\n<|im_start|>assistant\nGut 👩‍👩‍👧, danke!<|im_end|>\n"
            "<|im_start|>user\n今日は何曜日ですか<|im_end|>\n<|im_start|>assistant\nПятница.<|im_end|>\n",
            "Gut 👩‍👩‍👧, danke!<|im_end|>",
            "Пятница.<|im_end|>",
        ),
        (
            "plain",
            "User: Wie geht's? 🦊\nAssistant: Gut 👩‍👩‍👧, danke!</s>\nUser: 今日は何曜日ですか\nAssistant: Пятница.</s>",
            " Gut 👩‍👩‍👧, danke!</s>",
            " Пятница.</s>",
        ),
        (
            "alpaca",
            "### Instruction:\nWie geht's? 🦊\n\n### Response:\nGut 👩‍👩‍👧, danke!</s>\n\n"
            "### Instruction:\n今日は何曜日ですか\n\n### Response:\nПятница.</s>",
            "Gut 👩‍👩‍👧, danke!</s>",
            "Пятница.</s>",
        ),
        (
            styles.CHATML,
            "<|im_start|>system\nBe of help.<|im_end|>\n"
            "<|im_start|>user\nWie geht's? 🦊<|im_end|>\n<|im_start|>assistant\nGut 👩‍👩‍👧, danke!<|im_end|>\n"
            "<|im_start|>user\n今日は何曜日ですか<|im_end|>\n<|im_start|>assistant\nПятница.<|im_end|>\n",
            "Gut 👩‍👩‍👧, danke!<|im_end|>\n",
            "Пятница.<|im_end|>\n",
        ),
        (
            styles.LLAMA,
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 31 Jan 2025\n\n<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWie geht's? 🦊<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nGut 👩‍👩‍👧, danke!<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n今日は何曜日ですか<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nПятница.<|eot_id|>",
            "Gut 👩‍👩‍👧, danke!<|eot_id|>",
            "Пятница.<|eot_id|>",
        ),
        (
            styles.MISTRAL,
            "<s>[INST] Wie geht's? 🦊 [/INST] Gut 👩‍👩‍👧, danke!</s>[INST] 今日は何曜日ですか [/INST] Пятница.</s>",
            " Gut 👩‍👩‍👧, danke!</s>",
            " Пятница.</s>",
        ),
        (
            styles.GEMMA,
            "<s><start_of_turn>user\nWie geht's? 🦊<end_of_turn>\n<start_of_turn>model\nGut 👩‍👩‍👧, danke!<end_of_turn>\n"
            "<start_of_turn>user\n今日は何曜日ですか<end_of_turn>\n<start_of_turn>model\nПятница.<end_of_turn>\n",
            "Gut 👩‍👩‍👧, danke!<end_of_turn>",
            "Пятница.<end_of_turn>",
        ),
    ],
    ids=["chatml", "plain", "alpaca", "qwen2", "llama", "mistral", "gemma"],
)
def test_the_text_and_its_parts_in_the_loss(template: str, text: str, first: str, second: str) -> None:
    """Answers with their ends are in the loss, only the last one, or everything; with marks and without."""
    template = BUILT_IN.get(template, template)
    assert Renderer(template, TOKENS, date=DATE).render(TURNS)[0] == text
    assert parts(template, TURNS, date=DATE) == [first, second]
    assert parts(template, TURNS, "last", DATE) == [second]
    assert parts(template, TURNS, "all", DATE) == [text]


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"deepseek-r1"}))  # which begins an answer with a thought
def test_a_prompt_is_the_text_before_an_answer(name: str) -> None:
    """The built-in templates write the same before a part in the loss as in a prompt."""
    for said in (TURNS, SYSTEM):
        renderer = Renderer(BUILT_IN[name], TOKENS, date=DATE)
        try:
            text, spans = renderer.render(said)
        except ValueError:
            assert name.startswith(("gemma", "mistral"))  # which have no place for this system message, or want one
            continue
        before, _ = renderer.template.render(said.messages[:-1], None, prompt=True)
        assert text[: spans[-1][0]] == before


def test_reasoning_that_is_removed_from_earlier_turns() -> None:
    """With marks the parts in the loss are known; without them only the last answer's."""
    said = dialogue("2+2?", "4", "3+3?", "6", reasoning_content="drei und drei")
    last = "<think>\ndrei und drei\n</think>\n\n6<|im_end|>"
    assert parts(styles.QWEN_MARKED, said) == ["4<|im_end|>", last]
    assert parts(styles.QWEN_MARKED, said, "last") == [last]
    assert parts(styles.OWN_QWEN, said, "last") == [last + "\n"]
    with pytest.raises(
        ValueError, match=r"message 2: the template writes it differently when other messages follow; use a "
    ):
        parts(styles.OWN_QWEN, said)
    assert parts(styles.OWN_QWEN, dialogue("2+2?", "4")) == ["<think>\n\n</think>\n\n4<|im_end|>\n"]


def test_tool_calls_are_in_the_loss() -> None:
    """The tool's answer is not. A template that would omit them is refused."""
    call = {"function": {"name": "clock", "arguments": {"zone": "MEZ"}}}
    said = read_conversation(
        {
            "messages": [
                {"role": "user", "content": "Uhr?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "15:00"},
                {"role": "assistant", "content": "Drei."},
            ],
            "tools": [{"name": "clock", "description": "gibt die Zeit"}],
        }
    )
    first = '\n<tool_call>{"name": "clock", "arguments": {"zone": "MEZ"}}</tool_call><|im_end|>'
    assert parts(styles.QWEN_MARKED, said)[0].endswith(first)
    assert len(parts(styles.QWEN_MARKED, said)) == 2
    with pytest.raises(ValueError, match="tools: the chat template does not write them"):
        parts(BUILT_IN["chatml"], said)
    with pytest.raises(ValueError, match="message 2: the chat template does not write tool_calls"):
        parts(BUILT_IN["chatml"], Conversation(said.messages))
    with pytest.raises(ValueError, match="message 2: the chat template does not write reasoning_content"):
        parts(BUILT_IN["chatml"], dialogue("2+2?", "4", thinking="zwei und zwei"))


def test_two_answers_in_a_row() -> None:
    """Each is in the loss if the template writes both."""
    said = read_conversation({"messages": [*TURNS.messages[:2], {"role": "assistant", "content": "Noch etwas?"}]})
    assert parts(styles.OWN_CHATML, said) == ["Gut 👩‍👩‍👧, danke!<|im_end|>\n", "Noch etwas?<|im_end|>\n"]
    assert parts(BUILT_IN["chatml"], said) == ["Gut 👩‍👩‍👧, danke!<|im_end|>", "Noch etwas?<|im_end|>"]
    with pytest.raises(ValueError, match="the template fails: roles must alternate"):
        parts(styles.MISTRAL, said)
    sparse = "{% for m in messages %}{{ m.content ~ ('' if loop.last and add_generation_prompt else '|') }}{% endfor %}"
    with pytest.raises(ValueError, match="the generation marks of the chat template overlap"):
        parts(sparse, said)


def test_an_answer_of_weight_0_is_not_in_the_loss() -> None:
    """A record can exclude a message from the loss."""
    said = Conversation(({**TURNS.messages[0]}, {**TURNS.messages[1], "weight": 0}, *TURNS.messages[2:]))
    for template in (styles.CHATML, BUILT_IN["chatml"]):
        assert [part.strip() for part in parts(template, said)] == ["Пятница.<|im_end|>"]
        with pytest.raises(ValueError, match="nothing to train on"):
            parts(template, Conversation(said.messages[:2]))


@pytest.mark.parametrize(
    ("template", "said", "reason"),
    [
        (styles.MISTRAL_MOVES, SYSTEM, "message 3: the template writes it differently when other messages follow"),
        (styles.MISTRAL, SYSTEM, "the template fails: roles must alternate"),
        (styles.GEMMA, SYSTEM, "the template fails: no system messages"),
        (styles.DEEPSEEK, TURNS, "message 2: the template begins a prompted answer differently from a given one"),
        (styles.ALWAYS_BEGINS, TURNS, "message 2: the template writes it differently when other messages follow"),
        (styles.ALWAYS_BEGINS, dialogue("a", "b"), "message 2: the template ignores add_generation_prompt"),
        (styles.CHATML, dialogue("nur eine Frage"), "nothing to train on: expected an assistant message, found none"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}u{% endif %}{% endfor %}",
            TURNS,
            "message 2: the template omits it",
        ),
        (
            "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}"
            "{% endfor %}",
            TURNS,
            "message 2: expected generation marks around some text, found none",
        ),
        (
            "{% generation %}{% endgeneration %}",
            dialogue("a", "b"),
            "message 2: expected generation marks around some text",
        ),
        ("{{ messages[9].content.x }}", TURNS, "the template fails: list object has no element 9"),
        ("{{ messages + 1 }}", TURNS, "the template fails: can only concatenate list"),
    ],
)
def test_a_conversation_with_uncertain_parts_is_refused(template: str, said: Conversation, reason: str) -> None:
    """A template that rewrites, rejects or omits something yields a reason, never a wrong mask."""
    with pytest.raises(ValueError, match=reason):
        parts(template, said)


def test_a_message_may_have_several_marks() -> None:
    """Adjacent parts are joined, and the last answer has all its parts."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}{% else %}<a>"
        "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}</a>{% endgeneration %}-"
        "{% generation %}{% endgeneration %}-"
        "{% generation %}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    assert parts(template, TURNS) == ["Gut 👩‍👩‍👧, danke!</a>", "</s>", "Пятница.</a>", "</s>"]
    assert parts(template, TURNS, "last") == ["Пятница.</a>", "</s>"]
    assert parts("{{ messages[0].role }}" + template, Conversation(TURNS.messages[1:2])) == [
        "Gut 👩‍👩‍👧, danke!</a>",
        "</s>",
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}a{{ m() }}",
        "{% set x %}{% generation %}x{% endgeneration %}{% endset %}a{{ x }}",
        "{% filter upper %}{% generation %}x{% endgeneration %}{% endfilter %}",
        "{% for m in messages recursive %}{% generation %}x{% endgeneration %}{% endfor %}",
        "{% generation %}a{% generation %}x{% endgeneration %}{% endgeneration %}",
        "{% if bos_token %}{% set x %}{% for m in messages %}{% generation %}x{% endgeneration %}{% endfor %}{% endset %}"
        "{% endif %}",
    ],
)
def test_marks_whose_position_is_unknown_are_refused(template: str) -> None:
    """The engine reports wrong positions for marks in parts that are rendered separately."""
    with pytest.raises(ConfigError, match="inside a macro, call, filter, recursive loop"):
        Renderer(template, TOKENS)


def test_a_template_that_prints_the_date_needs_one() -> None:
    """Otherwise it would make another store each day."""
    with pytest.raises(ConfigError, match=r"prints today's date \(strftime_now\).*; give a date"):
        Renderer(styles.LLAMA, TOKENS)
    with pytest.raises(ConfigError, match="chat date: expected a date like 2025-01-31, found 'today'"):
        Renderer(styles.LLAMA, TOKENS, date="today")
    asks = "\n  {% if strftime_now is defined %}{{ strftime_now('%Y-%m-%d') }}{% endif %}\n {{ strftime_now(f or \"%B '%y\") }}"
    assert parts(asks, TURNS, "all", DATE) == ["\n2025-01-31 January '25"]
    with pytest.raises(ValueError, match="the template fails: date format not known: %H"):
        parts("{% set f = '%' ~ 'H' %}" + asks, TURNS, "all", DATE)


@pytest.mark.parametrize("template", ["{{ lipsum() }}", "{{ messages | random }}"])
def test_a_template_that_depends_on_chance_is_refused(template: str) -> None:
    """The same build makes the same bytes."""
    with pytest.raises(ConfigError, match="its text depends on chance"):
        Renderer(template, TOKENS)


def test_a_special_token_the_tokenizer_lacks_is_refused() -> None:
    """The template would write nothing for it, and the model would never learn to stop."""
    with pytest.raises(ConfigError, match="writes bos_token, eos_token, which the tokenizer does not have"):
        Renderer(styles.MISTRAL, {})
    with pytest.raises(ConfigError, match="writes eos_token, which"):
        Renderer(BUILT_IN["plain"], {"bos_token": "<s>"})
    guarded = "{% if bos_token is defined %}{{ bos_token }}{% endif %}x"
    assert parts(guarded, TURNS, "all") == ["<s>x"]
    assert Renderer(guarded, {}, "all").render(TURNS)[0] == "x"
    assert Renderer("{{ bos_token }}x", {"bos_token": ""}, "all").render(TURNS)[0] == "x"


@pytest.mark.parametrize("template", ["{% if %}", "{% generation %}x", "{{ 'x' | nonsense }}", "{% for %}"])
def test_what_is_not_jinja_is_refused(template: str) -> None:
    """Before any conversation is read."""
    with pytest.raises(ConfigError, match=r"chat template: not valid Jinja: .* \(line 1\)"):
        Renderer(template, TOKENS)


def test_an_unknown_train_on_is_refused() -> None:
    """The message lists the three values."""
    with pytest.raises(ConfigError, match="train on: expected one of assistant, last, all, found 'first'"):
        Renderer(BUILT_IN["chatml"], {}, "first")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('exit') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ '{0.__class__.__mro__}'.format(messages).x.y }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
        "{% for i in range(1000000) %}{% endfor %}",
    ],
)
def test_a_hostile_template_reaches_nothing(template: str) -> None:
    """In the sandbox it reaches neither Python nor files nor the messages; the conversation is refused."""
    before = pickle.dumps(TURNS)
    with pytest.raises(ValueError, match=r"the template fails|nothing to learn"):
        parts(template, TURNS, "all")
    assert pickle.dumps(TURNS) == before


def test_templates_are_found(tmp_path: Path) -> None:
    """By a built-in name, by a path, or as the tokenizer's own; otherwise the message lists the names."""
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[0].content }}\r\n", "utf-8-sig")
    assert find_template(str(path), None) == "{{ messages[0].content }}\n"
    assert find_template("chatml", "own") == BUILT_IN["chatml"]
    assert find_template(None, "own") == "own"
    with pytest.raises(ConfigError, match=r"name one with --chat-template: chatml, plain, alpaca, .* or a .jinja file"):
        find_template(None, None)
    with pytest.raises(
        ConfigError,
        match=r"'x.jinja' is neither a built-in template nor a readable file \(No such .*chatml, plain, alpaca",
    ):
        find_template("x.jinja", "own")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="codec can't decode"):
        find_template(str(path), None)
    path.write_bytes(b"\n")
    with pytest.raises(ConfigError, match="is empty; use another"):
        find_template(str(path), None)


def test_a_missing_library_is_reported_and_torch_is_not_imported() -> None:
    """The engine is optional; it imports no torch and prints nothing."""
    use = "from tokenstore.builder.documents.loss_spans import Renderer; r = Renderer('x', {}, 'all')"
    show = "from tokenstore.builder.documents.chat import Conversation; import sys; print(r.render(Conversation(())), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", f"{use}; {show}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("('x', [(0, 1)]) False\n", "")
    hide = "import sys; sys.modules['transformers'] = None"
    done = subprocess.run([sys.executable, "-c", f"{hide}; {use}"], capture_output=True, text=True)
    assert "ConfigError: chat template: the libraries transformers and jinja2 are needed (" in done.stderr
    assert "pip install 'tokenstore[chat]'" in done.stderr


def test_a_renderer_can_be_pickled() -> None:
    """Workers render as the parent would."""
    renderer = Renderer(styles.LLAMA, TOKENS, date=DATE)
    assert pickle.loads(pickle.dumps(renderer)).render(TURNS) == renderer.render(TURNS)


def test_tokens_on_an_edge_are_not_in_the_loss() -> None:
    """A token counts if it has characters and all of them are inside one part."""
    tokens = np.array([[0, 2], [2, 2], [2, 4], [3, 5], [4, 7], [4, 6], [6, 8], [7, 9], [8, 9]], np.int64)
    found = in_loss(tokens, [(2, 6), (7, 9)])
    assert found.tolist() == [False, False, True, True, False, True, False, True, True]
    assert in_loss(tokens, []).tolist() == [False] * 9
    assert in_loss(tokens[:0], [(0, 5)]).shape == (0,)
