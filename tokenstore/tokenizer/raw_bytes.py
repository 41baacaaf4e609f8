"""The tokenizer that needs no file: ids 0..255 are UTF-8 bytes, followed by end of text, beginning of text and padding."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tokenstore.tokenizer.byte_spans import SpansTextByText, spans_of_bytes
from tokenstore.tokenizer.guards import decodes, encodes
from tokenstore.tokenizer.request import PLAIN, SPECIAL

EOS_TOKEN = "<|endoftext|>"
_SPECIAL = (EOS_TOKEN, "<|startoftext|>", "<|padding|>")
_PARTS = re.compile("(" + "|".join(map(re.escape, _SPECIAL)) + ")")


class ByteTokenizer(SpansTextByText):
    """A `Tokenizer` whose tokens are bytes."""

    kind = "bytes"
    file: Path | None = None
    data: bytes | None = None
    file_name: str | None = None
    vocab_size = 256 + len(_SPECIAL)
    eos_id: int | None = 256
    bos_id: int | None = 257
    pad_id: int | None = 258
    engine, engine_version, engine_note = "tokenstore", "1", ""
    eos_note = ""
    chat_template: str | None = None
    token_names: Mapping[str, str] = dict(zip(("eos_token", "bos_token", "pad_token"), _SPECIAL, strict=True))

    def __init__(self, special_text: str = PLAIN):
        # With plain text special tokens cannot occur: the ids are the bytes
        self.special_tokens: tuple[str, ...] = _SPECIAL if special_text == SPECIAL else ()

    @encodes
    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        ids = [self._encode(text) for text in texts]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.concatenate(ids).astype(np.uint32) if ids else np.zeros(0, np.uint32), lengths

    def _encode(self, text: str) -> np.ndarray:
        if not self.special_tokens:
            return np.frombuffer(text.encode("utf-8"), np.uint8)
        ids, _ = self.encode_with_spans(text)
        return ids

    @encodes
    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        ids, spans, at = [np.zeros(0, np.uint32)], [np.zeros((0, 2), np.int64)], 0
        for part in _PARTS.split(text) if self.special_tokens else [text]:
            if part in self.special_tokens:
                ids.append(np.array([256 + _SPECIAL.index(part)], np.uint32))
                spans.append(np.array([[at, at + len(part)]]))
            elif part:
                ids.append(np.frombuffer(part.encode("utf-8"), np.uint8).astype(np.uint32))
                spans.append(at + spans_of_bytes(part, np.ones(ids[-1].size, np.int64)))
            at += len(part)
        return np.concatenate(ids), np.concatenate(spans)

    @decodes
    def decode(self, ids: np.ndarray) -> str:
        """See `Tokenizer`."""
        pieces, start = [], 0
        for at in [*np.flatnonzero(ids > 255), len(ids)]:
            pieces.append(ids[start:at].astype(np.uint8).tobytes().decode("utf-8", "replace"))
            if at < len(ids):
                pieces.append(_SPECIAL[int(ids[at]) - 256])
            start = at + 1
        return "".join(pieces)
