"""Where the blocks of lanes are: from a visit to the byte ranges of files that its sequences need."""

import numpy as np

from tokenstore.batches.sources import Source
from tokenstore.format.layout import CHECKSUM_BLOCK, mask_of
from tokenstore.order.inverse import circle_offset
from tokenstore.order.keys import base_key
from tokenstore.order.lane_blocks import Visit

Range = tuple[int, int, int]  # file, start, stop


class LaneRanges:
    """The byte ranges of the blocks of a source with lanes. Files have the numbers of `TokenFiles`: shards, then their masks."""

    def __init__(self, source: Source, seed: int, sequence_length: int):
        self.store = store = source.members[0].store
        self._length, self._total = sequence_length, store.num_tokens
        self._block = source.lanes.block if source.lanes is not None else 1
        self._offset_base = base_key(seed, "offset", source.name)
        self._shards, self._token_bytes = store.shards(), store.dtype.itemsize
        self._first_tokens = np.array([shard.first_token for shard in self._shards], np.int64)
        self._has_masks = store.manifest.has_masks
        self._unit = CHECKSUM_BLOCK if store.has_block_checksums else 1
        self._file_bytes = [shard.num_bytes for shard in self._shards]
        if self._has_masks:
            self._file_bytes += [store.manifest.files[mask_of(shard.file)].num_bytes for shard in self._shards]

    @property
    def most_bytes(self) -> int:
        """Bytes that a block takes at most, unless it spans many shards."""
        tokens = self._block * self._length + 1
        num_files = 1 + self._has_masks
        return tokens * self._token_bytes + (tokens // 8 + 2) * self._has_masks + 2 * (self._unit - 1) * num_files

    def of(self, visit: Visit) -> tuple[Range, ...]:
        """What the block of a visit consists of: its tokens and the one after them, whole checksum blocks if there are checksums."""
        offset = circle_offset(self._total, self._offset_base, visit.epoch)
        start = (offset + visit.window * self._length) % self._total
        stop = start + visit.size * self._length + 1
        ranges = self._of_tokens(start, min(stop, self._total))
        return ranges + (self._of_tokens(0, min(stop - self._total, start)) if stop > self._total else ())

    def _of_tokens(self, start: int, stop: int) -> tuple[Range, ...]:
        """The ranges of tokens [start, stop) of the store."""
        found = []
        shard = int(np.searchsorted(self._first_tokens, start, side="right")) - 1
        while start < stop:
            entry = self._shards[shard]
            low, high = start - entry.first_token, min(stop - entry.first_token, entry.num_tokens)
            first = entry.first_byte + low * self._token_bytes
            found.append(self._rounded(shard, first, first + (high - low) * self._token_bytes))
            if self._has_masks:
                found.append(self._rounded(shard + len(self._shards), low >> 3, (high + 7) >> 3))
            start, shard = entry.first_token + entry.num_tokens, shard + 1
        return tuple(found)

    def _rounded(self, file: int, start: int, stop: int) -> Range:
        unit = self._unit
        return file, start // unit * unit, min(-(-stop // unit) * unit, self._file_bytes[file])
