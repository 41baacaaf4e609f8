"""Texts that the fast engine may read differently, and whether it gives what its reference gives."""

from collections.abc import Sequence

import numpy as np

from tokenstore.tokenizer import fast

NEW = (
    "\u0cdc<s",
    "\u0cdc'n",
    " \ufdcd",
    "\U000331da\u9978",
    "\U0001faef<s",
)  # not in the Unicode of either engine, or of both


def same(tokenizer: fast.FastTokenizer, texts: Sequence[str]) -> bool:
    """Whether both engines give the same ids and lengths, of the same types."""
    here, there = tokenizer.encode_batch(texts), tokenizer.reference.encode_batch(texts)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(here, there, strict=True))
