"""Mistral's tekken.json: ids after the special tokens, as a plain tiktoken encoding with the offset gives them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken

from tests.data.texts import TEXTS
from tests.support.stores.building import Build
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import load_tokenizer
from tokenstore.tokenizer.patterns import PATTERNS

SPECIAL = 30
MERGED = [b"th", b"the", b" a", b"in", b"\xe2\x98", b"unused"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *MERGED]


def tekken(**changes: object) -> dict:
    size = SPECIAL + len(TOKENS) - 1  # the vocabulary is longer than the default size
    return {
        "config": {"pattern": PATTERNS["o200k_base"].regex, "num_vocab_tokens": len(TOKENS), "default_vocab_size": size,
                   "default_num_special_tokens": SPECIAL, "version": "v3"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(TOKENS)],
        **changes,
    }  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(value: object, name: str = "tekken.json") -> Path:
        (tmp_path / name).write_text(json.dumps(value))
        return tmp_path / name

    return write


def test_ids_are_ranks_after_the_special_tokens(written: Callable[..., Path]) -> None:
    plain = tiktoken.Encoding(
        "plain",
        pat_str=PATTERNS["o200k_base"].regex,
        mergeable_ranks={t: i for i, t in enumerate(TOKENS[:-1])},
        special_tokens={},
    )
    tokenizer = load_tokenizer(str(written(tekken())))
    for text in [*TEXTS, "the [INST] </s> in\n\n☃"]:
        ids = tokenizer.encode_batch([text])[0].tolist()
        assert ids == [SPECIAL + i for i in plain.encode(text, disallowed_special=())]
        assert tokenizer.decode(ids) == text
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (
        SPECIAL + len(TOKENS) - 1,
        2,
        1,
        11,
    )
    assert "<SPECIAL_29>" in tokenizer.special_tokens


def test_special_tokens_may_be_listed(written: Callable[..., Path]) -> None:
    names = ["<unk>", "<s>", "</s>", "[INST]", "<pad>"]
    value = tekken(special_tokens=[{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)])
    tokenizer = load_tokenizer(str(written(value)), special_text="special")
    assert tokenizer.encode_batch(["[INST]a<SPECIAL_5>"])[0].tolist() == [3, SPECIAL + ord("a"), 5]
    assert (tokenizer.eos_id, tokenizer.pad_id) == (2, 4)


def test_a_store_keeps_the_tokenizer(build: Build, written: Callable[..., Path], tmp_path: Path) -> None:
    import tokenstore

    (tmp_path / "a.txt").write_text("the text")
    result = build(tmp_path / "a.txt", tokenizer=str(written(tekken())))
    with tokenstore.open_store(result.path) as store:
        assert store.decode(0) == "the text</s>"


WRONG = {
    "no vocabulary": {"vocab": []},
    "no list": {"vocab": {"token_bytes": 1}},
    "a rank out of order": {"vocab": list(reversed(tekken()["vocab"]))},
    "sizes": {"config": {**tekken()["config"], "default_vocab_size": 1 << 40}},
    "no pattern": {"config": {"default_vocab_size": 285, "default_num_special_tokens": SPECIAL}},
    "a special token outside": {"special_tokens": [{"rank": 99, "token_str": "x"}]},
    "a special token twice": {"special_tokens": [{"rank": i, "token_str": "x"} for i in (0, 1)]},
    "no number": {"special_tokens": [{"rank": "0", "token_str": "x"}]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_file_is_refused(written: Callable[..., Path], wrong: str) -> None:
    value = {**tekken(), **WRONG[wrong]}
    value.setdefault("x", '"token_bytes"')
    path = written(value)
    path.write_text(
        path.read_text().replace('"x"', '"token_bytes"', 1)
        if "token_bytes" not in path.read_text()
        else path.read_text()
    )
    with pytest.raises(ConfigError, match=r"tekken\.json"):
        load_tokenizer(str(path))
    text = json.dumps(tekken())
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ConfigError, match=r"tekken\.json"):
        load_tokenizer(str(path))
