"""nanoGPT: `train.bin` holds uint16 tokens and nothing else. Documents are found by the end-of-text token after each.

A `meta.pkl` next to it belongs to data of characters. It is never read: a pickle runs code.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenstore.foreign.reading import Documents, TokenFile, size_of, whole_tokens

INDEX_ENDINGS = ()


def describe(path: Path, dtype: str | None) -> TokenFile:
    """The token file at `path`, of uint16 unless `dtype` says otherwise. BuildError if its size is not a number of tokens."""
    chosen = np.dtype(dtype or "uint16").newbyteorder("<")
    return TokenFile(path, (), chosen, 0, whole_tokens(path, 0, chosen.itemsize), size_of(path))


def documents(index: tuple[Path, ...], most: int) -> Iterator[Documents]:
    """None: there is no index."""
    yield from ()
