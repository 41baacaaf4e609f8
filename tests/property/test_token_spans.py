"""The characters that each token covers, from which loss masks are made."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, processors

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import SPECIAL, rank_lines, sentencepiece_model, variant
from tokenstore.tokenizer import Tokenizer, load_tokenizer

TEMPLATE = processors.TemplateProcessing("<|user|> $A <|endoftext|>", None, [("<|user|>", 1), ("<|endoftext|>", 0)])
KINDS = ("bytes", "huggingface", "prefix", "trimmed", "tiktoken", "sentencepiece")
BYTE_LEVEL = KINDS[:-1]
texts = st.one_of(st.text(), st.lists(st.sampled_from([*TEXTS, " ", "  ", "\n", "é", "🦊", "e\u0301"])).map("".join))


@pytest.fixture(scope="module")
def tokenizers(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One tokenizer of every kind; `prefix` adds a space before a text, `trimmed` excludes spaces from its offsets."""
    folder = tmp_path_factory.mktemp("spans")
    (folder / "ranks").write_bytes(rank_lines(tokenizer_file))
    (folder / "model").write_bytes(sentencepiece_model())
    variant(tokenizer_file, folder / "prefix.json", lambda value: value["pre_tokenizer"].update(add_prefix_space=True))
    trimmed = Library.from_file(str(tokenizer_file))
    trimmed.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), TEMPLATE])
    trimmed.save(str(folder / "trimmed.json"))
    return {
        "bytes": load_tokenizer("bytes"),
        "huggingface": load_tokenizer(str(tokenizer_file)),
        "prefix": load_tokenizer(str(folder / "prefix.json")),
        "trimmed": load_tokenizer(str(folder / "trimmed.json")),
        "tiktoken": load_tokenizer(str(folder / "ranks"), pattern="cl100k_base", special_tokens=SPECIAL),
        "sentencepiece": load_tokenizer(str(folder / "model")),
    }


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_ids_with_spans_equal_those_without(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    """encode_with_spans returns the ids of encode_batch, and characters of the text in order."""
    ids, spans = tokenizers[kind].encode_with_spans(text)
    assert ids.tolist() == tokenizers[kind].encode_batch([text])[0].tolist()
    assert (ids.dtype, spans.dtype, spans.shape) == (np.uint32, np.int64, (ids.size, 2))
    assert (spans[:, 0] <= spans[:, 1]).all()
    assert (np.diff(spans, axis=0) >= 0).all()
    assert not spans.size or (spans[0, 0] >= 0 and spans[-1, 1] <= len(text))


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@given(text=texts)
def test_byte_level_spans_cover_the_text_without_holes(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    """Every character is covered; two adjacent tokens share at most the one character they divide."""
    _, spans = tokenizers[kind].encode_with_spans(text)
    if not text:
        assert spans.size == 0
        return
    assert (spans[:, 0] < spans[:, 1]).all()
    assert (spans[0, 0], spans[-1, 1]) == (0, len(text))
    shared = spans[:-1, 1] - spans[1:, 0]
    assert (shared >= 0).all()
    if kind != "prefix":  # the space added before a text covers the first character
        assert (shared <= 1).all()


@pytest.mark.parametrize("kind", ["huggingface", "trimmed", "tiktoken"])
@given(text=texts)
def test_a_span_is_the_characters_of_its_bytes(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    """Against counting bytes: a token covers the characters that its bytes begin and end in."""
    tokenizer = tokenizers[kind]
    if kind == "tiktoken":
        num_bytes = {rank: len(token) for token, rank in tokenizer.rank_file.ranks.items()}
    else:
        vocabulary = json.loads(tokenizer.data)["model"]["vocab"]
        num_bytes = {i: len(token) for token, i in vocabulary.items()}  # a letter of it is a byte
    owner = [number for number, character in enumerate(text) for _ in character.encode("utf-8")]
    ids, spans = tokenizer.encode_with_spans(text)
    at = 0
    for i, (start, stop) in zip(ids.tolist(), spans.tolist(), strict=True):
        assert (start, stop) == (owner[at], owner[at + num_bytes[i] - 1] + 1)
        at += num_bytes[i]
    assert at == len(owner)


@given(text=texts)
def test_sentencepiece_spans_cover_the_text(tokenizers: dict[str, Tokenizer], text: str) -> None:
    """A model that changes nothing covers every character; all bytes of one character cover it."""
    text = text.replace("\0", "")
    tokenizer = tokenizers["sentencepiece"]
    ids, spans = tokenizer.encode_with_spans(text)
    covered = np.zeros(len(text), bool)
    for start, stop in spans.tolist():
        covered[start:stop] = True
    assert covered.all()
    empty = np.flatnonzero(spans[:, 0] == spans[:, 1])
    assert empty.tolist() in ([], [0])  # the space added before a text may be a separate token
    assert (spans[1:, 0] >= spans[:-1, 0]).all()
    assert ids.size == spans.shape[0]


@pytest.mark.parametrize("special_text", ["plain", "special"])
def test_added_special_tokens_cover_nothing(tokenizers: dict[str, Tokenizer], special_text: str) -> None:
    """Tokens that a template adds have the span (0, 0); those written in the text cover their characters."""
    path = str(tokenizers["trimmed"].file)
    text = " one<|user|> two 🦊"
    plain = load_tokenizer(path, special_text=special_text)
    added = load_tokenizer(path, special_text=special_text, add_special_tokens=True)
    ids, spans = plain.encode_with_spans(text)
    more, more_spans = added.encode_with_spans(text)
    assert more.tolist() == [1, *ids.tolist(), 0] == added.encode_batch([text])[0].tolist()
    assert more_spans.tolist() == [[0, 0], *spans.tolist(), [0, 0]]
    if special_text == "special":
        assert spans[ids.tolist().index(1)].tolist() == [4, 12]


@pytest.mark.parametrize("change", [normalizers.NFC(), normalizers.NFKC(), normalizers.Lowercase()], ids=str)
@given(text=texts)
def test_spans_with_a_normalizer_refer_to_the_original_text(
    tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory, change: normalizers.Normalizer, text: str
) -> None:
    """In order and inside it."""
    path = tmp_path_factory.getbasetemp() / f"{type(change).__name__}.json"
    library = Library.from_file(str(tokenizer_file))
    library.normalizer = change
    library.save(str(path))
    tokenizer = load_tokenizer(str(path))
    ids, spans = tokenizer.encode_with_spans(text)
    assert ids.tolist() == tokenizer.encode_batch([text])[0].tolist()
    assert ((spans >= 0) & (spans <= len(text))).all()
    assert (spans[:, 0] <= spans[:, 1]).all()


def test_metaspace_spans_include_the_space_before_a_word(tmp_path: Path) -> None:
    """The sign for a space covers its space; the one added before a text covers the first character."""
    library = Library(models.BPE({"▁": 0, "a": 1, "b": 2, "▁b": 3}, [("▁", "b")]))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.save(str(tmp_path / "t.json"))
    ids, spans = load_tokenizer(str(tmp_path / "t.json")).encode_with_spans("a b")
    assert (ids.tolist(), spans.tolist()) == ([0, 1, 3], [[0, 1], [0, 1], [1, 3]])
