"""Tiny tokenizers of every kind, trained on the texts shipped here: their files, and tokenizer.json variants of one."""

import base64
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import pre_tokenizers

from tests.data.texts import TEXTS

SPECIAL = ("<|endoftext|>=700", "<|user|>=701")


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary represents: printable Latin-1 itself, the others from 256 on."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    kept = [byte for byte in range(256) if chr(byte) in alphabet]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


def rank_lines(tokenizer_file: Path) -> bytes:
    """The byte-level BPE of a tokenizer.json as a rank file: bytes first, then its merges in order."""
    to_byte = byte_of_character()
    merges = json.loads(tokenizer_file.read_text("utf-8"))["model"]["merges"]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(to_byte[character] for character in "".join(pair)) for pair in merges]
    return b"".join(base64.b64encode(t) + b" %d\n" % rank for rank, t in enumerate(dict.fromkeys(tokens)))


@cache
def sentencepiece_model(**options: Any) -> bytes:
    """A model of 700 pieces with byte fallback and no change of the text but the space before it, unless specified."""
    wanted: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 700,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
        "num_threads": 1,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in options.items()},
    }
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS * 2), model_writer=out, **wanted)
    return out.getvalue()


def variant(tokenizer_file: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The tokenizer.json with its value changed, written to `target`."""
    value = json.loads(tokenizer_file.read_text("utf-8"))
    change(value)
    target.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    return target


def added_token(content: str, number: int, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens`, all flags off unless specified."""
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **off, **flags}
