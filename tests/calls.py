"""Kernels that only other kernels call, made callable for tests."""

import numpy as np
from numba import njit

from tokenstore.order import windows
from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.permutation import permute_into, permute_run


def permute(indices: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(indices), np.int64)
    permute_into(np.array(indices, np.int64), n, as_bits(np.uint64(key)), False, out)
    return out.tolist()


def unpermute(images: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(images), np.int64)
    permute_into(np.array(images, np.int64), n, as_bits(np.uint64(key)), True, out)
    return out.tolist()


@njit
def _run(first: int, n: int, key: int, out: np.ndarray) -> None:
    permute_run(first, n, np.uint64(key), out)


def permute_consecutive(first: int, count: int, n: int, key: int) -> list[int]:
    out = np.empty(count, np.int64)
    _run(first, n, as_bits(np.uint64(key)), out)
    return out.tolist()


@njit
def _window_start(k: int, num_tokens: int, length: int, sequence: int, offset: int, shuffle: bool) -> int:
    count = num_tokens // length
    return windows.window_start(
        k // count, k % count, num_tokens, length, np.uint64(sequence), np.uint64(offset), shuffle
    )


def window_start(seed: int, name: str, num_tokens: int, length: int, k: int, shuffle: bool = True) -> int:
    keys = [as_bits(base_key(seed, purpose, name)) for purpose in ("sequence", "offset")]
    return _window_start(k, num_tokens, length, *keys, shuffle)
