"""The kind `none`: token ids whose tokenizer is not known, or that are not text at all. It can neither encode nor decode."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.tokenizer.request import Request

_MAX_VOCAB = 1 << 32  # FMT-5


class NoTokenizer:
    """A `Tokenizer` without text: only the size of the vocabulary and, if it is known, the end-of-text id."""

    kind = "none"
    file: Path | None = None
    data: bytes | None = None
    file_name: str | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    engine, engine_version, engine_note = "none", "", ""
    eos_note = ""
    chat_template: str | None = None
    special_tokens: tuple[str, ...] = ()
    token_names: Mapping[str, str] = {}

    def __init__(self, vocab_size: int | None, request: Request):
        request.refuse("none", "pattern", "special_tokens", "add_special_tokens")
        if vocab_size is None or not 1 <= vocab_size <= _MAX_VOCAB:
            raise ConfigError(
                f"vocab size: expected 1 to {_MAX_VOCAB} without a tokenizer, found {vocab_size}; give it"
                " (--vocab-size, vocab_size=), or name a tokenizer"
            )
        self.vocab_size = vocab_size
        self.eos_id = request.eos_id if request.eos_token is None else _id_of(request.eos_token)
        if self.eos_id is not None and not 0 <= self.eos_id < vocab_size:
            raise ConfigError(
                f"eos token: expected an id below {vocab_size}, found {self.eos_id}; without a tokenizer it is a number"
            )

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Refused."""
        _refuse("encode")

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Refused."""
        _refuse("encode")

    def encode_batch_with_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Refused."""
        _refuse("encode")

    def decode(self, ids: np.ndarray) -> str:
        """Refused."""
        _refuse("decode")


def _id_of(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"eos token: expected a token id, because there is no tokenizer, found {text!r}; give its number")


def _refuse(what: str) -> NoReturn:
    raise ConfigError(
        f"tokenizer: cannot {what}: the store has none, as it was made from token ids; use the tokenizer that made them"
    )
