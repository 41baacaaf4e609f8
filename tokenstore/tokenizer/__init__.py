"""Floor 1: text <-> ids. Two kinds so far: `bytes` and a Hugging Face `tokenizer.json`; engines are imported when used.

To add a kind: a module here with a class of the `Tokenizer` shape, and a line in `load_tokenizer`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tokenstore.errors import ConfigError

PLAIN, SPECIAL = "plain", "special"


class Tokenizer(Protocol):
    """What the builder and the reader need of a tokenizer.

    Attributes:
        kind: `bytes` or `huggingface`.
        file: the tokenizer's own file, None if it needs none.
        vocab_size: one more than the largest id, special tokens included.
        eos_id, bos_id, pad_id: special ids, None where there is none.
        special_tokens: strings that stand for special ids.
        engine, engine_version: the library that does the work.
    """

    kind: str
    file: Path | None
    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    special_tokens: tuple[str, ...]
    engine: str
    engine_version: str

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids uint32[n], all texts one after the other, and lengths int64[len(texts)]; no special token is added."""

    def decode(self, ids: np.ndarray) -> str:
        """Text of integer ids, special tokens shown."""


def load_tokenizer(
    spec: str, eos_token: str | None = None, eos_id: int | None = None, special_text: str = PLAIN
) -> Tokenizer:
    """The tokenizer named by `spec`.

    Args:
        spec: `bytes`, or the path of a Hugging Face tokenizer.json.
        eos_token: the end-of-text token by its string; left out: found by its usual names.
        eos_id: the same by its id (a store knows it); goes before eos_token.
        special_text: `plain`: special-token strings in a text are text. `special`: they become the special ids.

    Raises:
        ConfigError: no such tokenizer, or its end-of-text token cannot be told.
    """
    if spec == "bytes":
        from tokenstore.tokenizer.raw_bytes import EOS_TOKEN, ByteTokenizer

        if eos_token not in (None, EOS_TOKEN):
            raise ConfigError(
                f"eos token: expected {EOS_TOKEN!r} of the bytes tokenizer, found {eos_token!r}; leave it out"
            )
        return ByteTokenizer()
    path = Path(spec)
    if not path.is_file():
        raise ConfigError(
            f"tokenizer: expected 'bytes' or the path of a tokenizer.json, found {spec!r}; check the path"
        )
    from tokenstore.tokenizer.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(path, eos_token, eos_id, special_text)
