"""A Hugging Face `tokenizer.json`, by the `tokenizers` library."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.tokenizer import PLAIN

# Names under which common tokenizers know their end of text; a tokenizer.json does not say which it is.
_EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<|eos|>", "[EOS]")


class HuggingFaceTokenizer:
    kind = "huggingface"
    engine = "tokenizers"

    def __init__(self, path: Path, eos_token: str | None, eos_id: int | None, special_text: str):
        import tokenizers

        self.file: Path | None = path
        self.engine_version = tokenizers.__version__
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"tokenizer: expected a Hugging Face tokenizer.json, found {error} ({path})") from error
        # A file may carry truncation or padding for some model's inputs: silently losing text is not tokenizing.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = special_text == PLAIN
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ConfigError(
                f"tokenizer: expected a vocabulary, found an empty one ({path}); train the tokenizer first"
            )
        self.vocab_size = max(vocabulary.values()) + 1
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special_tokens = tuple(sorted(token.content for token in added if token.special))
        configured = _configured_names(path)
        self.eos_id = (
            eos_id if eos_id is not None else self._find_eos(eos_token, configured.get("eos_token"), vocabulary)
        )
        self.bos_id = vocabulary.get(configured.get("bos_token", ""))
        self.pad_id = vocabulary.get(configured.get("pad_token", ""))

    def _find_eos(self, asked: str | None, configured: str | None, vocabulary: dict[str, int]) -> int | None:
        if asked is not None:
            if asked not in vocabulary:
                raise ConfigError(
                    f"eos token: expected a token of {self.file}, found {asked!r}; its special tokens: {self._specials()}"
                )
            return vocabulary[asked]
        if configured in vocabulary:
            return vocabulary[configured]
        known = [name for name in _EOS_NAMES if name in vocabulary]
        return vocabulary[known[0]] if len(known) == 1 else None

    def _specials(self) -> str:
        return ", ".join(map(repr, self.special_tokens[:20])) or "none"

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def _configured_names(path: Path) -> dict[str, str]:
    """Names of the special tokens from `tokenizer_config.json` beside the file, if it is there."""
    try:
        config: Any = json.loads(path.with_name("tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    names = {}
    for role in ("eos_token", "bos_token", "pad_token"):
        token = config.get(role) if isinstance(config, dict) else None
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            names[role] = name
    return names
