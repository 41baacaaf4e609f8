"""From bytes to characters: which characters of a text each token of a byte-level tokenizer covers."""

import numpy as np


def spans_of_bytes(text: str, num_bytes: np.ndarray) -> np.ndarray:
    """Characters covered by tokens that follow each other without a gap.

    Args:
        text: the text the tokens were made of.
        num_bytes: int64[n], UTF-8 bytes of each token, at least 1; together those of the text.

    Returns:
        int64[n, 2], [start, stop) in characters; a token that holds part of a character covers all of it.
    """
    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    character = np.cumsum((data & 0xC0) != 0x80) - 1  # of every byte: bytes that go on with a character are 10xxxxxx
    stops = np.cumsum(num_bytes)
    return np.stack([character[stops - num_bytes], character[stops - 1] + 1], axis=1).astype(np.int64)
