"""Kernels that only other kernels call, made callable for tests."""

import numpy as np
from numba import njit

from tokenstore.order import permutation, windows
from tokenstore.order.keys import as_bits, base_key, counted_key


@njit
def _counted_key(base_bits: int, counter: int) -> int:
    return np.int64(counted_key(np.uint64(base_bits), counter))


def key_of(base: int, counter: int) -> int:
    return int(np.int64(_counted_key(as_bits(np.uint64(base)), counter)).astype(np.uint64))


@njit
def _permute(indices: np.ndarray, n: int, key: int, inverse: bool, out: np.ndarray) -> None:
    for j in range(indices.size):
        if inverse:
            out[j] = permutation.unpermute(indices[j], n, np.uint64(key))
        else:
            out[j] = permutation.permute(indices[j], n, np.uint64(key))


def permute(indices: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(indices), np.int64)
    _permute(np.array(indices, np.int64), n, as_bits(np.uint64(key)), False, out)
    return out.tolist()


def unpermute(images: list[int], n: int, key: int) -> list[int]:
    out = np.empty(len(images), np.int64)
    _permute(np.array(images, np.int64), n, as_bits(np.uint64(key)), True, out)
    return out.tolist()


@njit
def _run(first: int, n: int, key: int, out: np.ndarray) -> None:
    permutation.permute_run(first, n, np.uint64(key), out)


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
