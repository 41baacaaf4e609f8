"""The parts of random conversations in the loss, against twins: texts put together by hand, a slow mask, the library's own mask."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.data.texts import TEXTS
from tests.support.stores import chat_templates as styles
from tokenstore.builder.documents.chat import Conversation, read_conversation, special_in_content
from tokenstore.builder.documents.loss_spans import Renderer, in_loss
from tokenstore.builder.documents.templates import BUILT_IN

SPECIAL = ["<|im_start|>", "<|im_end|>", "</s>"]
TOKENS = {"eos_token": "</s>"}
WORDS = st.one_of(st.sampled_from(TEXTS), st.text(min_size=1, max_size=30).filter(str.strip))
OFTEN_EMPTY = st.one_of(st.just(""), WORDS)


@st.composite
def conversations(draw: st.DrawFn, roles: tuple[str, ...] = ("user", "assistant", "tool")) -> Conversation:
    """Half of them have questions and answers in turn, half have turns of any role in any order, with an assistant's."""
    said = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    if draw(st.booleans()):
        said += [{"role": ("user", "assistant")[i % 2], "content": draw(WORDS)} for i in range(draw(st.integers(2, 6)))]
        return read_conversation({"messages": said})
    for _ in range(draw(st.integers(0, 5))):
        role = draw(st.sampled_from(roles))
        said.append({"role": role, "content": draw(WORDS if role == "assistant" else OFTEN_EMPTY)})
    said.insert(draw(st.integers(min(len(said), 1), len(said))), {"role": "assistant", "content": draw(WORDS)})
    return read_conversation({"messages": said})


def chatml(conversation: Conversation, learned_end: str, train_on: str) -> tuple[str, list[str]]:
    """A ChatML text and its parts in the loss, put together by hand."""
    text, parts = "", []
    for message in conversation.messages:
        text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        if message["role"] == "assistant":
            parts.append(message["content"] + learned_end)
    return text, {"assistant": parts, "last": parts[-1:], "all": [text]}[train_on]


UNMARKED = BUILT_IN["chatml"].replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
@pytest.mark.parametrize(("template", "end"), [(BUILT_IN["chatml"], "<|im_end|>"), (UNMARKED, "<|im_end|>")])
def test_the_assistants_turns_are_in_the_loss(template: str, end: str, train_on: str) -> None:
    """Marks and differences of prefixes yield the parts put together by hand, whatever the messages are."""
    renderer = Renderer(template, {}, train_on)  # type: ignore[arg-type]

    @given(conversations())
    def check(conversation: Conversation) -> None:
        text, spans = renderer.render(conversation)
        expected_text, expected = chatml(conversation, end, train_on)
        assert text == expected_text
        assert [text[start:stop] for start, stop in spans] == expected
        assert all(stop < start for (_, stop), (start, _) in pairwise(spans))

    check()


ENDS = {  # what an assistant's content is followed by, by family
    "CHATML": "<|im_end|>",
    "LLAMA": "<|eot_id|>",
    "MISTRAL": "</s>",
    "MISTRAL_MOVES": "</s>",
    "QWEN": "<|im_end|>",
    "OWN_QWEN": "<|im_end|>",
    "GEMMA": "<end_of_turn>",
}


@cache
def unmarked_renderer(style: str) -> Renderer:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return Renderer(getattr(styles, style), names, date="2025-01-31", all_special=list(ENDS.values()))


def check_unmarked(style: str, conversation: Conversation) -> None:
    """Everything the assistant says is in the loss, with the end of its turn, and nothing else; ValueError if refused."""
    said = [{**m, "content": f"⟦{i}⟧{m['content']}⟦/{i}⟧"} for i, m in enumerate(conversation.messages)]
    text, spans = unmarked_renderer(style).render(Conversation(tuple(said)))
    is_in_loss = np.array([any(start <= at < stop for start, stop in spans) for at in range(len(text))])
    for message in said:
        if message["role"] == "system" and message["content"] not in text:
            continue  # the template omits it
        start = text.index(message["content"])
        stop = start + len(message["content"])
        if message["role"] == "assistant":
            assert text.startswith(ENDS[style], stop)
            stop += len(ENDS[style])
        assert (is_in_loss[start:stop] == (message["role"] == "assistant")).all()
        is_in_loss[start:stop] = False
    rest = "".join(np.array(list(text))[is_in_loss])
    assert rest.replace("<think>\n\n</think>\n\n", "").strip() == ""


@pytest.mark.parametrize("style", ENDS)
@settings(max_examples=50)  # most conversations break a rule of these templates and are refused
@given(conversation=conversations(("user", "assistant")))
def test_without_marks_a_mask_is_right_or_refused(style: str, conversation: Conversation) -> None:
    """The loss mask is right, or the message says why there is none."""
    try:
        check_unmarked(style, conversation)
    except ValueError as error:
        if not any(words in str(error) for words in ("rewrites", "differently", "template fails")):
            raise


@pytest.mark.parametrize(
    ("style", "turns"), [(style, turns) for style in ENDS for turns in (1, 2) if (style, turns) != ("OWN_QWEN", 2)]
)
def test_without_marks_questions_and_answers_are_right(style: str, turns: int) -> None:
    """Plain dialogues are accepted, except where a template rewrites earlier answers (OWN_QWEN)."""
    messages = [{"role": role, "content": text} for text in TEXTS[:turns] for role in ("user", "assistant")]
    check_unmarked(style, read_conversation({"messages": messages}))


@st.composite
def spans(draw: st.DrawFn, longest: int = 60) -> list[tuple[int, int]]:
    """Spans in order that do not touch."""
    edges = sorted(draw(st.sets(st.integers(0, longest), max_size=16)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(spans(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=80))
def test_tokens_in_the_loss_against_a_slow_twin(parts: list[tuple[int, int]], tokens: list[tuple[int, int]]) -> None:
    """A token is in the loss if it has characters and each of them is; tokens may overlap and be in any order."""
    characters = [any(start <= at < stop for start, stop in parts) for at in range(80)]
    expected = [size > 0 and all(characters[start : start + size]) for start, size in tokens]
    found = in_loss(np.array([(start, start + size) for start, size in tokens], np.int64).reshape(-1, 2), parts)
    assert found.dtype == bool
    assert found.tolist() == expected


@pytest.fixture(scope="module")
def oracle(tokenizer_file: object) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer with the special tokens of the templates."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("template", [BUILT_IN["chatml"], BUILT_IN["plain"], BUILT_IN["alpaca"], styles.QWEN_MARKED])
def test_masks_of_templates_with_marks_are_those_of_the_library(oracle: Callable, template: str) -> None:
    """`apply_chat_template(return_assistant_tokens_mask=True)` returns the same tokens and mask, except on edges."""
    renderer = Renderer(template, TOKENS)
    roles = ("user", "assistant") if template == BUILT_IN["alpaca"] else ("user", "assistant", "tool")

    @given(conversations(roles))
    def check(conversation: Conversation) -> None:
        if special_in_content(conversation, SPECIAL):
            return
        text, spans = renderer.render(conversation)
        encoding = oracle.backend_tokenizer.encode(text, add_special_tokens=False)
        tokens = np.array(encoding.offsets, np.int64)
        expected = oracle.apply_chat_template(
            list(conversation.messages), chat_template=template, return_assistant_tokens_mask=True, return_dict=True
        )
        assert encoding.ids == expected["input_ids"]
        edges = np.array(spans).ravel()
        on_edge = ((tokens[:, :1] < edges) & (edges < tokens[:, 1:])).any(axis=1)
        mask = in_loss(tokens, spans)
        assert not (mask & on_edge).any()
        assert mask[~on_edge].tolist() == np.array(expected["assistant_masks"], bool)[~on_edge].tolist()
        assert on_edge.sum() <= 2 * len(spans)

    check()


@given(conversations(), st.sampled_from(SPECIAL), st.data())
def test_a_special_token_put_anywhere_is_found(conversation: Conversation, token: str, data: st.DataObject) -> None:
    """Wherever it is in a message, and the message is named."""
    at = data.draw(st.integers(0, len(conversation.messages) - 1))
    content = conversation.messages[at]["content"]
    cut = data.draw(st.integers(0, len(content)))
    said = list(conversation.messages)
    said[at] = {**said[at], "content": content[:cut] + token + content[cut:]}
    assert str(special_in_content(Conversation(tuple(said)), SPECIAL)).startswith(f"message {at + 1}: ")
    assert special_in_content(conversation, SPECIAL) is None or any(
        s in m["content"] for m in conversation.messages for s in SPECIAL
    )
