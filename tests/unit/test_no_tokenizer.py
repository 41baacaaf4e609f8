"""Stores of token ids whose tokenizer is not known."""

import json
from pathlib import Path

import pytest

import tokenstore
from tests.support.stores.building import Build, documents
from tokenstore.errors import ConfigError, TokenStoreError
from tokenstore.tokenizer import load_tokenizer
from tokenstore.views.decoding import Decoder


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in ([5, 6], [70_000, 2])))
    return path


def test_ids_without_a_tokenizer_are_stored_read_and_shown_as_numbers(build: Build, tokens: Path) -> None:
    """FMT-5: kind `none` has no file; the vocabulary decides the dtype."""
    result = build(tokens, tokenizer="none", vocab_size=70_001, records="tokens", eos_token="2")
    assert documents(result.path) == [[5, 6, 2], [70_000, 2]]
    with tokenstore.open_store(result.path) as store:
        assert (store.manifest.tokenizer.kind, store.manifest.tokenizer.file, store.dtype.name) == (
            "none",
            None,
            "uint32",
        )
        assert Decoder.of(store).text(store[0]) == "<5><6><2>"
        with pytest.raises(ConfigError, match="cannot decode: the store has none"):
            store.decode(0)


def test_a_store_without_a_tokenizer_grows(build: Build, tokens: Path, tmp_path: Path) -> None:
    result = build(tokens, tokenizer="none", vocab_size=70_001, records="tokens", eos=False)
    more = tmp_path / "more.jsonl"
    more.write_text('{"input_ids": [9]}\n')
    from tokenstore.builder import append_store

    append_store(result.path, [str(more)])
    assert documents(result.path) == [[5, 6], [70_000, 2], [9]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "none"}, "vocab_size: expected with the tokenizer none"),
        ({"tokenizer": "bytes", "vocab_size": 9}, "vocab_size: expected with the tokenizer none, and only there"),
        ({"tokenizer": "none", "vocab_size": 9, "records": "text"}, "none is only for records=tokens"),
        ({"tokenizer": "none", "vocab_size": 9}, "does not name its end-of-text token"),
        ({"tokenizer": "none", "vocab_size": 9, "eos_token": "</s>"}, "expected a token id"),
        ({"tokenizer": "none", "vocab_size": 9, "eos_token": "9"}, "expected an id below 9"),
    ],
)
def test_options_that_need_a_tokenizer_are_refused(build: Build, tokens: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tokens, **{"records": "tokens", **options})


def test_it_encodes_nothing() -> None:
    none = load_tokenizer("none", vocab_size=3)
    for call in (none.encode_batch, none.encode_batch_with_spans):
        with pytest.raises(TokenStoreError, match="cannot encode"):
            call(["a"])
    with pytest.raises(TokenStoreError, match="cannot encode"):
        none.encode_with_spans("a")
