"""The characters that each token covers: computed from the bytes of tokens, or text by text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np


class SpansTextByText(ABC):
    """Implements `encode_batch_with_spans` for a tokenizer whose library gives the spans of one text at a time."""

    @abstractmethod
    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""

    def encode_batch_with_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        ids, spans, first = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int64)], 0
        for text in texts:
            more_ids, more_spans = self.encode_with_spans(text)
            ids.append(more_ids)
            spans.append(more_spans + first)
            first += len(text)
        lengths = np.fromiter(map(len, ids[1:]), np.int64, len(texts))
        return np.concatenate(ids), lengths, np.concatenate(spans)


def spans_of_bytes(text: str, num_bytes: np.ndarray) -> np.ndarray:
    """The characters covered by consecutive tokens without gaps.

    Args:
        text: the text that was encoded.
        num_bytes: int64[n], UTF-8 bytes of each token, at least 1; their sum is the size of the text.

    Returns:
        int64[n, 2], [start, stop) in characters. A token that contains part of a character covers all of it.
    """
    stops = np.cumsum(num_bytes)
    if text.isascii():
        return np.stack([stops - num_bytes, stops], axis=1).astype(np.int64)
    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    character = np.cumsum((data & 0xC0) != 0x80) - 1  # uint8[bytes] -> character of each byte
    return np.stack([character[stops - num_bytes], character[stops - 1] + 1], axis=1).astype(np.int64)
