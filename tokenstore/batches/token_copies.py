"""Loops that copy tokens to an array of another type. They take addresses, because passing an array updates its reference
count.

A type is given by its bytes: tokens are uint16 (2) or uint32 (4). Token ids of a batch are int64 (8), int32 or uint32
(4), or uint16 (2). As no id exceeds 2**31, int32 and uint32 have the same bytes.
"""

import numpy as np

from tokenstore.batches.block import EXTRA_BEFORE, ID_BYTES, IDS
from tokenstore.intrinsics import array_at, int64_at, uint16_at, uint32_at
from tokenstore.jit import Integer, inline_kernel


@inline_kernel
def widen(tokens: Integer, token_bytes: Integer, count: Integer, out: Integer) -> None:
    """Copy `count` tokens (uint16 or uint32, by `token_bytes`) to int64."""
    wide = array_at(int64_at(out), (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            wide[i] = short[i]
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            wide[i] = words[i]


@inline_kernel
def _copy_shorts(tokens: Integer, token_bytes: Integer, count: Integer, out: Integer) -> None:
    """Copy `count` tokens to uint16."""
    ids = array_at(uint16_at(out), (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            ids[i] = short[i]
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            ids[i] = words[i]


@inline_kernel
def _copy_words(tokens: Integer, token_bytes: Integer, count: Integer, out: Integer) -> None:
    """Copy `count` tokens to uint32, or to int32 with the same bytes."""
    ids = array_at(uint32_at(out), (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            ids[i] = short[i]
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            ids[i] = words[i]


@inline_kernel
def _id_at(block: np.ndarray, at: Integer) -> Integer:
    """Address of an element of IDS. at: its number in the flattened array, without the extra elements of rows."""
    return block[IDS] + block[ID_BYTES] * (at + block[EXTRA_BEFORE])


@inline_kernel
def copy_ids(block: np.ndarray, tokens: Integer, token_bytes: Integer, count: Integer, at: Integer) -> None:
    """Copy `count` tokens to the elements at, at + 1, ... of IDS. Every id fits, because the vocabulary does."""
    if block[ID_BYTES] == 8:
        widen(tokens, token_bytes, count, _id_at(block, at))
    elif block[ID_BYTES] == 4:
        _copy_words(tokens, token_bytes, count, _id_at(block, at))
    else:
        _copy_shorts(tokens, token_bytes, count, _id_at(block, at))


@inline_kernel
def fill_ids(block: np.ndarray, token: Integer, count: Integer, at: Integer) -> None:
    """Write one token to `count` elements of IDS."""
    out = _id_at(block, at)
    if block[ID_BYTES] == 8:
        wide = array_at(int64_at(out), (count,))
        for i in range(count):
            wide[i] = token
    elif block[ID_BYTES] == 4:
        words = array_at(uint32_at(out), (count,))
        for i in range(count):
            words[i] = token
    else:
        short = array_at(uint16_at(out), (count,))
        for i in range(count):
            short[i] = token
