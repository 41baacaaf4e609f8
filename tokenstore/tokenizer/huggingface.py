"""A Hugging Face `tokenizer.json`, loaded by the `tokenizers` library."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.errors import ConfigError, require
from tokenstore.tokenizer import long_texts
from tokenstore.tokenizer.byte_spans import SpansTextByText
from tokenstore.tokenizer.growth import check_growth
from tokenstore.tokenizer.guards import decodes, encodes
from tokenstore.tokenizer.request import MOST_IDS, PLAIN, Request
from tokenstore.tokenizer.side_files import generation_ends, read_side_files


class HuggingFaceTokenizer(SpansTextByText):
    """A `Tokenizer` for a Hugging Face tokenizer.json."""

    kind = "huggingface"
    file_name: str | None = "tokenizer.json"
    engine, engine_note = "tokenizers", ""

    def __init__(self, path: Path, data: bytes, request: Request):
        require("tokenizers", f"tokenizer: a {self.kind} tokenizer", "build")
        import tokenizers

        request.refuse(self.kind, "pattern", "special_tokens")
        self.file: Path | None = path
        self.data: bytes | None = data
        self.engine_version = tokenizers.__version__
        self._plain = request.special_text == PLAIN
        self._add_special_tokens = request.add_special_tokens
        self._tokenizer = self._load(data)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ConfigError(f"tokenizer: its vocabulary is empty ({path}); train the tokenizer first")
        check_growth(self._tokenizer, vocabulary, path)
        self.vocab_size = max(vocabulary.values()) + 1
        if self.vocab_size > MOST_IDS:  # libraries allocate tables of all ids, and abort if memory runs out
            raise ConfigError(
                f"tokenizer: expected token ids below {MOST_IDS}, found {self.vocab_size - 1} ({path}); check the file"
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self.added_tokens = {token.content: i for i, token in added.items()}
        self.special_tokens = tuple(sorted(token.content for token in added.values() if token.special))
        names, self.chat_template = read_side_files(path, request.allow_links, request.listed)
        self.eos_id = request.find_eos(path, names.get("eos_token"), self.special_tokens, vocabulary.get)
        ends = generation_ends(path, request.allow_links, request.listed)
        self.eos_note = request.eos_note(self.eos_id, vocabulary.get, self._tokenizer.id_to_token, ends)
        self.bos_id = vocabulary.get(names.get("bos_token", ""))
        self.pad_id = vocabulary.get(names.get("pad_token", ""))
        eos = None if self.eos_id is None else self._tokenizer.id_to_token(self.eos_id)
        self.token_names: Mapping[str, str] = names if eos is None else {**names, "eos_token": eos}

    def _load(self, data: bytes) -> Any:
        import tokenizers

        try:
            tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                f"tokenizer: expected a Hugging Face tokenizer.json, found {error} ({self.file}); check the file"
            ) from error
        # A file may set truncation or padding for a model's inputs; truncation would silently lose text.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = self._plain
        return tokenizer

    @cached_property
    def _without_post_processor(self) -> Any:
        """The same tokenizer for spans: a post-processor adds tokens, and removes spaces from the offsets."""
        tokenizer = self._load(self.data or b"")
        tokenizer.post_processor = None
        return tokenizer

    @encodes
    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        if any(len(text) > long_texts.LONG for text in texts) and self.can_be_cut:
            parts = [self._encode_in_pieces(text) for text in texts]
            lengths = np.fromiter(map(len, parts), np.int64, len(parts))
            return np.concatenate(parts), lengths
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=self._add_special_tokens)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def _encode_in_pieces(self, text: str) -> np.ndarray:
        """Ids of a long text, encoded in pieces to save memory: the library needs about 100 bytes per byte of text."""
        encode = self._tokenizer.encode_batch_fast
        pieces = (
            encode([piece], add_special_tokens=False)[0].ids for piece in long_texts.pieces_of(text, long_texts.LONG)
        )
        return np.concatenate([np.array(ids, np.uint32) for ids in pieces])

    @cached_property
    def can_be_cut(self) -> bool:
        """Whether the pieces of a text, as `long_texts` cuts it, have the tokens of the text."""
        return not self._add_special_tokens and long_texts.can_be_cut(self._tokenizer)

    @encodes
    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        bare = self._without_post_processor.encode(text, add_special_tokens=False)
        spans = np.array(bare.offsets, np.int64).reshape(-1, 2)
        if not self._add_special_tokens:
            return np.array(bare.ids, np.uint32), spans
        whole = self._tokenizer.encode(text, add_special_tokens=True)
        result = np.zeros((len(whole.ids), 2), np.int64)
        result[np.array(whole.special_tokens_mask, bool) == 0] = spans
        return np.array(whole.ids, np.uint32), result

    @decodes
    def decode(self, ids: np.ndarray) -> str:
        """See `Tokenizer`."""
        text: str = self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text
