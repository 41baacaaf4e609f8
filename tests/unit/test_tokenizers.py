"""Text <-> ids: bytes and Hugging Face tokenizers against their reference, special tokens, end of text, vocabulary
size.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, processors

import tokenstore
from tests.data.texts import TEXTS
from tokenstore.builder import BuildOptions, build_store
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import load_tokenizer

SPECIAL_TEXT = "before<|endoftext|>between<|user|> after <|endoftext|>"


def split(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """Ids of each text."""
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.fixture
def word_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the tokenizer.json of a vocabulary of whole words and special tokens; returns its path."""

    def write(vocabulary: dict[str, int], special: list[str] | None = None, name: str = "words") -> Path:
        words = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary), "")))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.add_special_tokens(special or [])
        path = tmp_path / name / "tokenizer.json"
        path.parent.mkdir()
        words.save(str(path))
        return path

    return write


def test_byte_ids_are_the_utf8_bytes_one_by_one() -> None:
    """The bytes tokenizer gives exactly the UTF-8 bytes of each text."""
    ids, lengths = load_tokenizer("bytes").encode_batch([*TEXTS, "", SPECIAL_TEXT])
    assert split(ids, lengths) == [list(text.encode()) for text in [*TEXTS, "", SPECIAL_TEXT]]
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)


@pytest.mark.parametrize("special_text", ["plain", "special"])
def test_huggingface_ids_equal_those_of_the_library_one_by_one(tokenizer_file: Path, special_text: str) -> None:
    """Each text of a batch gets the ids that the library gives it alone, without added special tokens."""
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    reference.encode_special_tokens = special_text == "plain"
    texts = [*TEXTS, "", SPECIAL_TEXT, " ", "\n\n", "a" * 5000]
    ids, lengths = load_tokenizer(str(tokenizer_file), special_text=special_text).encode_batch(texts)
    assert split(ids, lengths) == [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)


@given(st.lists(st.text(), max_size=8))
def test_any_batch_equals_its_texts_one_by_one(tokenizer_file: Path, texts: list[str]) -> None:
    """Texts of a batch do not influence each other, for both kinds of tokenizer."""
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    reference.encode_special_tokens = True
    ids, lengths = load_tokenizer(str(tokenizer_file)).encode_batch(texts)
    assert ids.tolist() == [i for text in texts for i in reference.encode(text, add_special_tokens=False).ids]
    assert lengths.sum() == ids.size
    assert lengths.size == len(texts)
    ids, lengths = load_tokenizer("bytes").encode_batch(texts)
    assert ids.astype(np.uint8).tobytes() == "".join(texts).encode()
    assert lengths.tolist() == [len(text.encode()) for text in texts]


def test_special_strings_are_text_by_default(tokenizer_file: Path) -> None:
    """By default no string in a text becomes a special id, and the text is recovered."""
    tokenizer = load_tokenizer(str(tokenizer_file))
    ids, _ = tokenizer.encode_batch([SPECIAL_TEXT])
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == SPECIAL_TEXT


def test_special_strings_become_special_ids_on_request(tokenizer_file: Path) -> None:
    """With special_text "special" each special string becomes its id, and decodes to itself."""
    tokenizer = load_tokenizer(str(tokenizer_file), special_text="special")
    ids, _ = tokenizer.encode_batch([SPECIAL_TEXT])
    assert tokenizer.special_tokens == ("<|endoftext|>", "<|user|>")
    assert np.count_nonzero(ids == tokenizer.eos_id) == 2
    assert tokenizer.decode(ids) == SPECIAL_TEXT


def test_special_strings_are_bytes_to_the_bytes_tokenizer() -> None:
    """With plain text no id is above 255."""
    ids, _ = load_tokenizer("bytes").encode_batch([SPECIAL_TEXT])
    assert int(ids.max()) < 256


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
@pytest.mark.parametrize("kind", ["bytes", "huggingface"])
def test_decoding_gives_the_text_back(tokenizer_file: Path, kind: str, text: str) -> None:
    """Text -> ids -> text is the identity in every script, followed by the end of text."""
    tokenizer = load_tokenizer("bytes" if kind == "bytes" else str(tokenizer_file))
    ids, _ = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(np.append(ids, tokenizer.eos_id)) == text + "<|endoftext|>"


def test_the_bytes_tokenizer_decodes_any_ids() -> None:
    """It shows its three special tokens, and replaces bytes that are not UTF-8."""
    ids = np.array([257, 72, 105, 256, 256, 0xFF, 258], np.uint16)
    assert load_tokenizer("bytes").decode(ids) == "<|startoftext|>Hi<|endoftext|><|endoftext|>\ufffd<|padding|>"
    assert load_tokenizer("bytes").decode(ids[:0]) == ""


def test_truncation_and_padding_of_the_file_are_switched_off(tokenizer_file: Path, tmp_path: Path) -> None:
    """A tokenizer.json that truncates and pads a model's inputs loses no text here."""
    plain = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    expected = plain.encode(TEXTS[0], add_special_tokens=False).ids
    plain.enable_truncation(5)
    plain.enable_padding(length=1000)
    plain.save(str(tmp_path / "tokenizer.json"))
    assert len(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXTS[0]).ids) == 1000
    ids, lengths = load_tokenizer(str(tmp_path / "tokenizer.json")).encode_batch([TEXTS[0], "a"])
    assert split(ids, lengths)[0] == expected
    assert lengths[1] == 1


def test_special_tokens_of_the_file_template_are_not_added(tokenizer_file: Path, tmp_path: Path) -> None:
    """Special tokens come from the build's options, never from the template in a tokenizer.json."""
    plain = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    plain.post_processor = processors.TemplateProcessing("<|user|> $A <|endoftext|>", None, [("<|user|>", 1), ("<|endoftext|>", 0)])  # fmt: skip
    plain.save(str(tmp_path / "tokenizer.json"))
    assert plain.encode("a").ids[0] == 1
    ids, _ = load_tokenizer(str(tmp_path / "tokenizer.json")).encode_batch(["a"])
    assert ids.tolist() == plain.encode("a", add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"])
def test_eos_is_found_by_its_usual_names(word_file: Callable[..., Path], name: str) -> None:
    """A tokenizer.json does not say which token ends a text: one with a usual name does."""
    assert load_tokenizer(str(word_file({"a": 0, "b": 1}, [name, "<other>"]))).eos_id == 2


def test_eos_is_not_guessed_between_two_names(word_file: Callable[..., Path]) -> None:
    """With two usual names in the vocabulary, a build asks for --eos and lists them."""
    path = word_file({"a": 0}, ["</s>", "<eos>"])
    assert load_tokenizer(str(path)).eos_id is None
    assert load_tokenizer(str(path), eos_token="<eos>").eos_id == 2


@pytest.mark.parametrize("token", ["<end>", {"content": "<end>", "special": True}], ids=["string", "object"])
def test_eos_is_found_by_tokenizer_config(word_file: Callable[..., Path], token: object) -> None:
    """tokenizer_config.json names end, beginning and padding, and takes precedence over usual names."""
    path = word_file({"a": 0}, ["<eos>", "<end>", "<begin>", "<pad>"])
    config = {"eos_token": token, "bos_token": "<begin>", "pad_token": "<pad>"}
    path.with_name("tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(str(path))
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (2, 3, 4)


@pytest.mark.parametrize("config", ["{", "[]", '{"eos_token": null}', '{"eos_token": 7}', '{"eos_token": "<none>"}'])
def test_an_unusable_tokenizer_config_is_ignored(word_file: Callable[..., Path], config: str) -> None:
    """The usual names are then used."""
    path = word_file({"a": 0}, ["<eos>"])
    path.with_name("tokenizer_config.json").write_text(config)
    tokenizer = load_tokenizer(str(path))
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (1, None, None)


@pytest.mark.parametrize(
    ("configured", "generation", "note"),
    [
        ("<turn>", None, "documents end with '<turn>' (2), the tokenizer's end of text; the vocabulary also has '<eos>' (1): choose with --eos, as in --eos '<eos>'"),
        ("<turn>", 1, "the vocabulary also has '<eos>' (1), and generation_config.json names '<eos>' (1): choose"),
        ("<turn>", [2, 1], "the vocabulary also has '<eos>' (1): choose"),
        ("<eos>", 2, "the tokenizer's end of text; generation_config.json names '<turn>' (2): choose with --eos, as in --eos '<turn>'"),
        ("<eos>", [1, 2], ""),
        (None, None, ""),
        ("<eos>", "x", ""),
        ("<eos>", 99, ""),
        ("<eos>", [99, 2], "the tokenizer's end of text; generation_config.json names '<turn>' (2)"),
    ],
)  # fmt: skip
def test_several_ends_of_text_are_noted(
    word_file: Callable[..., Path], configured: str | None, generation: object, note: str
) -> None:
    """If a chat model's files name the end of a turn and the vocabulary has an end of text, the user must choose."""
    path = word_file({"a": 0}, ["<eos>", "<turn>"])
    path.with_name("tokenizer_config.json").write_text(json.dumps({"eos_token": configured}))
    path.with_name("generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    found = load_tokenizer(str(path)).eos_note
    assert note in found
    assert bool(note) == bool(found)
    assert load_tokenizer(str(path), eos_token="<eos>").eos_note == ""


def test_a_requested_eos_takes_precedence(word_file: Callable[..., Path]) -> None:
    """--eos over tokenizer_config.json and usual names; an id, as recorded in a store, over --eos."""
    path = word_file({"a": 0}, ["<eos>", "<end>", "<turn>"])
    path.with_name("tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    assert load_tokenizer(str(path), eos_token="<turn>").eos_id == 3
    assert load_tokenizer(str(path), eos_token="<turn>", eos_id=0).eos_id == 0


def test_an_unknown_eos_token_is_refused(word_file: Callable[..., Path]) -> None:
    """The ConfigError lists the special tokens."""
    path = word_file({"a": 0}, ["<begin>", "<end>"])
    with pytest.raises(ConfigError, match=r"found '<eot>'.*special tokens: '<begin>', '<end>'") as caught:
        load_tokenizer(str(path), eos_token="<eot>")
    assert str(path) in str(caught.value)


def test_a_build_without_a_known_eos_is_refused(
    word_file: Callable[..., Path], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """Before anything is written, with a list of the special tokens."""
    path = word_file({"a": 0}, ["<begin>", "<turn>"])
    options = {"inputs": (str(jsonl("in.jsonl", ["a"])),), "output": tmp_path / "out", "tokenizer": str(path)}
    with pytest.raises(ConfigError, match=r"name it with --eos .*'<begin>', '<turn>'.*--no-eos"):
        build_store(BuildOptions(**options))
    assert not list(tmp_path.glob("out*"))
    assert build_store(BuildOptions(**options, eos=False)).num_tokens == 1


def test_an_eos_token_that_the_bytes_tokenizer_lacks_is_refused() -> None:
    """It has one end of text; requesting another is an error."""
    assert load_tokenizer("bytes", eos_token="<|endoftext|>").eos_id == 256
    with pytest.raises(ConfigError, match=r"eos token: .*'</s>'"):
        load_tokenizer("bytes", eos_token="</s>")


@pytest.mark.parametrize(
    ("vocabulary", "special", "size"),
    [({"a": 0, "b": 1}, [], 2), ({"a": 0, "b": 41}, [], 42), ({"a": 7}, ["<eos>"], 8), ({"a": 0, "b": 9}, ["<eos>"], 10)],
    ids=["dense", "hole", "only one id", "special in a hole"],
)  # fmt: skip
def test_vocab_size_is_one_more_than_the_largest_id(
    word_file: Callable[..., Path], vocabulary: dict[str, int], special: list[str], size: int
) -> None:
    """Ids can have gaps, so this is not the number of entries."""
    path = word_file(vocabulary, special)
    reference = tokenizers.Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    assert load_tokenizer(str(path)).vocab_size == max(reference.values()) + 1 >= size


def test_special_tokens_count_in_the_vocab_size(tokenizer_file: Path, tmp_path: Path) -> None:
    """Tokens added after training are part of the vocabulary."""
    plain = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    plain.add_special_tokens(["<|extra|>"])
    plain.add_tokens([AddedToken("plainly added", special=False)])
    plain.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.vocab_size == load_tokenizer(str(tokenizer_file)).vocab_size + 2
    assert tokenizer.special_tokens == ("<|endoftext|>", "<|extra|>", "<|user|>")


@pytest.mark.parametrize(("size", "dtype"), [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_a_store_is_uint16_as_long_as_every_id_fits(
    word_file: Callable[..., Path], jsonl: Callable[..., Path], tmp_path: Path, size: int, dtype: str
) -> None:
    """The largest id decides: 65,535 is the last that fits in two bytes."""
    path = word_file({"low": 0, "<eos>": 1, "high": size - 1})
    source = jsonl("in.jsonl", ["high low", "low high high"])
    result = build_store(BuildOptions((str(source),), tmp_path / "store", str(path)))
    assert (result.dtype, result.vocab_size) == (dtype, size)
    with tokenstore.open_store(tmp_path / "store") as store:
        assert [document.tolist() for document in store] == [[size - 1, 0, 1], [0, size - 1, size - 1, 1]]


def test_a_store_decodes_itself_with_its_own_copy_of_the_tokenizer(
    tokenizer_file: Path, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """A store contains its tokenizer's file byte for byte, and needs no other to decode."""
    copy = shutil.copy(tokenizer_file, tmp_path / "mine.json")
    build_store(BuildOptions((str(jsonl("in.jsonl", TEXTS)),), tmp_path / "store", copy))
    Path(copy).unlink()
    with tokenstore.open_store(tmp_path / "store") as store:
        assert [store.decode(i) for i in range(len(store))] == [text + "<|endoftext|>" for text in TEXTS]
    assert (tmp_path / "store" / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff\x00", b'{"model": {"type": "BPE"}}', b"[" * 100_000])
def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    """P9: for any contents of a tokenizer.json, the ConfigError names the file."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"expected a Hugging Face tokenizer\.json") as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)


def test_an_empty_vocabulary_is_refused(tmp_path: Path) -> None:
    """P9: a tokenizer.json saved before training is a ConfigError that names the file."""
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(models.BPE()).save(str(path))
    with pytest.raises(ConfigError, match="vocabulary") as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("spec", ["", "gpt2", "no/such/tokenizer.json", "."])
def test_an_unknown_tokenizer_is_refused(spec: str) -> None:
    """Neither `bytes` nor a file: the ConfigError shows the argument."""
    with pytest.raises(
        ConfigError,
        match="give the path of a tokenizer file, or 'bytes'; for a model on the Hugging Face hub, give hf://OWNER/NAME",
    ) as caught:
        load_tokenizer(spec)
    assert repr(spec) in str(caught.value)
