"""Reads the blocks of lanes (ORD-20) ahead from a disk or a network file system, while batches have to wait for it.

The rows of a step come from one block per lane. A disk reads a whole block in one go, so the rows that follow are in memory when
their turn comes. A block is asked for once, before its lane reaches it; at most two per lane are ahead.
"""

from collections.abc import Sequence

from tokenstore.batches.lane_ranges import LaneRanges
from tokenstore.batches.lane_rows import LaneRows, SourceBlocks
from tokenstore.batches.open_blocks import Groups, cache_bytes
from tokenstore.batches.sampler import Order
from tokenstore.batches.sources import Source
from tokenstore.format.layout import mask_of
from tokenstore.store import Store
from tokenstore.store.block_ranges import Block
from tokenstore.store.files import memory_bytes, read_ahead
from tokenstore.store.workers import workers

_MEMORY_SHARE = 2  # blocks that take more than half of the memory would push each other out


class _Disk:
    """Asks for the blocks of a store on a disk, in a thread, in order."""

    def __init__(self, store: Store):
        self._store = store
        shards = store.shards()
        self._names = [shard.file for shard in shards] + [mask_of(shard.file) for shard in shards]

    def drop(self, start: int, stop: int | None, blocks: Sequence[Block]) -> None:
        """Nothing to do: the system forgets pages by itself."""

    def bring(self, block: Block) -> None:
        """Ask for a block."""
        store, names = self._store, self._names

        def job() -> None:
            for file, start, stop in block.ranges:
                read_ahead(store.path / names[file], [(start, stop)], store.allow_links)

        workers(1).submit(job)


def local_blocks(order: Order, sources: Sequence[Source], rank: int, world_size: int, nodes: int) -> LaneRows:
    """What reads the blocks of sources with lanes on disks ahead; call `move_to` with a step. Arguments as for `open_blocks`."""
    groups, found, left = Groups(order, rank, world_size, nodes), [], memory_bytes() // _MEMORY_SHARE
    for source in sources:
        store = source.members[0].store
        if source.lanes is None or store.url is not None:
            continue
        ranges = LaneRanges(source, order.seed, order.sequence_length)
        left -= cache_bytes(source.lanes.count, groups.count, ranges)
        if left >= 0:
            found.append(SourceBlocks(source, order.seed, ranges, _Disk(store)))
    return LaneRows(order.schedule, found, groups.stretches)
