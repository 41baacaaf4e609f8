"""`build_store`: impossible options and tokenizers are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.building import Build, left_behind
from tokenstore.builder import BuildOptions
from tokenstore.errors import BuildError, ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected 1 or more, found 0"),
        ({"max_bad": -1}, "max_bad: expected 0 or more, found -1"),
        ({"shard_bytes": 3}, "shard_bytes: expected 4 or more, found 3"),
        ({"inputs": ()}, "inputs: expected at least one"),
        ({"text_endings": ("md", "")}, r"found 'md'; .*found ''"),
        ({"text_field": ""}, "text_field: expected a name"),
        ({"document_start": "begin"}, "document_start: expected .*, found 'begin'"),
        ({"eos": "<|endoftext|>"}, "eos: expected True or False, found '<|endoftext|>'; eos_token names the token"),
        ({"special_text": "refuse"}, "special_text: expected .*, found 'refuse'"),
        ({"workers": 0, "max_bad": -1, "text_field": ""}, "workers: .*max_bad: .*text_field: "),
    ],
)
def test_impossible_options_are_refused_all_at_once(options: dict, message: str) -> None:
    """One ConfigError names all wrong options before anything is read."""
    with pytest.raises(ConfigError, match=message):
        BuildOptions(**{"inputs": ("a",), "output": Path("b"), "tokenizer": "bytes", **options})


def test_a_start_token_that_the_tokenizer_lacks_is_refused(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
) -> None:
    """ConfigError before anything is written."""
    with pytest.raises(ConfigError, match=r"document start: the tokenizer has no bos token"):
        build(jsonl("in.jsonl", ["a"]), tokenizer=str(tokenizer_file), document_start="bos")
    assert left_behind(tmp_path / "store") == []


def test_an_id_outside_the_vocabulary_is_refused_and_never_wrapped(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: an engine whose ids exceed its declared vocabulary is an error, and never a smaller number in a store."""
    wrong = (np.array([97, 65_536 + 97], np.uint32), np.array([2]))
    monkeypatch.setattr("tokenstore.tokenizer.raw_bytes.ByteTokenizer.encode_batch", lambda self, texts: wrong)
    with pytest.raises(BuildError, match="expected token ids below 259, found 65633"):
        build(jsonl("in.jsonl", ["a"]))
    assert not (tmp_path / "store").exists()
