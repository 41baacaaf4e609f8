"""The kind of a tokenizer file, what a store keeps of it, and the files next to it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import processors

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import SPECIAL, rank_lines, sentencepiece_model
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import load_tokenizer


@pytest.fixture
def with_config(tokenizer_file: Path, tmp_path: Path) -> Callable[..., Path]:
    """A tokenizer.json with a tokenizer_config.json, and other files next to it."""

    def write(config: object = None, **files: str) -> Path:
        path = tmp_path / "tokenizer.json"
        path.write_bytes(tokenizer_file.read_bytes())
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", ["x", "tokenizer.json", "tokenizer.model", "a.tiktoken"])
def test_the_kind_follows_from_the_contents(tokenizer_file: Path, tmp_path: Path, name: str) -> None:
    """File names are used for all kinds, so they do not count."""
    path = tmp_path / name
    contents: list[tuple[bytes, dict[str, Any], str]] = [
        (tokenizer_file.read_bytes(), {}, "huggingface"),
        (b"\n  " + tokenizer_file.read_bytes(), {}, "huggingface"),
        (rank_lines(tokenizer_file), {"pattern": "gpt2"}, "tiktoken"),
        (rank_lines(tokenizer_file).replace(b"\n", b"\r\n"), {"pattern": "gpt2"}, "tiktoken"),
        (sentencepiece_model(), {}, "sentencepiece"),
    ]
    for data, options, kind in contents:
        path.write_bytes(data)
        tokenizer = load_tokenizer(str(path), **options)
        assert tokenizer.kind == kind
        path.write_bytes(tokenizer.data)
        assert load_tokenizer(str(path)).kind == kind


def test_what_a_store_keeps_gives_the_same_tokens(tokenizer_file: Path, tmp_path: Path) -> None:
    """A store needs only `data` under `file_name`; the bytes tokenizer needs no file."""
    (tmp_path / "ranks").write_bytes(rank_lines(tokenizer_file))
    (tmp_path / "model").write_bytes(sentencepiece_model())
    loaded = [
        load_tokenizer(str(tokenizer_file)),
        load_tokenizer(str(tmp_path / "ranks"), pattern="o200k_base", special_tokens=SPECIAL),
        load_tokenizer(str(tmp_path / "model")),
    ]
    for tokenizer in loaded:
        copy = tmp_path / tokenizer.file_name
        copy.write_bytes(tokenizer.data)
        again = load_tokenizer(str(copy), eos_id=tokenizer.eos_id)
        assert again.encode_batch(TEXTS)[0].tolist() == tokenizer.encode_batch(TEXTS)[0].tolist()
        assert (again.data, again.file_name) == (tokenizer.data, tokenizer.file_name)
        assert (again.vocab_size, again.eos_id, again.special_tokens) == (
            tokenizer.vocab_size, tokenizer.eos_id, tokenizer.special_tokens)  # fmt: skip
    assert [tokenizer.file_name for tokenizer in loaded] == ["tokenizer.json", "tiktoken.json", "tokenizer.model"]
    own = load_tokenizer("bytes")
    assert (own.data, own.file_name, own.chat_template) == (None, None, None)
    assert own.token_names["eos_token"] == "<|endoftext|>"


@pytest.mark.parametrize(
    "data", [b"", b"hello\n", b"[1]", b"\x00\x01", b"PK\x03\x04", b"YQ==\n", b"YQ== 0 1\n"], ids=repr
)
def test_a_file_of_unknown_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    """The message lists the known kinds, shows what was found and names the file."""
    path = tmp_path / "f"
    path.write_bytes(data)
    expected = r"expected a Hugging Face tokenizer\.json, a tekken\.json, a tiktoken rank file or a sentencepiece model, found b"
    with pytest.raises(ConfigError, match=expected) as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("option", [{"pattern": "gpt2"}, {"special_tokens": ["<a>"]}], ids=str)
def test_arguments_of_rank_files_are_refused_elsewhere(tokenizer_file: Path, option: dict[str, Any]) -> None:
    """An argument without an effect is an error."""
    with pytest.raises(ConfigError, match="not valid for a huggingface tokenizer"):
        load_tokenizer(str(tokenizer_file), **option)
    with pytest.raises(ConfigError, match="not valid for a bytes tokenizer"):
        load_tokenizer("bytes", **option)


def test_add_special_tokens_uses_the_template_of_the_file(tokenizer_file: Path, tmp_path: Path) -> None:
    """A tokenizer.json then puts its own tokens around every text."""
    library = Library.from_file(str(tokenizer_file))
    library.post_processor = processors.TemplateProcessing("<|user|> $A <|endoftext|>", None, [("<|user|>", 1), ("<|endoftext|>", 0)])  # fmt: skip
    library.save(str(tmp_path / "t.json"))
    ids, lengths = load_tokenizer(str(tmp_path / "t.json"), add_special_tokens=True).encode_batch(["a", "", TEXTS[0]])
    assert ids.tolist() == [i for text in ["a", "", TEXTS[0]] for i in library.encode(text).ids]
    assert lengths[1] == 2
    with pytest.raises(ConfigError, match="add special tokens: not valid for a bytes tokenizer"):
        load_tokenizer("bytes", add_special_tokens=True)


def test_names_of_special_tokens_come_from_tokenizer_config(with_config: Callable[..., Path]) -> None:
    """Chat templates use these names; the end of text is the one in use."""
    config = {
        "eos_token": "<|user|>",
        "bos_token": {"content": "<|endoftext|>"},
        "unk_token": "<none>",
        "pad_token": None,
    }
    path = str(with_config(config))
    assert load_tokenizer(path).token_names == {
        "eos_token": "<|user|>", "bos_token": "<|endoftext|>", "unk_token": "<none>"}  # fmt: skip
    assert load_tokenizer(path, "<|endoftext|>").token_names["eos_token"] == "<|endoftext|>"
    assert load_tokenizer(path, eos_id=0).token_names["eos_token"] == "<|endoftext|>"


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        (None, {}, None),
        ({}, {}, None),
        ({"chat_template": "{{ a }}"}, {}, "{{ a }}"),
        ({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}, {}, "d"),
        ({"chat_template": [{"name": "tool", "template": "t"}, 3]}, {}, None),
        ({"chat_template": [{"name": "default"}]}, {}, None),
        ({"chat_template": 7}, {}, None),
        (None, {"chat_template__jinja": "{% j %}\n"}, "{% j %}\n"),
        ({"chat_template": "old"}, {"chat_template__jinja": "new"}, "new"),
        ([], {}, None),
    ],
    ids=range(10),
)
def test_the_chat_template_is_found(
    with_config: Callable[..., Path], config: object, files: dict[str, str], expected: str | None
) -> None:
    """A separate file takes precedence over the configuration; of several templates the default one is used."""
    assert load_tokenizer(str(with_config(config, **files))).chat_template == expected
