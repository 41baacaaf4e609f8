"""The tokenizer that needs no file: UTF-8 bytes are ids 0..255, then end of text, beginning of text, padding."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

EOS_TOKEN = "<|endoftext|>"
_SPECIAL = (EOS_TOKEN, "<|startoftext|>", "<|padding|>")


class ByteTokenizer:
    kind = "bytes"
    file: Path | None = None
    vocab_size = 256 + len(_SPECIAL)
    eos_id, bos_id, pad_id = 256, 257, 258
    special_tokens = ()  # a text cannot hold them: its bytes are its ids
    engine, engine_version = "tokenstore", "1"

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [text.encode("utf-8") for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), lengths

    def decode(self, ids: np.ndarray) -> str:
        pieces, start = [], 0
        for at in [*np.flatnonzero(ids > 255), len(ids)]:
            pieces.append(ids[start:at].astype(np.uint8).tobytes().decode("utf-8", "replace"))
            if at < len(ids):
                pieces.append(_SPECIAL[int(ids[at]) - 256])
            start = at + 1
        return "".join(pieces)
