"""Rows of stores at URLs: fetches what planned spans need, while earlier batches are copied and trained on.

The planner writes addresses as if every file were mapped. Those of a remote file are VIRTUAL, unless the file has a mirror,
which is mapped like a local file. Before a microbatch is copied, its spans point to memory that has the bytes:

- without a mirror, to a buffer of the microbatch, which threads fill with exact ranges;
- with lanes (ORD-20), to such a buffer too, which is filled from blocks that are cached for as long as the plan needs them;
- with a mirror, to the map, after the blocks that were absent have been fetched; or to such a buffer, for the first rows and
  where blocks would come too late, as long as this adds little to what the mirror takes. Then the smallest ranges are fetched
  that have checksums (FMT-15).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tokenstore.batches.block_reads import read_blocks
from tokenstore.batches.byte_ranges import Ranges, room_of
from tokenstore.batches.coming import Coming
from tokenstore.batches.lane_rows import CachedBlocks, LaneRows
from tokenstore.batches.spans import CONTINUES, LENGTH, MASK, MEMORY, SPAN_STORE, START
from tokenstore.batches.tables import VIRTUAL
from tokenstore.format.layout import CHECKSUM_BLOCK
from tokenstore.store import Store
from tokenstore.store.remote.block_cache import PART_BYTES
from tokenstore.store.remote.group import BLOCK_THREADS
from tokenstore.store.remote.mirror import Mirror
from tokenstore.store.remote.token_files import TokenFiles

# Rows to plan ahead, so that threads have requests to make: at first, and at most after batches had to be waited for; and
# bytes. At least two microbatches are planned
FIRST_ROWS, MOST_ROWS, MOST_BYTES = 64, 1024, 32 << 20
_SPAN_SHARE = 0.02  # of the bytes of a mirror that such ranges may add
_MANY_BLOCKS = 4 * BLOCK_THREADS  # coming blocks from which on another one would come too late


class RemoteRows:
    """Fetches the tokens and masks of planned rows, for one sampler.

    Attributes:
        ahead_rows: how many rows to plan ahead. Doubled whenever a batch has to be waited for, except the first one.
    """

    def __init__(self, stores: Sequence[Store], sequence_length: int):
        self._stores = [_RemoteStore(store) if store.token_files is not None else None for store in stores]
        self._has_started = self._has_copied = False
        self._lanes: LaneRows | None = None
        row_bytes = max(store.dtype.itemsize for store in stores) * (sequence_length + 1)
        self._most_rows = max(min(MOST_ROWS, MOST_BYTES // row_bytes), 1)
        self.ahead_rows = min(FIRST_ROWS, self._most_rows)

    def read_lanes(self, lanes: LaneRows, blocks: Mapping[int, CachedBlocks]) -> None:
        """Read sources in blocks from now on; `move_to` must be called before rows are requested.

        blocks: those of each store at a URL that is read in lanes, by its number.
        """
        self._lanes = lanes
        for number, mine in blocks.items():
            store = self._stores[number]
            assert store is not None
            store.blocks = mine

    def move_to(self, step: int | None) -> None:
        """The rows of steps before `step` were requested; its rows will be next. None: no more rows will be."""
        if self._lanes is not None:
            self._lanes.move_to(step)

    def request(self, spans: np.ndarray, numbers: Callable[[], np.ndarray]) -> Coming | None:
        """Request what the spans of a microbatch need, and let them point to where it will be.

        Args:
            spans: int64[n, SPAN_COLUMNS]. MEMORY and MASK of spans in remote stores are changed.
            numbers: returns int64[n], the sequence of its source that each span belongs to.

        Returns:
            What to wait for; None if everything is there.
        """
        coming = Coming()
        for number, store in enumerate(self._stores):
            if store is not None and len(mine := np.flatnonzero(spans[:, SPAN_STORE] == number)):
                store.request(spans, mine, coming, urgent=not self._has_started, numbers=numbers)
        self._has_started = True
        return coming if coming.is_needed else None

    def wait(self, coming: Coming) -> bool:
        """As `Coming.wait`, and plan further ahead from now on if that has to wait."""
        if not coming.group.is_ready and self._has_copied:
            self.ahead_rows = min(2 * self.ahead_rows, self._most_rows)
        self._has_copied = True
        return coming.wait()


def traffic_of(stores: Iterable[Store]) -> dict[str, int | float]:
    """What this process has fetched from stores at URLs, as metrics; {} if there are none. `planning.progress` lists the keys."""
    files = [store.token_files for store in stores if store.token_files is not None]
    if not files:
        return {}
    counters, traffic = [each.client.counters for each in files], [each.traffic for each in files]
    found = {
        "requests": sum(each.requests for each in counters),
        "retries": sum(each.retries for each in counters),
        "bytes": sum(each.bytes_fetched for each in counters),
        "cache_hits": sum(each.cache_hits for each in traffic),
        "cache_misses": sum(each.cache_misses for each in traffic),
        "waits": sum(each.waits for each in traffic),
        "wait_seconds": sum(each.wait_seconds for each in traffic),
    }
    return {f"data/remote/{name}": value for name, value in found.items()}


class _RemoteStore:
    """A store whose tokens are at a URL."""

    def __init__(self, store: Store):
        if store.token_files is None:
            raise ValueError(f"store: expected one at a URL, found {store.path}")
        self.files: TokenFiles = store.token_files
        shards = store.shards()
        self._first_tokens = np.array([shard.first_token for shard in shards], np.int64)
        self._first_bytes = np.array([shard.first_byte for shard in shards], np.int64)
        self._token_bytes, self._has_masks = store.dtype.itemsize, store.manifest.has_masks
        self._num_shards = len(shards)
        self.blocks: CachedBlocks | None = None

    def request(
        self, spans: np.ndarray, mine: np.ndarray, coming: Coming, urgent: bool, numbers: Callable[[], np.ndarray]
    ) -> None:
        """Request the spans `mine` (int64[n], indices). urgent: the microbatch is needed at once."""
        ranges, mirror, unit = self._ranges_of(spans, mine), self.files.mirror, 1
        if self.blocks is not None:
            ranges = read_blocks(self.blocks, spans, ranges, numbers(), coming, self.files)
            self.blocks.sink.warn()
        if mirror is not None:
            if mirror.is_complete and not ranges.virtual.any():
                self.files.traffic.cache_hits += len(mine)
                return
            unit = CHECKSUM_BLOCK if mirror.is_usable else 1
            ranges = self._from_mirror(mirror, ranges, coming, urgent)
        if len(ranges.spans):
            self._fetch(spans, ranges, unit, coming)

    def _ranges_of(self, spans: np.ndarray, mine: np.ndarray) -> Ranges:
        """The bytes of files that spans consist of, and those of their masks."""
        starts, counts = spans[mine, START], spans[mine, LENGTH] + spans[mine, CONTINUES]
        shards = np.searchsorted(self._first_tokens, starts, side="right") - 1
        at = starts - self._first_tokens[shards]
        first = self._first_bytes[shards] + at * self._token_bytes
        virtual = spans[mine, MEMORY] >= VIRTUAL
        tokens = Ranges(mine, shards, first, first + counts * self._token_bytes, np.full(len(mine), -1), virtual)
        if not self._has_masks:
            return tokens
        virtual = spans[mine, MASK] >> 3 >= VIRTUAL
        masks = Ranges(mine, shards + self._num_shards, at >> 3, (at + counts + 7) >> 3, at & 7, virtual)
        return tokens.joined(masks)

    def _from_mirror(self, mirror: Mirror, ranges: Ranges, coming: Coming, urgent: bool) -> Ranges:
        """Want the blocks of ranges that are absent; returns the ranges to fetch exactly instead."""
        mapped = ranges.only(~ranges.virtual)
        present, blocks = mirror.blocks_of(mapped.files, mapped.starts, mapped.stops)
        absent = ranges.only(ranges.virtual).joined(mapped.only(~present))
        self.files.traffic.cache_hits += int(present.sum())
        self.files.traffic.cache_misses += len(absent.spans)
        if not len(blocks) or not mirror.is_usable or self._may_be_exact(mirror, absent, urgent):
            return absent
        for number, block in blocks:
            coming.want(self.files, mirror, number, block)
        return ranges.only(ranges.virtual)

    def _may_be_exact(self, mirror: Mirror, absent: Ranges, urgent: bool) -> bool:
        """Whether to fetch ranges although there is a mirror: blocks would come too late, and it adds little."""
        if not urgent and mirror.num_coming < _MANY_BLOCKS:
            return False
        merged, _ = absent.merged(CHECKSUM_BLOCK, self.files.num_bytes)
        return mirror.spend(
            sum(stop - start for _, start, stop in merged), int(self.files.num_bytes.sum() * _SPAN_SHARE)
        )

    def _fetch(self, spans: np.ndarray, ranges: Ranges, unit: int, coming: Coming) -> None:
        """Fetch ranges into a buffer, and let their spans point there. Ranges that touch are one request.

        unit: 1 for exact ranges; CHECKSUM_BLOCK to fetch what can be verified.
        """
        merged, places = ranges.merged(unit, self.files.num_bytes)
        buffer = coming.buffer(self.files, sum(room_of(stop - start) for _, start, stop in merged))
        at, bases = 0, []
        for number, start, stop in merged:
            for first in range(start, stop, PART_BYTES):
                part = buffer[at + first - start : at + min(first + PART_BYTES, stop) - start]
                self.files.fetch_into(number, first, part, coming.group, verified=unit > 1)
            bases.append(buffer.ctypes.data + at - start)
            at += room_of(stop - start)
        ranges.put_addresses(spans, np.array(bases, np.int64)[places] + ranges.starts)
