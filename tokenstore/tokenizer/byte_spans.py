"""Which characters of a text each token covers: from the bytes of tokens, or text by text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np


class SpansTextByText(ABC):
    """`encode_batch_with_spans` of a tokenizer whose library gives the spans of one text."""

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
    """Characters covered by tokens that follow each other without a gap.

    Args:
        text: the text the tokens were made of.
        num_bytes: int64[n], UTF-8 bytes of each token, at least 1; together those of the text.

    Returns:
        int64[n, 2], [start, stop) in characters; a token that holds part of a character covers all of it.
    """
    stops = np.cumsum(num_bytes)
    if text.isascii():
        return np.stack([stops - num_bytes, stops], axis=1).astype(np.int64)
    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    character = np.cumsum((data & 0xC0) != 0x80) - 1  # of every byte: those that continue a character are 10xxxxxx
    return np.stack([character[stops - num_bytes], character[stops - 1] + 1], axis=1).astype(np.int64)
