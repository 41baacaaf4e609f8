"""The documents of a build in a random order (`--shuffle-documents SEED`), with bounded memory.

Document i of the inputs, counted before duplicates are removed, gets a key: a hash of the seed and i. The documents of a store
are in the order of their keys. So the order depends on nothing but the seed and the inputs: not on workers, tasks or kills.

Documents are first written to buckets, by the highest bits of their keys. Each bucket is then sorted in memory; one that is too
large for that is divided again by the next bits. All of this is scratch: a killed build does it again from its parts.
"""

import contextlib
import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tokenstore.builder.placed import PLACED, Placed, joined
from tokenstore.errors import BuildError
from tokenstore.store.writing import create, new_folder, remove, remove_tree

_BUCKET_BYTES = 64 << 20  # aimed at; a bucket is sorted in memory if it is not larger than four times this
_MOST_BITS = 7  # of the keys, at once: 128 files are open
_KEY_BITS = 64
_BLOCK_TOKENS = 1 << 22  # given on at once
_HEAD = np.dtype([(name, "<i8") for name in ("documents", "tokens", "mask_bytes", "name_bytes", "metadata_bytes")])
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio


def keys_of(seed: int, first: int, count: int) -> np.ndarray:
    """uint64[count]: the keys of documents first, first + 1, ...; all different.

    SplitMix64 from a start that is the first 8 bytes of the sha256 of `tokenstore shuffle SEED`.
    """
    start = np.frombuffer(hashlib.sha256(f"tokenstore shuffle {seed}".encode()).digest()[:8], "<u8")
    z = start + (np.arange(first + 1, first + count + 1, dtype=np.uint64) * _GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys: np.ndarray = z ^ (z >> np.uint64(31))
    return keys


class Shuffler:
    """Takes documents in any order and gives them back in the order of their keys.

    Args:
        folder: for scratch files; it is created, and removed at the end.
        num_bytes: of all documents that will be added, about.
        dtype: of the tokens.
        done_bits: how many of the highest bits of the keys are the same for all documents.
    """

    def __init__(self, folder: Path, num_bytes: int, dtype: np.dtype, done_bits: int = 0):
        remove_tree(folder)
        new_folder(folder)
        wanted = max(0, -(-num_bytes // _BUCKET_BYTES) - 1).bit_length()
        self._bits = min(wanted, _MOST_BITS, _KEY_BITS - done_bits)
        self._folder, self._dtype, self._done_bits = folder, dtype, done_bits
        self._paths = [folder / f"{number:03d}" for number in range(1 << self._bits)]
        self._sizes = [0] * len(self._paths)
        with contextlib.ExitStack() as opened:
            self._files = [opened.enter_context(create(path)) for path in self._paths]
            self._held = opened.pop_all()

    def add(self, documents: Placed) -> None:
        """Add documents; their tokens are of the dtype."""
        keys = documents.rows["key"] << np.uint64(self._done_bits)
        shift = np.uint64(_KEY_BITS - self._bits)
        numbers = (keys >> shift).astype(np.int64) if self._bits else np.zeros(keys.size, np.int64)
        for number in np.unique(numbers).tolist():
            some = documents.only(numbers == number)
            self._sizes[number] += _write(self._files[number], some)

    def blocks(self) -> Generator[Placed]:
        """All documents in the order of their keys, in blocks of bounded size. Each bucket is removed when it is done."""
        self._held.close()
        for path, size in zip(self._paths, self._sizes, strict=True):
            if size > 4 * _BUCKET_BYTES and self._done_bits + self._bits < _KEY_BITS:
                yield from self._divided(path, size)
            elif size:
                yield from _sorted(joined([*_read(path, self._dtype)]))
            remove(path)
        remove_tree(self._folder)

    def _divided(self, path: Path, size: int) -> Iterator[Placed]:
        with Shuffler(path.with_suffix(".divided"), size, self._dtype, self._done_bits + self._bits) as inner:
            for documents in _read(path, self._dtype):
                inner.add(documents)
            remove(path)
            yield from inner.blocks()

    def __enter__(self) -> "Shuffler":
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()


def _sorted(documents: Placed) -> Iterator[Placed]:
    """The documents by rising key, in blocks."""
    order = np.argsort(documents.rows["key"], kind="stable")
    ends = np.cumsum(documents.rows["length"][order])
    first = 0
    while first < order.size:
        done = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield documents.take(order[first:stop])
        first = stop


def _write(file: BinaryIO, documents: Placed) -> int:
    """Append documents to a bucket; returns the number of bytes."""
    names, metadata = "".join(documents.names).encode(), b"".join(documents.metadata)
    mask = b"" if documents.mask is None else documents.mask.tobytes()
    head = np.array([(documents.rows.size, documents.tokens.size, len(mask), len(names), len(metadata))], _HEAD)
    parts = (head.tobytes(), documents.rows.tobytes(), documents.tokens.tobytes(), mask, names, metadata)
    for part in parts:
        file.write(part)
    return sum(map(len, parts))


def _read(path: Path, dtype: np.dtype) -> Iterator[Placed]:
    """What `_write` wrote, call by call."""
    with open(path, "rb") as file:
        while head := file.read(_HEAD.itemsize):
            documents, tokens, mask_bytes, name_bytes, metadata_bytes = np.frombuffer(head, _HEAD)[0].item()
            rows = np.frombuffer(_exactly(file, documents * PLACED.itemsize), PLACED)
            found = np.frombuffer(_exactly(file, tokens * dtype.itemsize), dtype)
            mask = np.frombuffer(_exactly(file, mask_bytes), np.bool_) if mask_bytes else None
            names = _cut(_exactly(file, name_bytes), rows["name_bytes"])
            metadata = _cut(_exactly(file, metadata_bytes), rows["metadata_bytes"])
            yield Placed(rows, found, mask, [name.decode() for name in names], metadata)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise BuildError(f"shuffle: {file.name} was changed while it was used; run the same command again")
    return data


def _cut(data: bytes, sizes: np.ndarray) -> list[bytes]:
    ends = np.cumsum(sizes).tolist()
    return [data[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
