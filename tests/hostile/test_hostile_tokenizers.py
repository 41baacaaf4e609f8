"""Malicious tokenizer files: a panic of a library is one of our errors and names the file, and nothing hangs."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.stores.forge import list_tokenizer
from tests.support.stores.hostile_stores import make_small
from tokenstore.builder import BuildOptions, build_store
from tokenstore.errors import BuildError, ConfigError, CorruptionError
from tokenstore.store import open_store
from tokenstore.tokenizer import load_tokenizer
from tokenstore.tokenizer.guards import decodes, encodes, loading
from tokenstore.tokenizer.raw_bytes import ByteTokenizer
from tokenstore.views.decoding import Decoder

pytestmark = pytest.mark.timeout(60)  # a hang is a failure long before the suite's own limit

BYTES = {base64.b64encode(bytes([i])).decode(): i for i in range(256)}


def words(**parts: Any) -> dict[str, Any]:
    """A tokenizer.json of three words, with other parts."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **parts.pop("model", {})}
    return {"version": "1.0", "model": model, **parts}


def ranks(pattern: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "tiktoken", "pattern": pattern, "ranks": BYTES, "special_tokens": {}, **fields}


def write(folder: Path, content: dict[str, Any] | str) -> str:
    path = folder / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, separators=(",", ":"), sort_keys=True))
    return str(path)


def replacing(pattern: dict[str, str], content: str, times: int) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": pattern, "content": content}] * times


def deep(levels: int) -> str:
    head, tail = '{"type":"Sequence","normalizers":[' * levels, "]}" * levels
    return f'{{"version":"1.0","normalizer":{head}{{"type":"NFC"}}{tail},"model":{{"type":"BPE","vocab":{{}},"merges":[]}}}}'


REFUSED: dict[str, dict[str, Any] | str] = {
    "charsmap": words(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "long prefix": words(model={"continuing_subword_prefix": "x" * 20}),
    "deep": deep(10_000),
    "regex": words(normalizer={"type": "Replace", "pattern": {"Regex": "((("}, "content": ""}),
    "deep regex": words(normalizer={"type": "Replace", "pattern": {"Regex": "(" * 9999 + ")" * 9999}, "content": ""}),
    "growing": words(normalizer={"type": "Sequence", "normalizers": replacing({"String": "a"}, "aa", 60)}),
    "growing by a regex": words(normalizer={"type": "Sequence", "normalizers": replacing({"Regex": ""}, "a", 60)}),
    "growing nested": words(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Sequence", "normalizers": replacing({"String": "a"}, "a" * 1000, 4)}] * 4,
        }
    ),
    "growing decoder": words(decoder={"type": "Sequence", "decoders": replacing({"String": "a"}, "aa", 60)}),
    "a token of megabytes": words(model={"vocab": {"a": 0, "b": 1, "ab": 2, "x" * (1 << 20): 3}}),
    "a huge id": words(model={"vocab": {"a": 0, "b": 1, "ab": 2, "<x>": (1 << 32) - 1}}),
    "no pattern": ranks("((("),
    "deep pattern": ranks("(" * 50_000 + ")" * 50_000),
    "huge rank": ranks(".", special_tokens={"<x>": 1 << 30}),
    "ranks twice": ranks(
        ".", ranks={**BYTES, **{base64.b64encode(f"{i:9}".encode()).decode(): 300 for i in range(9999)}}
    ),
    "special tokens without end": ranks(".", special_tokens={f"<{i}>": 256 + i for i in range(1 + (1 << 16))}),
    "a huge number of special tokens": {
        "config": {"pattern": ".", "default_vocab_size": 1 << 20, "default_num_special_tokens": (1 << 20) - 256},
        "vocab": [{"rank": i, "token_bytes": token} for token, i in BYTES.items()],
    },
    "sentencepiece": "\n" + "x" * 1000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_tokenizer_is_refused_with_its_file(tmp_path: Path, name: str) -> None:
    """Loading it is a ConfigError, even if the library panics, and takes little time and memory."""
    file = write(tmp_path, REFUSED[name])
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(file)
    assert file in str(caught.value) or "pattern" in str(caught.value) or "twice" in str(caught.value)
    assert len(str(caught.value)) < 1000 + len(file)


ENCODERS: dict[str, dict[str, Any]] = {
    "no unknown token": words(model={"type": "WordLevel", "unk_token": "?"}),
    "pieces of no length": words(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "an empty match": ranks("x*?"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_that_fails_ends_a_build_with_the_text_and_the_file(tmp_path: Path, name: str) -> None:
    """Not a bad record but a BuildError, because all other texts may be wrong too."""
    file = write(tmp_path, ENCODERS[name])
    tokenizer = load_tokenizer(file)
    for encode in (lambda: tokenizer.encode_batch(["zebra"]), lambda: tokenizer.encode_with_spans("zebra")):
        with pytest.raises(BuildError, match=r"cannot encode the text 'zebra'") as caught:
            encode()
        assert file in str(caught.value)
    (tmp_path / "data.txt").write_text("zebra")
    options = BuildOptions(inputs=(str(tmp_path / "data.txt"),), output=tmp_path / "out", tokenizer=file, eos=False)
    with pytest.raises(BuildError, match="zebra"):
        build_store(options)


STRIP = {"type": "Strip", "content": "a", "start": 1 << 40, "stop": 1 << 40}


def test_a_panicking_decoder_is_a_corruption_error(tmp_path: Path) -> None:
    """`Store.decode` names the file; views show ids instead of text, and say why, once."""
    path = make_small(tmp_path / "s")
    write(path, words(decoder=STRIP))
    list_tokenizer(path)
    with open_store(path) as store:
        with pytest.raises(CorruptionError, match="tokenizers cannot decode the ids") as caught:
            store.tokenizer.decode(np.array([0, 1]))
        assert str(path / "tokenizer.json") in str(caught.value)
        decoder = Decoder.of(store)
        assert decoder.text(np.array([0, 1])) == "<0><1>"
        assert "cannot decode" in str(decoder.problem)


def test_ids_beyond_the_bytes_tokenizer_are_a_corruption_error() -> None:
    """A forged vocabulary size allows ids that the tokenizer does not have."""
    with pytest.raises(CorruptionError, match="cannot decode the ids 1, 299"):
        ByteTokenizer().decode(np.array([1, 299]))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interrupts_are_not_converted(stop: type[BaseException]) -> None:
    """Only failures of the library become our errors."""

    def fail(*_: object) -> None:
        raise stop

    with pytest.raises(stop), loading("x"):
        fail()
    for guarded, argument in ((encodes(fail), ["a"]), (encodes(fail), "a"), (decodes(fail), np.array([1]))):
        with pytest.raises(stop):
            guarded(ByteTokenizer(), argument)


ORDINARY = words(
    normalizer={
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "Replace", "pattern": {"String": "\u2026"}, "content": "..."},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            *replacing({"Regex": r"[\t\n]"}, " ", 50),
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
)


def test_an_ordinary_normalizer_is_not_refused(tmp_path: Path) -> None:
    """Any number of replacements that keep or shorten the text is allowed."""
    load_tokenizer(write(tmp_path, ORDINARY)).encode_batch(["a  b"])
