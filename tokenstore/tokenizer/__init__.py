"""Layer 1: text <-> ids. Kinds: `bytes`, `none` (ids without text), a Hugging Face `tokenizer.json`, a tiktoken rank file, a sentencepiece model.

The library of each kind is the reference for it, and is imported on first use. `fast` adds a second engine that must agree with
the reference. To add a kind, write a module with a class like `Tokenizer`, and add it to `_reference`.
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
    """The fast engine failed, or its tokens differ from the reference: its results must be computed again by the reference.

    It never leaves the package: callers with a tokenizer that has a `reference` catch it and use that one.
    """

    def __init__(self, excerpt: str, reason: str):
        super().__init__(f"{reason}, at {excerpt!r}")
        self.excerpt, self.reason = excerpt, reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return EngineMismatch, (self.excerpt, self.reason)


class Tokenizer(Protocol):
    """The interface of a tokenizer as the builder and the reader use it.

    Attributes:
        kind: `bytes`, `huggingface`, `tiktoken`, `sentencepiece` or `none`.
        data: contents of the tokenizer's file as a store keeps it; loading them gives the same ids. None if it needs no file.
        file_name: name of that file in a store; None if it needs no file.
        file: path it was loaded from; None if it needs no file.
        vocab_size: the largest id, including special tokens, plus one.
        eos_id, bos_id, pad_id: special ids; None if the tokenizer has no such token.
        special_tokens: the strings of the special tokens.
        token_names: `eos_token`, `bos_token`, `pad_token`, `unk_token` etc., as far as known; used by chat templates.
        chat_template: the Jinja template that comes with a Hugging Face file; None if there is none.
        eos_note: a note for the user if the files suggest several end-of-text tokens; otherwise empty.
        engine, engine_version: the library that encodes.
        engine_note: why the fast engine is not used although `auto` was requested; otherwise empty.
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
        """Encode texts: ids uint32[n] of all texts, concatenated, and lengths int64[len(texts)].

        No special tokens are added unless `add_special_tokens` was requested. BuildError if the library fails on a text.
        """

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n] as from `encode_batch`, and int64[n, 2]: the range of characters [start, stop) that each token covers.

        A token that contains part of a character covers all of it. A token that represents no characters, such as an added special
        token, has start = stop.
        """

    def encode_batch_with_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids and lengths as from `encode_batch`, and int64[n, 2]: spans as from `encode_with_spans`.

        The spans are positions in the concatenation of all texts.
        """

    def decode(self, ids: np.ndarray) -> str:
        """The text of integer ids, including special tokens. CorruptionError if the library fails."""


def reference_of(tokenizer: Tokenizer) -> Tokenizer:
    """The reference of a fast tokenizer; any other tokenizer is its own reference."""
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
    vocab_size: int | None = None,
) -> Tokenizer:
    """Load the tokenizer named by `spec`.

    Args:
        spec: `bytes`; `none` for token ids whose tokenizer is not known; or the path of a Hugging Face tokenizer.json, a tiktoken rank file, a tiktoken tokenizer as a store keeps
            it, or a sentencepiece model. The kind is detected from the contents of the file, not from its name.
        eos_token: the end-of-text token, by its string. Default: the token with one of the usual names.
        eos_id: the end-of-text token, by its id, as recorded in a store; takes precedence over eos_token.
        special_text: `plain`: the string of a special token in a text is encoded as text. `special`: it becomes the special id.
        pattern: for a rank file only: its split regex, or a name in `PATTERNS`. A name also brings its special tokens if the
            number of ranks is that of their vocabulary.
        special_tokens: for a rank file only: more special tokens, as `name=id`, or `name` for the next free id.
        add_special_tokens: for a Hugging Face file only: let its post-processor add tokens to every text.
        engine: `reference`: the kind's own library. `fast`: gigatoken, checked against the reference. `auto`: `fast` if it is
            available and agrees on a set of test texts, otherwise `reference`, with the reason in `engine_note`.
        allow_links: a directory that symbolic links among its files may lead to, besides their own; None for no other. This is the
            rule for the tokenizer of a store, which may be untrusted.
        listed: names of the files next to it that may be read, as a store lists them. Default: all that it looks for.
        spans: whether the spans of tokens are needed; `fast` is then used only if it can compute them.
        vocab_size: for `none` only: every id is below it.

    Raises:
        ConfigError: there is no such tokenizer, its library is missing, an argument does not apply to its kind, its end-of-text
            token cannot be determined, or `fast` is not available.
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
    if spec == "none":
        from tokenstore.tokenizer.no_tokenizer import NoTokenizer

        return NoTokenizer(vocab_size, request)
    if vocab_size is not None:
        raise ConfigError(f"vocab size: only without a tokenizer (tokenizer none), found {vocab_size}; omit it")
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
            f"tokenizer: cannot read {spec!r}: {found}; give the path of a tokenizer file, or 'bytes';"
            " for a model on the Hugging Face hub, give hf://OWNER/NAME, or download its tokenizer.json first"
        ) from error
    with loading(path):
        return _of_file(path, data, request)


def _of_file(path: Path, data: bytes, request: Request) -> Tokenizer:
    from tokenstore.tokenizer.rank_file import SAVED_START, looks_like_ranks
    from tokenstore.tokenizer.tekken import looks_like_tekken

    if data.startswith(SAVED_START) or looks_like_ranks(data) or looks_like_tekken(data):
        from tokenstore.tokenizer.tiktoken_bpe import TiktokenTokenizer

        return TiktokenTokenizer(path, data, request)
    if data.lstrip()[:1] == b"{":
        from tokenstore.tokenizer.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path, data, request)
    if data[:1] == b"\n":  # the tag of the first field of the protocol buffer, a piece
        from tokenstore.tokenizer.sentencepiece_model import SentencePieceTokenizer

        return SentencePieceTokenizer(path, data, request)
    raise ConfigError(
        "tokenizer: expected a Hugging Face tokenizer.json, a tekken.json, a tiktoken rank file or a sentencepiece model,"
        f" found {data[:40]!r} ({path}); give the tokenizer's own file"
    )


def _byte_tokenizer(request: Request) -> Tokenizer:
    from tokenstore.tokenizer.raw_bytes import EOS_TOKEN, ByteTokenizer

    request.refuse("bytes", "pattern", "special_tokens", "add_special_tokens")
    if request.eos_token not in (None, EOS_TOKEN):
        raise ConfigError(
            f"eos token: the bytes tokenizer has only {EOS_TOKEN!r}, found {request.eos_token!r}; omit it"
        )
    return ByteTokenizer(request.special_text)
