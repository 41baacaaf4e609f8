"""Keys (ORD-1): from a seed and labels to uint64.

Arithmetic here never mixes uint64 with another integer type, because numba would convert both to float64.
"""

import hashlib
import json

import numpy as np

from tokenstore.jit import Integer, inline_kernel

_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def base_key(seed: int, purpose: str, name: str = "") -> np.uint64:
    """The base key of (seed, purpose, name), see ORD-1. Any integer is a valid seed."""
    text = json.dumps([seed, purpose, name])
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8).digest(), "little"))


@inline_kernel
def mix(x: np.uint64) -> np.uint64:
    """The SplitMix64 finaliser: a bijection of uint64 in which every input bit affects every output bit."""
    x ^= x >> _S30
    x *= _MUL1
    x ^= x >> _S27
    x *= _MUL2
    return x ^ (x >> _S31)


@inline_kernel
def counted_key(base: np.uint64, counter: Integer) -> np.uint64:
    """Counted key number `counter` (>= 0) of the base key `base`."""
    return mix(base + (np.uint64(counter) + np.uint64(1)) * _GOLDEN)


def as_bits(key: np.uint64) -> int:
    """The int64 with the same bits as `key`. Passing a Python int of 2**63 or more to a kernel costs 50 us per call."""
    return int(np.uint64(key).astype(np.int64))
