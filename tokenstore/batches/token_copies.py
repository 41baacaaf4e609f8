"""Copies of tokens to arrays of other types, by the block or a few at a time.

The functions take addresses, because passing an array updates its reference count. A type is given by its bytes: tokens
are uint16 (2) or uint32 (4). Token ids of a batch are int64 (8), int32 or uint32 (4), or uint16 (2). As no id exceeds
2**31, int32 and uint32 have the same bytes.
"""

from typing import Any

import numpy as np

from tokenstore.batches.masks import ALL_BITS
from tokenstore.intrinsics import (
    array_at,
    copy_chunk,
    copy_chunk_where,
    int64_at,
    largest_of_chunk,
    uint16_at,
    uint32_at,
)
from tokenstore.jit import Integer, inline_kernel

_ONE = np.uint64(1)


# ---- chunks


@inline_kernel
def copy_chunk_of_ids(tokens: Integer, token_bytes: Integer, out: Integer, out_bytes: Integer) -> None:
    """Copy a chunk of tokens to elements of `out_bytes` bytes. Every id fits, because the vocabulary does."""
    if token_bytes == 2:
        if out_bytes == 8:
            copy_chunk(uint16_at(tokens), int64_at(out))
        elif out_bytes == 4:
            copy_chunk(uint16_at(tokens), uint32_at(out))
        else:
            copy_chunk(uint16_at(tokens), uint16_at(out))
    elif out_bytes == 8:
        copy_chunk(uint32_at(tokens), int64_at(out))
    elif out_bytes == 4:
        copy_chunk(uint32_at(tokens), uint32_at(out))
    else:
        copy_chunk(uint32_at(tokens), uint16_at(out))


@inline_kernel
def copy_chunk_in_loss(
    tokens: Integer, token_bytes: Integer, in_loss: np.uint64, ignored: Integer, out: Integer
) -> None:
    """Copy a chunk of tokens to int64, and replace those whose bit of `in_loss` is 0 by `ignored`."""
    if in_loss == ALL_BITS:
        copy_chunk_of_ids(tokens, token_bytes, out, 8)
    elif token_bytes == 2:
        copy_chunk_where(uint16_at(tokens), in_loss, ignored, int64_at(out))
    else:
        copy_chunk_where(uint32_at(tokens), in_loss, ignored, int64_at(out))


@inline_kernel
def largest_in_chunk(tokens: Integer, token_bytes: Integer) -> Integer:
    """The largest token of a chunk."""
    return largest_of_chunk(uint16_at(tokens)) if token_bytes == 2 else largest_of_chunk(uint32_at(tokens))


# ---- any number of tokens


@inline_kernel
def token_at(tokens: Integer, token_bytes: Integer) -> Integer:
    """The token at an address."""
    if token_bytes == 2:
        return np.int64(array_at(uint16_at(tokens), (1,))[0])
    return np.int64(array_at(uint32_at(tokens), (1,))[0])


@inline_kernel
def _copy(tokens: Integer, token_bytes: Integer, count: Integer, out: Any) -> None:
    """Copy `count` tokens to `out`, a pointer to elements of any integer type."""
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
def copy_ids(tokens: Integer, token_bytes: Integer, count: Integer, out: Integer, out_bytes: Integer) -> None:
    """Copy `count` tokens to elements of `out_bytes` bytes. Every id fits, because the vocabulary does."""
    if out_bytes == 8:
        _copy(tokens, token_bytes, count, int64_at(out))
    elif out_bytes == 4:
        _copy(tokens, token_bytes, count, uint32_at(out))
    else:
        _copy(tokens, token_bytes, count, uint16_at(out))


@inline_kernel
def fill_ids(token: Integer, count: Integer, out: Integer, out_bytes: Integer) -> None:
    """Write one token to `count` elements of `out_bytes` bytes."""
    if out_bytes == 8:
        _fill(token, count, int64_at(out))
    elif out_bytes == 4:
        _fill(token, count, uint32_at(out))
    else:
        _fill(token, count, uint16_at(out))


@inline_kernel
def copy_in_loss(
    tokens: Integer, token_bytes: Integer, count: Integer, in_loss: np.uint64, ignored: Integer, out: Integer
) -> None:
    """Copy fewer than 64 tokens to int64, and replace those whose bit of `in_loss` is 0 by `ignored`."""
    wide = array_at(int64_at(out), (count,))
    for i in range(count):
        token = token_at(tokens + i * token_bytes, token_bytes)
        wide[i] = token if (in_loss >> np.uint64(i)) & _ONE else ignored
