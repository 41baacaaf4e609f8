"""The tokenizer that needs no file: UTF-8 bytes are ids 0..255, then end of text, beginning of text, padding."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tokenstore.tokenizer.byte_spans import spans_of_bytes

EOS_TOKEN = "<|endoftext|>"
_SPECIAL = (EOS_TOKEN, "<|startoftext|>", "<|padding|>")


class ByteTokenizer:
    kind = "bytes"
    file: Path | None = None
    data: bytes | None = None
    file_name: str | None = None
    vocab_size = 256 + len(_SPECIAL)
    eos_id, bos_id, pad_id = 256, 257, 258
    special_tokens: tuple[str, ...] = ()  # a text cannot hold them: its bytes are its ids
    engine, engine_version, engine_note = "tokenstore", "1", ""
    chat_template: str | None = None
    token_names: Mapping[str, str] = dict(zip(("eos_token", "bos_token", "pad_token"), _SPECIAL, strict=True))

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [text.encode("utf-8") for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), lengths

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids, _ = self.encode_batch([text])
        return ids, spans_of_bytes(text, np.ones(ids.size, np.int64))

    def decode(self, ids: np.ndarray) -> str:
        pieces, start = [], 0
        for at in [*np.flatnonzero(ids > 255), len(ids)]:
            pieces.append(ids[start:at].astype(np.uint8).tobytes().decode("utf-8", "replace"))
            if at < len(ids):
                pieces.append(_SPECIAL[int(ids[at]) - 256])
            start = at + 1
        return "".join(pieces)
