"""Builds of conversations, by tokens: where a document ends, and which part of it is in the loss."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import Build, contents
from tests.support.stores.vocabularies import variant

ASKED, ANSWERED = {"role": "user", "content": "Wie geht's?"}, {"role": "assistant", "content": "Gut."}
SILENT = {"role": "assistant", "content": ""}


@pytest.fixture
def chat_tokenizer(tokenizer_file: Path, tmp_path: Path) -> Callable[..., str]:
    """A tokenizer.json with the tokens of ChatML and a template next to it, made by chat_tokenizer(eos, template)."""

    def make(eos: str, template: str = "") -> str:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "chat_template": template}))
        return str(tmp_path / "tokenizer.json")

    return make


def shown(path: Path) -> list[str]:
    """Every document of a store as text, with the parts in the loss in brackets."""
    documents = []
    with tokenstore.open_store(path) as store:
        for i in range(len(store)):
            tokens = [store.tokenizer.decode(store[i][at : at + 1]) for at in range(len(store[i]))]
            documents.append("".join(f"[{t}]" if m else t for t, m in zip(tokens, store.loss_mask(i), strict=True)))
    return [document.replace("][", "") for document in documents]


def test_a_turn_that_ends_with_the_eos_token_and_a_newline_gets_no_second_eos(
    build: Build, jsonl: Callable[..., Path], chat_tokenizer: Callable[..., str]
) -> None:
    """If the template's own end token ends the document, the newline after it is dropped; another eos token follows
    both.
    """
    source = jsonl("chats.jsonl", [{"messages": [ASKED, ANSWERED]}, {"messages": [ASKED, ANSWERED, ASKED]}])
    text = "<|im_start|>user\nWie geht's?<|im_end|>\n<|im_start|>assistant\n[Gut.<|im_end|>]"
    question = "\n<|im_start|>user\nWie geht's?<|im_end|>"
    for eos, end in ("<|im_end|>", ""), ("<|endoftext|>", "\n<|endoftext|>"):
        made = build(source, output=eos[2:-2], tokenizer=chat_tokenizer(eos), records="chat", chat_template="chatml")
        assert shown(made.path) == [text + end, text + question + end]


def test_a_familys_own_template_without_marks(
    build: Build, jsonl: Callable[..., Path], chat_tokenizer: Callable[..., str]
) -> None:
    """The newline after a turn is not in the loss, and one end token is."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    for output, own in ("family", template), ("no family", template.replace("start|>", "start|>\t")):
        source = jsonl("chats.jsonl", [{"messages": [ASKED, ANSWERED]}])
        made = build(source, output=output, tokenizer=chat_tokenizer("<|im_end|>", own), records="chat")
        assert shown(made.path)[0].endswith("assistant\n[Gut.<|im_end|>]")


def test_of_an_empty_answer_the_end_token_is_in_the_loss(
    build: Build, jsonl: Callable[..., Path], chat_tokenizer: Callable[..., str]
) -> None:
    """An empty answer does not fail the build."""
    records = [{"messages": [ASKED, SILENT, ASKED, ANSWERED]}, {"instruction": "Wie geht's?", "output": ""}]
    made = build(
        jsonl("chats.jsonl", records), tokenizer=chat_tokenizer("<|im_end|>"), records="chat", chat_template="chatml"
    )
    assert made.counts["bad"] == 0
    first, second = shown(made.path)
    assert first.count("assistant\n[<|im_end|>]") == second.count("assistant\n[<|im_end|>]") == 1
    assert first.endswith("assistant\n[Gut.<|im_end|>]")


def test_both_engines_give_the_same_tokens_and_masks(
    build: Build, jsonl: Callable[..., Path], chat_tokenizer: Callable[..., str]
) -> None:
    """The fast engine derives the characters of tokens from their bytes; with NFC, split characters and empty turns."""
    texts = [*TEXTS, "", "e\u0301a\u0323\u0307", "🦊👩‍👩‍👧", "\n\n x", " <|im_end", "\u1112\u1161\u11ab"]
    records = [
        {
            "messages": [
                {"role": ("user", "assistant")[i % 2], "content": texts[(i * k + k) % len(texts)]} for i in range(k)
            ]
        }
        for k in range(2, 9)
    ]
    source = jsonl("chats.jsonl", records)
    path = Path(chat_tokenizer("<|im_end|>"))
    for normalizer in (None, {"type": "NFC"}):
        variant(path, path, lambda value, wanted=normalizer: value.update(normalizer=wanted))
        made = {
            engine: build(
                source,
                output=f"{engine} {normalizer}",
                tokenizer=str(path),
                records="chat",
                chat_template="qwen3",
                engine=engine,
            )
            for engine in ("reference", "fast")
        }
        stores = {engine: contents(result.path) for engine, result in made.items()}
        assert json.loads(stores["fast"]["manifest.json"])["tokenizer"]["engine"] == "gigatoken"
        assert made["fast"].digest == made["reference"].digest
        assert {name for name in stores["fast"] if stores["fast"][name] != stores["reference"][name]} == {
            "manifest.json"
        }


def test_a_template_of_another_family_is_noted(
    build: Build, jsonl: Callable[..., Path], chat_tokenizer: Callable[..., str]
) -> None:
    """Its end-of-turn token would become several tokens of text. With the family's own vocabulary there is no note."""
    source = jsonl("chats.jsonl", [{"messages": [ASKED, ANSWERED]}])
    tokenizer, notes = chat_tokenizer("<|endoftext|>"), {}
    for name in ("chatml", "phi4-mini", "alpaca"):
        found: list[str] = []
        build(source, output=name, tokenizer=tokenizer, records="chat", chat_template=name, note=found.append)
        notes[name] = [text for text in found if "chat template" in text]
    assert (notes["chatml"], notes["alpaca"]) == ([], [])
    assert len(notes["phi4-mini"]) == 1
    assert notes["phi4-mini"][0].startswith(
        "chat template phi4-mini ends turns with '<|end|>', which is not a special token"
    )
