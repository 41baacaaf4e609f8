"""Opens the caches for the blocks of lanes that a rank reads (ORD-20, ORD-21)."""

from collections.abc import Mapping, Sequence

import numpy as np

from tokenstore.batches.lane_ranges import LaneRanges
from tokenstore.batches.lane_rows import CachedBlocks, LaneRows
from tokenstore.batches.sampler import Order
from tokenstore.batches.sources import Source
from tokenstore.order.node_groups import NodeGroups
from tokenstore.store import Store


def open_blocks(
    order: Order, sources: Sequence[Source], stores: Mapping[str, Store], rank: int, world_size: int, nodes: int
) -> tuple[LaneRows, dict[int, CachedBlocks]]:
    """The blocks of the sources with lanes at URLs whose cache is large enough.

    Args:
        order, sources, stores: of the plan.
        rank, world_size, nodes: of the loader.

    Returns:
        What moves them through the steps; and the blocks of each source, by the number of its store.

    Raises:
        ConfigError: blocks were demanded, and a cache is too small for them.
    """
    groups = Groups(order, rank, world_size, nodes)
    by_name, opened = {source.name: source for source in sources}, dict[int, CachedBlocks]()
    for number, (name, store) in enumerate(stores.items()):
        source, files = by_name.get(name), store.token_files
        if source is None or source.lanes is None or files is None:
            continue
        ranges = LaneRanges(source, order.seed, order.sequence_length)
        what = (name, order.seed, order.sequence_length, source.lanes, groups.group, groups.count)
        cache = files.open_blocks(
            f"{what} {store.has_block_checksums}", cache_bytes(source.lanes.count, groups.count, ranges)
        )
        if cache is not None:
            opened[number] = CachedBlocks(source, order.seed, ranges, cache, groups.num_ranks)
    return LaneRows(order.schedule, list(opened.values()), groups.stretches), opened


def cache_bytes(lanes: int, num_groups: int, ranges: LaneRanges) -> int:
    """Bytes of cache that the blocks of a source take in one node group: one that each lane reads, and the next one."""
    return 2 * -(-lanes // num_groups) * ranges.most_bytes


class Groups:
    """The node group of a rank, and the lanes that it owns.

    Attributes:
        count: number of node groups.
        group: the group of the rank.
        num_ranks: ranks per group.
    """

    def __init__(self, order: Order, rank: int, world_size: int, nodes: int):
        self._order, self._known = order, dict[int, dict[str, list[int]]]()
        self.count = nodes if nodes > 1 and world_size % nodes == 0 else 1
        self.num_ranks = world_size // self.count
        self.group = rank // self.num_ranks

    def stretches(self, step: int) -> dict[str, list[int]]:
        """The stretches of each source with lanes that the group reads in `step`. They change only where a stage begins."""
        first = self._order.schedule.stage(step).from_step
        if first not in self._known:
            lanes = self._order.lanes_in(step)
            groups, found = NodeGroups(lanes, self.count), {}
            for source, name in enumerate(self._order.names):
                count = 0 if not lanes or (each := lanes[source]) is None else each.count
                rows = np.stack([np.full(count, source), np.arange(count)], axis=1)  # stretch j has number j
                found[name] = np.flatnonzero(groups.owners(rows) == self.group).tolist()
            self._known[first] = found
        return self._known[first]
