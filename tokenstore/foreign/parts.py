"""The parts of a store that become one token file of another tool."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.manifest import ShardEntry
from tokenstore.store.reader import Store

_BLOCK = 1 << 19  # tokens, or documents, at once


@dataclass(frozen=True)
class Part:
    """Consecutive shards of a store, to be written to one token file.

    Attributes:
        store: the open store.
        name: of the files, without an ending.
        shards: numbers of the shards.
    """

    store: Store
    name: str
    shards: range

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """The shards, as in the manifest."""
        return self.store.shards()[self.shards.start : self.shards.stop]

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.num_tokens for shard in self.entries)

    @property
    def documents(self) -> range:
        """Numbers of the documents."""
        first = self.entries[0].first_document
        return range(first, first + sum(shard.num_documents for shard in self.entries))

    def bounds(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first document, int64[n + 1]: where n documents begin in the file, and the end), in blocks.

        Raises:
            CorruptionError: the boundaries do not increase.
        """
        first_token = self.entries[0].first_token
        for first in range(self.documents.start, self.documents.stop, _BLOCK):
            stop = min(first + _BLOCK, self.documents.stop)
            found = self.store.boundaries()[first : stop + 1] - first_token
            if found[0] < 0 or found[-1] > self.num_tokens or (np.diff(found) < 1).any():
                raise CorruptionError(
                    f"boundaries: expected increasing starts, found others ({self.store.path}); run `tokenstore verify"
                    f" {self.store.path}`"
                )
            yield first, found

    def tokens(self) -> Iterator[np.ndarray]:
        """All tokens, in blocks. CorruptionError if an id is outside the vocabulary."""
        for number in self.shards:
            shard = self.store.shard(number)
            for first in range(0, shard.size, _BLOCK):
                block = shard[first : first + _BLOCK]
                if int(block.max()) >= self.store.vocab_size:
                    raise CorruptionError(
                        f"token id: expected ids below {self.store.vocab_size}, found {block.max()}"
                        f" ({self.store.path / self.store.shards()[number].file}); run `tokenstore verify {self.store.path}`"
                    )
                yield block

    def loss(self) -> Iterator[np.ndarray]:
        """uint8[n] with one byte per token, 1 if it is in the loss, in blocks."""
        for number, shard in zip(self.shards, self.entries, strict=True):
            mask = self.store.mask(number)
            for first in range(0, mask.size, _BLOCK):
                count = min(8 * _BLOCK, shard.num_tokens - 8 * first)
                yield np.unpackbits(mask[first : first + _BLOCK], count=count, bitorder="little")

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.store.path / self.store.shards()[number].file


def parts_of(store: Store, name: str, one_file: bool) -> list[Part]:
    """One part per shard, or one for all shards."""
    count = len(store.shards())
    if one_file or count == 1:
        return [Part(store, name, range(count))]
    return [Part(store, f"{name}_{number:05d}", range(number, number + 1)) for number in range(count)]
