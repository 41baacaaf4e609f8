"""The checksums of blocks (FMT-15)."""

import numpy as np
import xxhash

from tokenstore.format.layout import CHECKSUM_BLOCK

_DTYPE = np.dtype("<u8")


class BlockHasher:
    """The checksums of the blocks of data that arrives in parts of any size."""

    def __init__(self) -> None:
        self._digests: list[int] = []
        self._open = xxhash.xxh3_64()
        self._filled = 0  # bytes of the open block

    def update(self, data: bytes | memoryview) -> None:
        """Add data."""
        view, start = memoryview(data), 0
        if self._filled:
            start = min(CHECKSUM_BLOCK - self._filled, len(view))
            self._fill(view[:start])
        whole = start + (len(view) - start) // CHECKSUM_BLOCK * CHECKSUM_BLOCK
        for first in range(start, whole, CHECKSUM_BLOCK):
            self._digests.append(xxhash.xxh3_64_intdigest(view[first : first + CHECKSUM_BLOCK]))
        if whole < len(view):
            self._fill(view[whole:])

    def _fill(self, part: memoryview) -> None:
        self._open.update(part)
        self._filled += len(part)
        if self._filled == CHECKSUM_BLOCK:
            self._digests.append(self._open.intdigest())
            self._open, self._filled = xxhash.xxh3_64(), 0

    def digests(self) -> np.ndarray:
        """uint64[blocks]: the checksums, the last one of the open block."""
        return np.array(self._digests + ([self._open.intdigest()] if self._filled else []), _DTYPE)
