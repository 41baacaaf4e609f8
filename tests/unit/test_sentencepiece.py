"""sentencepiece models: ids equal the library's, special tokens, what such a model does not support, damaged files."""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import sentencepiece_model
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import load_tokenizer

NFKC = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}


def write(path: Path, **options: object) -> str:
    path.write_bytes(sentencepiece_model(**options))
    return str(path)


@pytest.mark.parametrize(
    "options", [{}, NFKC, {"model_type": "unigram", "vocab_size": 600}], ids=["bpe", "nfkc", "unigram"]
)
def test_ids_equal_those_of_the_library(tmp_path: Path, options: dict[str, object]) -> None:
    """Each text of a batch gets the ids that the sentencepiece library gives it alone, without special tokens."""
    tokenizer = load_tokenizer(write(tmp_path / "any name", **options))
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(**options))
    texts = [*TEXTS, "", " ", "  two  spaces ", "<s></s>", "ﬁ ½", "a" * 3000]
    ids, lengths = tokenizer.encode_batch(texts)
    assert ids.tolist() == [i for text in texts for i in library.encode(text)]
    assert lengths.tolist() == [len(library.encode(text)) for text in texts]
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert (tokenizer.kind, tokenizer.engine) == ("sentencepiece", "sentencepiece")


def test_the_model_names_its_special_tokens(tmp_path: Path) -> None:
    """End, beginning and padding, their names and the control symbols come from the model."""
    path = write(tmp_path / "m", pad_id=3, control_symbols=("<turn>",))
    tokenizer = load_tokenizer(path)
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id, tokenizer.vocab_size) == (2, 1, 3, 700)
    assert tokenizer.special_tokens == ("</s>", "<pad>", "<s>", "<turn>")
    assert tokenizer.token_names == {
        "eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>", "unk_token": "<unk>"}  # fmt: skip
    assert (tokenizer.file_name, tokenizer.data) == ("tokenizer.model", Path(path).read_bytes())
    other = load_tokenizer(path, "<turn>")
    assert (other.eos_id, other.token_names["eos_token"]) == (4, "<turn>")
    with pytest.raises(ConfigError, match=r"eos token: .*'<eot>'.*'</s>', '<pad>'"):
        load_tokenizer(path, "<eot>")


def test_a_model_without_end_of_text_has_none(tmp_path: Path) -> None:
    """An id of -1 in a model means that there is none."""
    tokenizer = load_tokenizer(write(tmp_path / "m", bos_id=-1, eos_id=-1))
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (None, None, None)


@given(st.text())
def test_decoding_gives_the_text_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """With byte fallback and without normalization a text is recovered, including spaces and control strings."""
    text = text.replace("\u2581", "_").replace("\0", "")  # its sign for a space, and what it cannot hold
    tokenizer = load_tokenizer(write(tmp_path_factory.getbasetemp() / "identity.model"))
    ids, _ = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text


def test_decoding_shows_special_tokens(tmp_path: Path) -> None:
    """Concatenated documents decode to their texts with the special tokens between them."""
    tokenizer = load_tokenizer(write(tmp_path / "m"))
    first, second = (tokenizer.encode_batch([text])[0].tolist() for text in TEXTS[:2])
    ids = np.array([1, *first, 2, 2, *second, 2], np.uint16)
    assert tokenizer.decode(ids) == f"<s>{TEXTS[0]}</s></s>{TEXTS[1]}</s>"
    assert tokenizer.decode(ids[:0]) == ""


def test_control_strings_in_a_text_are_text(tmp_path: Path) -> None:
    """No text is encoded as a control symbol, and requesting that is refused."""
    path = write(tmp_path / "m")
    ids, _ = load_tokenizer(path).encode_batch(["<s> a</s>"])
    assert not {1, 2} & set(ids.tolist())
    with pytest.raises(ConfigError, match="special text: expected plain or error for a sentencepiece tokenizer"):
        load_tokenizer(path, special_text="special")


@pytest.mark.parametrize(
    "option", [{"pattern": "gpt2"}, {"special_tokens": ["<a>"]}, {"add_special_tokens": True}], ids=str
)
def test_arguments_of_other_kinds_are_refused(tmp_path: Path, option: dict[str, object]) -> None:
    """A model contains its own rules; none can be added."""
    with pytest.raises(ConfigError, match="not valid for a sentencepiece tokenizer"):
        load_tokenizer(write(tmp_path / "m"), **option)


@pytest.mark.parametrize("data", [b"\n", b"\n\x05abc", b"\n" * 100, b"\n\x03\n\x01a"], ids=range(4))
def test_a_damaged_model_is_refused(tmp_path: Path, data: bytes) -> None:
    """P9: for any bytes, loading a model is a ConfigError that names the file."""
    path = tmp_path / "m"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="expected a sentencepiece model") as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_a_truncated_or_changed_model_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    """P9: a model with changed bytes is refused, or works as some model."""
    path = tmp_path_factory.getbasetemp() / "noise.model"
    data = sentencepiece_model()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    with contextlib.suppress(ConfigError):
        load_tokenizer(str(path)).encode_batch(TEXTS[:2])


def test_without_the_library_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model needs sentencepiece, and the message says how to install it."""
    path = write(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match=r"pip install 'tokenstore\[sentencepiece\]'"):
        load_tokenizer(path)
