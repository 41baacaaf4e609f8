"""Configures gigatoken for a reference tokenizer: what it encodes exactly, and which texts must go to the reference.

Only features that were observed to agree are accepted; a tokenizer with any other feature is `Unsuitable`.
"""

import base64
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tokenstore.tokenizer import Tokenizer
from tokenstore.tokenizer.huggingface import HuggingFaceTokenizer
from tokenstore.tokenizer.patterns import PATTERNS
from tokenstore.tokenizer.request import PLAIN, Request
from tokenstore.tokenizer.sentencepiece_model import SentencePieceTokenizer
from tokenstore.tokenizer.tiktoken_bpe import TiktokenTokenizer

_NORMALIZERS = {"NFC", "Prepend", "Replace"}  # gave the same results for every text; NFC except for marks
_JOINABLE = {"Split", "ByteLevel", "Digits"}  # steps that never look beyond an added token
SEPARATOR = "\ufdd0"  # a noncharacter, so texts that contain it are untrusted and never reach the engine


class Unsuitable(Exception):
    """The fast engine cannot replace this tokenizer; the text says why."""


@dataclass(frozen=True)
class FastFile:
    """What gigatoken is loaded from.

    Attributes:
        json: a tokenizer.json, or None for a rank file.
        ranks, scheme, special_tokens: a rank file, gigatoken's name of its split pattern, and its special tokens.
        apart: texts that contain one of these strings go to the reference.
        strings: all strings that are split from the text around them.
        nfc: whether texts are normalized.
        separator: id of an added token SEPARATOR, with which texts can be joined and encoded as one; None if joining
            could change their tokens.
    """

    json: str | None
    ranks: bytes = b""
    scheme: str = ""
    special_tokens: Mapping[str, int] | None = None
    apart: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()
    nfc: bool = False
    separator: int | None = None

    def load(self) -> Any:
        """Load a new gigatoken tokenizer. Raises whatever gigatoken raises, including panics, which are not `Exception`s."""
        if self.separator is None:
            import awkward  # noqa: F401  # without it gigatoken returns several texts as lists
        import gigatoken

        if self.json is not None:
            return gigatoken.Tokenizer.from_json(self.json)
        with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
            file.write(self.ranks)
            file.flush()
            return gigatoken.Tokenizer.from_tiktoken(file.name, self.scheme, dict(self.special_tokens or {}))

    def encode(self, engine: Any, encoded: Sequence[bytes], end: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n] and offsets int64[len(encoded) + 1] into them, as `engine`, which `load` returned, gives them.

        `encoded` are texts as UTF-8. They are joined if possible: gigatoken returns those of several texts as an array only with the library awkward, which
        takes a quarter of a second to import. If `end` is given, which takes a `separator`, it is the last id of every text.
        """
        if self.separator is None:
            layout = engine.encode_batch(list(encoded), parallel=False).layout
            return np.asarray(layout.content.data), np.asarray(layout.offsets.data)
        # As bytes: a str with the separator would have two bytes per character, also for ASCII
        ids = engine.encode(SEPARATOR.encode().join(encoded if end is None else [*encoded, b""]))
        found = np.flatnonzero(ids == self.separator)
        if end is not None:
            ids[found] = end
            return ids, np.append(0, found + 1)
        ends = np.append(found, ids.size)
        starts = np.append(0, ends[:-1] + 1)
        parts = [ids[start:stop] for start, stop in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.concatenate(parts), np.append(0, np.cumsum(ends - starts))

    def apart_pattern(self) -> re.Pattern[str] | None:
        """A regex that finds a string of `apart`; None if there is none."""
        return re.compile("|".join(map(re.escape, self.apart))) if self.apart else None


def fast_file(reference: Tokenizer, request: Request) -> FastFile:
    """What to load gigatoken from to replace `reference`; Unsuitable if that is not possible."""
    if request.add_special_tokens:
        raise Unsuitable("it does not add special tokens")
    plain = request.special_text == PLAIN
    if isinstance(reference, TiktokenTokenizer):
        return _from_ranks(reference, plain)
    if isinstance(reference, SentencePieceTokenizer):
        return _from_json(_converted(reference), True, every_token_apart=True)
    if isinstance(reference, HuggingFaceTokenizer):
        value = orjson.loads(reference.data or b"")  # a tenth of a second less than json for 128,000 tokens
        if {token["content"]: token["id"] for token in value.get("added_tokens") or []} != reference.added_tokens:
            raise Unsuitable("the ids of added tokens in the file are not those the library gives them")
        return _from_json(value, plain, every_token_apart=False)
    raise Unsuitable(f"a {reference.kind} tokenizer needs no other engine")


def _from_ranks(reference: TiktokenTokenizer, plain: bool) -> FastFile:
    file = reference.rank_file
    known = [pattern.fast_name for pattern in PATTERNS.values() if pattern.regex == file.pattern]
    if not known:
        raise Unsuitable("it does not know the split pattern")
    lines = [
        base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(file.ranks.items(), key=lambda x: x[1])
    ]
    separator = max([*file.ranks.values(), *file.special_tokens.values()]) + 1
    tokens = {**({} if plain else file.special_tokens), SEPARATOR: separator}
    return FastFile(None, b"".join(lines), known[0], tokens, separator=separator)


def _converted(reference: SentencePieceTokenizer) -> Any:
    """The sentencepiece model as a tokenizer.json, without merges into pieces that are not text."""
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    value = json.loads(sentencepiece_to_tokenizer_json(reference.data or b""))
    if reference.has_unused_pieces():
        raise Unsuitable("it is not exact with unused pieces")
    never = set(reference.pieces_not_text())
    model = value["model"]
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in never]
    return value


def _from_json(value: Any, plain: bool, every_token_apart: bool) -> FastFile:
    model = value["model"]
    if model.get("type", "BPE") != "BPE" or model.get("dropout"):
        raise Unsuitable(f"it is exact for BPE without dropout, not for {model.get('type')}")
    normalizers = _normalizers(value.get("normalizer"))
    if others := sorted(set(normalizers) - _NORMALIZERS):
        raise Unsuitable(f"it is not exact with the normalizer {', '.join(others)}")
    # Without the special tokens in its file it encodes their strings as text.
    tokens = [token for token in value.get("added_tokens") or [] if not (plain and token["special"])]
    if normalizers and any(token["normalized"] for token in tokens):
        raise Unsuitable("it is not exact with added tokens that are normalized")
    apart = [
        token["content"]
        for token in tokens
        if every_token_apart or token["lstrip"] or token["rstrip"] or token["single_word"]
    ]
    strings = tuple(token["content"] for token in tokens)
    separator = _separator(value, normalizers)
    if separator is not None:
        tokens = [*tokens, _separator_token(separator)]
    value = {**value, "added_tokens": tokens, "truncation": None, "padding": None, "post_processor": None}
    text, nfc = orjson.dumps(value).decode(), "NFC" in normalizers
    return FastFile(text, apart=tuple(apart), strings=strings, nfc=nfc, separator=separator)


def _separator(value: Any, normalizers: list[str]) -> int | None:
    """A free id for SEPARATOR; None if a text may be encoded differently next to an added token than alone."""
    splitter = value.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [splitter] if splitter else [])
    if set(normalizers) - {"NFC"} or value["model"].get("byte_fallback"):
        return None
    if any(step["type"] not in _JOINABLE or step.get("add_prefix_space") for step in steps):
        return None
    ids: list[int] = [*value["model"]["vocab"].values(), *(token["id"] for token in value.get("added_tokens") or ())]
    return max(ids, default=-1) + 1


def _separator_token(number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": SEPARATOR, "special": True, **flags}


def _normalizers(value: Any) -> list[str]:
    """Types of the normalizers in the file, in order, with sequences flattened."""
    if value is None:
        return []
    if value["type"] == "Sequence":
        return [name for part in value["normalizers"] for name in _normalizers(part)]
    by_regex = value["type"] == "Replace" and "String" not in value["pattern"]
    return ["Replace by a regular expression" if by_regex else value["type"]]
