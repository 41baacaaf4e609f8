"""Layer 1: text <-> ids. Kinds: `bytes`, a Hugging Face `tokenizer.json`, a tiktoken rank file, a sentencepiece model.

The library of a kind is the reference for it and is imported when used; `fast` is a second engine that must agree.
To add a kind: a module here with a class of the `Tokenizer` shape, and a line in `_reference`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.outside import ANYWHERE, MAX_TOKENIZER_BYTES, read_file
from tokenstore.tokenizer.guards import loading
from tokenstore.tokenizer.request import PLAIN, SPECIAL, Request

__all__ = [
    "AUTO",
    "FAST",
    "PLAIN",
    "REFERENCE",
    "SPECIAL",
    "EngineMismatch",
    "Tokenizer",
    "load_tokenizer",
    "reference_of",
]

REFERENCE, FAST, AUTO = "reference", "fast", "auto"


class EngineMismatch(Exception):
    """The fast engine gave other tokens than the reference, or failed: what it made is to be made again without it.

    Never leaves the package: whoever has a tokenizer with `reference` catches it and turns to that one.
    """

    def __init__(self, excerpt: str, reason: str):
        super().__init__(f"{reason}, at {excerpt!r}")
        self.excerpt, self.reason = excerpt, reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return EngineMismatch, (self.excerpt, self.reason)


class Tokenizer(Protocol):
    """What the builder and the reader need of a tokenizer.

    Attributes:
        kind: `bytes`, `huggingface`, `tiktoken` or `sentencepiece`.
        data: the bytes of its own file as a store keeps it, None if it needs none. Loading them gives the same ids.
        file_name: the name of that file in a store, None if it needs none.
        file: where it was loaded from, None if it needs no file.
        vocab_size: one more than the largest id, special tokens included.
        eos_id, bos_id, pad_id: special ids, None where there is none.
        special_tokens: strings that stand for special ids.
        token_names: `eos_token`, `bos_token`, `pad_token`, `unk_token` and the like, where known, for chat templates.
        chat_template: the Jinja template that stands beside a Hugging Face file, None where there is none.
        eos_note: what a person should know where its files suggest several ends of text, else empty.
        engine, engine_version: the library that does the work.
        engine_note: why the fast engine is not in use though `auto` was asked for, else empty.
    """

    kind: str
    data: bytes | None
    file_name: str | None
    file: Path | None
    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    special_tokens: tuple[str, ...]
    token_names: Mapping[str, str]
    chat_template: str | None
    engine: str
    engine_version: str
    engine_note: str
    eos_note: str

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n], all texts one after the other, and lengths int64[len(texts)].

        No special token is added, unless `add_special_tokens` was asked for. BuildError: the library fails on a text.
        """

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n] as encode_batch gives them, and int64[n, 2]: the characters [start, stop) each one covers.

        A token that holds part of a character covers all of it. A token that stands for no character, as a special
        token that was added, covers none: start = stop.
        """

    def encode_batch_with_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids and lengths as encode_batch gives them, and int64[n, 2]: spans as encode_with_spans gives them.

        The spans count the characters of all texts one after the other.
        """

    def decode(self, ids: np.ndarray) -> str:
        """Text of integer ids, special tokens shown. CorruptionError: the library fails on them."""


def reference_of(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer that a fast one must agree with; any other is its own."""
    reference: Tokenizer = getattr(tokenizer, "reference", tokenizer)
    return reference


def load_tokenizer(
    spec: str,
    eos_token: str | None = None,
    eos_id: int | None = None,
    special_text: str = PLAIN,
    *,
    pattern: str | None = None,
    special_tokens: Sequence[str] = (),
    add_special_tokens: bool = False,
    engine: str = REFERENCE,
    allow_links: Path | None = ANYWHERE,
    listed: Iterable[str] | None = None,
    spans: bool = False,
) -> Tokenizer:
    """The tokenizer named by `spec`.

    Args:
        spec: `bytes`, or the path of a Hugging Face tokenizer.json, a tiktoken rank file, a tiktoken tokenizer as a
            store keeps it, or a sentencepiece model. The content of the file tells which; its name does not matter.
        eos_token: the end-of-text token by its string; left out: found by its usual names.
        eos_id: the same by its id (a store knows it); goes before eos_token.
        special_text: `plain`: special-token strings in a text are text. `special`: they become the special ids.
        pattern: of a rank file only: its split regex, or a name in `PATTERNS`, which brings its special tokens too if
            the number of ranks is that of the vocabulary they belong to.
        special_tokens: of a rank file only: more special tokens, `name=id` or `name` (the next free id).
        add_special_tokens: of a Hugging Face file only: let its post-processor add tokens to every text.
        engine: `reference`: the kind's own library. `fast`: gigatoken, checked against the reference. `auto`: `fast`
            where it can be had and agrees on a set of test texts, else `reference`, with the reason in `engine_note`.
        allow_links: where symbolic links among its files may lead besides their own folder, None for nowhere: the rule for
            the tokenizer of a store, which a stranger may have made.
        listed: names of the files beside it that may be read, as a store lists them; None: all that it looks for.
        spans: the characters of tokens will be asked for; `fast` is feasible only where it can say them.

    Raises:
        ConfigError: no such tokenizer, its library is missing, an argument its kind cannot follow, its end-of-text
            token cannot be told, or `fast` cannot be had.
    """
    if engine not in (REFERENCE, FAST, AUTO):
        raise ConfigError(f"tokenizer engine: expected reference, fast or auto, found {engine!r}; choose one of them")
    request = Request(
        eos_token,
        eos_id,
        special_text,
        pattern,
        tuple(special_tokens),
        add_special_tokens,
        allow_links,
        None if listed is None else frozenset(listed),
    )
    reference = _reference(spec, request)
    if engine == REFERENCE or (engine == AUTO and reference.kind == "bytes"):
        return reference
    from tokenstore.tokenizer.fast import with_fast_engine

    return with_fast_engine(reference, request, engine, spans)


def _reference(spec: str, request: Request) -> Tokenizer:
    if spec == "bytes":
        return _byte_tokenizer(request)
    path = Path(spec)
    try:
        data = read_file(path, MAX_TOKENIZER_BYTES, request.allow_links)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in a name
        found = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"tokenizer: expected 'bytes' or the path of a tokenizer file, found {spec!r} ({found}); check the path"
        ) from error
    with loading(path):
        return _of_file(path, data, request)


def _of_file(path: Path, data: bytes, request: Request) -> Tokenizer:
    from tokenstore.tokenizer.rank_file import SAVED_START, looks_like_ranks

    if data.startswith(SAVED_START) or looks_like_ranks(data):
        from tokenstore.tokenizer.tiktoken_bpe import TiktokenTokenizer

        return TiktokenTokenizer(path, data, request)
    if data.lstrip()[:1] == b"{":
        from tokenstore.tokenizer.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path, data, request)
    if data[:1] == b"\n":  # the first field of the protocol buffer: a piece
        from tokenstore.tokenizer.sentencepiece_model import SentencePieceTokenizer

        return SentencePieceTokenizer(path, data, request)
    raise ConfigError(
        "tokenizer: expected a Hugging Face tokenizer.json, a tiktoken rank file or a sentencepiece model,"
        f" found {data[:40]!r} ({path}); give the tokenizer's own file"
    )


def _byte_tokenizer(request: Request) -> Tokenizer:
    from tokenstore.tokenizer.raw_bytes import EOS_TOKEN, ByteTokenizer

    request.refuse("bytes", "pattern", "special_tokens", "add_special_tokens")
    if request.eos_token not in (None, EOS_TOKEN):
        raise ConfigError(
            f"eos token: expected {EOS_TOKEN!r} of the bytes tokenizer, found {request.eos_token!r}; leave it out"
        )
    return ByteTokenizer(request.special_text)
