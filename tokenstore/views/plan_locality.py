"""The sources of a plan that read their store in blocks (ORD-20): what they need, and what would suit them."""

from dataclasses import dataclass
from pathlib import Path

from tokenstore.batches.lane_ranges import LaneRanges
from tokenstore.batches.open_blocks import cache_bytes
from tokenstore.batches.sources import Source
from tokenstore.errors import counted
from tokenstore.planning import Plan
from tokenstore.store import Store
from tokenstore.store.remote.mirrors import BLOCK_BYTES, expected_transport, folder_of, mirror_room
from tokenstore.text import size

# Advice: lanes in multiples of 64; blocks of 4 MiB, as a larger request is hardly cheaper per byte, but of 64 KiB at least;
# 10 blocks per lane, so that the blocks that are cut where a stretch ends add a tenth to the bytes
_LANES, _BEST_BYTES, _LEAST_BYTES, _BLOCKS_PER_LANE = 64, 4 << 20, 1 << 16, 10
_UNSHUFFLED = 4  # times the lanes, if neighbours in the store are alike


@dataclass(frozen=True)
class Advice:
    """A locality that suits a source: `{block_sequences: ..., lanes: ...}`, and the cache that it needs per node."""

    block_sequences: int
    lanes: int
    cache_bytes: int


@dataclass(frozen=True)
class LocalityRow:
    """A source with a locality, or one that should have one, in some steps of a plan.

    Attributes:
        source: its name in the plan.
        block_sequences: sequences per block; at most those of an epoch. 0 without a locality, as the next four.
        block_bytes: bytes of the tokens of a block.
        num_blocks: blocks per epoch.
        lanes: blocks in use at a time; at most `num_blocks`.
        cache_bytes: bytes of cache per node, if the store is at a URL: two blocks for each lane of the node.
        sequences_per_step: its sequences in a step, rounded up; the most of all stages in these steps.
        is_shuffled: whether the store was built with its documents in random order.
        advice: what suits it; None if the store has too few sequences for any.
        warnings: what costs quality or bytes, and what to do.
    """

    source: str
    block_sequences: int
    block_bytes: int
    num_blocks: int
    lanes: int
    cache_bytes: int
    sequences_per_step: int
    is_shuffled: bool
    advice: Advice | None
    warnings: tuple[str, ...]

    @property
    def advice_text(self) -> str:
        """The advice in words, if it is needed: there are warnings, or no locality. Otherwise ""."""
        if self.advice is None or (self.lanes and not self.warnings):
            return ""
        fields = f"locality: {{block_sequences: {self.advice.block_sequences}, lanes: {self.advice.lanes}}}"
        what = "" if self.lanes else "its rows are fetched one by one; "
        cache = f" ({size(self.advice.cache_bytes)} of cache per node)" if self.advice.cache_bytes else ""
        return f"{what}for a new run, {fields} suits it{cache}"


def localities_of(plan: Plan, steps: int, nodes: int = 1) -> tuple[LocalityRow, ...]:
    """A row per source with a locality, or whose rows are fetched one by one and could be in blocks, for steps [0, steps).

    nodes: number of nodes of the run.
    """
    rows = (_row(plan, source, steps, nodes) for source in plan.sources if source.packing == "concat")
    return tuple(row for row in rows if row.lanes or (row.advice is not None and _is_read_as_spans(plan, row.source)))


def _row(plan: Plan, source: Source, steps: int, nodes: int) -> LocalityRow:
    store, lanes = source.members[0].store, source.lanes
    per_step = max(
        -(-stage.global_batch_size * stage.shares.get(source.name, 0) // sum(stage.shares.values()))
        for stage in plan.schedule.stages
        if stage.from_step < steps
    )
    is_shuffled = store.manifest.has_document_inputs or store.manifest.options.get("shuffle_documents") is not None
    sequence_bytes = plan.config.sequence_length * store.dtype.itemsize
    advice = advise(per_step, sequence_bytes, source.num_sequences, is_shuffled, _limit(store), nodes)
    ranges = LaneRanges(source, plan.config.seed, plan.config.sequence_length)
    return LocalityRow(
        source=source.name,
        block_sequences=lanes.block if lanes else 0,
        block_bytes=lanes.block * sequence_bytes if lanes else 0,
        num_blocks=lanes.num_blocks if lanes else 0,
        lanes=lanes.count if lanes else 0,
        cache_bytes=cache_bytes(lanes.count, nodes, ranges) if lanes and store.url is not None else 0,
        sequences_per_step=per_step,
        is_shuffled=is_shuffled,
        advice=advice if plan.config.shuffle else None,
        warnings=_warnings(lanes.count, lanes.num_blocks, per_step, is_shuffled) if lanes else (),
    )


def _warnings(lanes: int, num_blocks: int, per_step: int, is_shuffled: bool) -> tuple[str, ...]:
    found = []
    if lanes < per_step:
        found.append(
            f"{counted(lanes, 'lane')} for up to {per_step:,} sequences in a step: several of them come from one block, and neighbours"
            f" are alike; use {per_step:,} lanes or more"
        )
    elif lanes < _UNSHUFFLED * per_step and not is_shuffled:
        found.append(
            "the store was not built with --shuffle-documents, so the means of many steps vary more than in a random order;"
            f" build with it, or use {_UNSHUFFLED * per_step:,} lanes"
        )
    if num_blocks < _BLOCKS_PER_LANE * lanes:
        found.append(
            f"{num_blocks:,} blocks for {lanes:,} lanes: about {lanes / num_blocks:.0%} of the bytes are fetched twice; use"
            " smaller blocks or fewer lanes"
        )
    return tuple(found)


def advise(
    per_step: int, sequence_bytes: int, num_sequences: int, is_shuffled: bool, limit: int | None, nodes: int = 1
) -> Advice | None:
    """The locality that suits a source, or None if its blocks would be too small to be worth it.

    Lanes: as many as sequences in a step, in multiples of 64; four times that for documents in the order of a crawl, if blocks
    of a MiB are left. Blocks: of about 4 MiB, ten per lane at least, and two per lane in the cache.

    Args:
        per_step: sequences of the source in a step.
        sequence_bytes: bytes of a sequence.
        num_sequences: sequences of an epoch.
        is_shuffled: whether the documents of the store are in random order.
        limit: bytes that the cache may hold; None for no limit.
        nodes: number of nodes, which divide the lanes among them.
    """
    lanes = -(-max(per_step, 1) // _LANES) * _LANES

    def block(count: int) -> int:
        most = [_BEST_BYTES // sequence_bytes, num_sequences // (_BLOCKS_PER_LANE * count)]
        if limit is not None:
            most.append(limit // (2 * -(-count // nodes) * sequence_bytes))
        return min(most)

    if not is_shuffled and block(_UNSHUFFLED * lanes) * sequence_bytes >= _BEST_BYTES // 4:
        lanes *= _UNSHUFFLED
    sequences = block(lanes)
    if sequences * sequence_bytes < _LEAST_BYTES or sequences < 2:
        return None
    return Advice(sequences, lanes, 2 * -(-lanes // nodes) * sequences * sequence_bytes)


def _limit(store: Store) -> int | None:
    """Bytes that the cache of a store at a URL may hold; None for a store on a disk."""
    return None if store.remote is None else mirror_room(store.remote.options, _folder(store))


def _folder(store: Store) -> Path:
    assert store.remote is not None
    return folder_of(store.remote.options.cache, store.digest, BLOCK_BYTES, stored_bytes(store))


def _is_read_as_spans(plan: Plan, name: str) -> bool:
    store = plan.stores[name]
    if store.remote is None:
        return False
    return expected_transport(store.remote.options, _folder(store), stored_bytes(store))[0] == "spans"


def stored_bytes(store: Store) -> int:
    """Size of a store's tokens and masks."""
    masks = sum(entry.num_bytes for name, entry in store.manifest.files.items() if name.startswith("mask-"))
    return masks + sum(shard.num_bytes for shard in store.manifest.shards)
