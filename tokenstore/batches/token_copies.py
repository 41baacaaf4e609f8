"""Loops that copy tokens to an array of another type. They take addresses, because passing an array updates its reference
count.

A type is given by its bytes: tokens are uint16 (2) or uint32 (4). Token ids of a batch are int64 (8), int32 or uint32
(4), or uint16 (2). As no id exceeds 2**31, int32 and uint32 have the same bytes.
"""

from typing import Any

import numpy as np

from tokenstore.batches.block import EXTRA_BEFORE, ID_BYTES, IDS
from tokenstore.intrinsics import array_at, int64_at, uint16_at, uint32_at
from tokenstore.jit import Integer, inline_kernel


@inline_kernel
def _copy(tokens: Integer, token_bytes: Integer, count: Integer, out: Any) -> None:
    """Copy `count` tokens (uint16 or uint32, by `token_bytes`) to `out`, a pointer to elements of any integer type."""
    ids = array_at(out, (count,))
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        for i in range(count):
            ids[i] = short[i]
    else:
        words = array_at(uint32_at(tokens), (count,))
        for i in range(count):
            ids[i] = words[i]


@inline_kernel
def _fill(token: Integer, count: Integer, out: Any) -> None:
    """Write one token to `count` elements of `out`, a pointer."""
    ids = array_at(out, (count,))
    for i in range(count):
        ids[i] = token


@inline_kernel
def widen(tokens: Integer, token_bytes: Integer, count: Integer, out: Integer) -> None:
    """Copy `count` tokens to int64 at the address `out`."""
    _copy(tokens, token_bytes, count, int64_at(out))


@inline_kernel
def _id_at(block: np.ndarray, at: Integer) -> Integer:
    """Address of an element of IDS. at: its number in the flattened array, without the extra elements of rows."""
    return block[IDS] + block[ID_BYTES] * (at + block[EXTRA_BEFORE])


@inline_kernel
def copy_ids(block: np.ndarray, tokens: Integer, token_bytes: Integer, count: Integer, at: Integer) -> None:
    """Copy `count` tokens to the elements at, at + 1, ... of IDS. Every id fits, because the vocabulary does."""
    out = _id_at(block, at)
    if block[ID_BYTES] == 8:
        _copy(tokens, token_bytes, count, int64_at(out))
    elif block[ID_BYTES] == 4:
        _copy(tokens, token_bytes, count, uint32_at(out))
    else:
        _copy(tokens, token_bytes, count, uint16_at(out))


@inline_kernel
def fill_ids(block: np.ndarray, token: Integer, count: Integer, at: Integer) -> None:
    """Write one token to `count` elements of IDS."""
    out = _id_at(block, at)
    if block[ID_BYTES] == 8:
        _fill(token, count, int64_at(out))
    elif block[ID_BYTES] == 4:
        _fill(token, count, uint32_at(out))
    else:
        _fill(token, count, uint16_at(out))
