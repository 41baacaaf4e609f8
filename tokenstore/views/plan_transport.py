"""What a plan over stores at URLs costs: how tokens travel, requests, bytes, cache, and the price of the requests."""

from dataclasses import dataclass

from tokenstore.batches.lane_ranges import LaneRanges
from tokenstore.batches.open_blocks import cache_bytes
from tokenstore.batches.sources import Source, SourceMember
from tokenstore.planning import Plan
from tokenstore.store.remote.block_cache import PART_BYTES
from tokenstore.store.remote.mirrors import BLOCK_BYTES, expected_transport, folder_of, mirror_room
from tokenstore.views.plan_locality import stored_bytes

REQUEST_PRICE = (
    0.0004  # US dollars per 1,000 GET requests: Amazon S3 Standard and Google Cloud Storage Standard in 2026
)


@dataclass(frozen=True)
class TransportRow:
    """A store at a URL in some steps of a plan.

    Attributes:
        source: the source, or the member of a pool, that the store belongs to.
        url: of the store.
        transport: "spans", "mirror" or "blocks".
        why_no_mirror: why the store is not mirrored; empty if it is, or if spans were chosen.
        requests: requests for tokens and masks, about.
        num_bytes: bytes that they fetch, about.
        index_bytes: size of the index files that the plan needs. They are fetched once per machine.
        cache_bytes: disk that the cache needs for index files and mirror.
    """

    source: str
    url: str
    transport: str
    why_no_mirror: str
    requests: int
    num_bytes: int
    index_bytes: int
    cache_bytes: int


@dataclass(frozen=True)
class Transport:
    """The stores at URLs in some steps of a plan, and their totals over all machines that read with `spans`.

    A mirror is filled once per machine, so its requests and bytes are those of one machine.

    Attributes:
        rows: one per store.
        problem: why the mirrors do not all fit into the cache; empty if they do.
        tokens: tokens of these steps, including those of stores on disks.
        requests, num_bytes, cache_bytes: totals.
        request_price: US dollars per 1,000 requests.
        price: US dollars for all requests of these steps.
        tokens_per_second: speed of the whole run; None if it was not given.
        requests_per_second, bytes_per_second, price_per_hour: at that speed, otherwise None.
    """

    rows: tuple[TransportRow, ...]
    problem: str
    tokens: int
    requests: int
    num_bytes: int
    cache_bytes: int
    request_price: float
    price: float
    tokens_per_second: float | None
    requests_per_second: float | None
    bytes_per_second: float | None
    price_per_hour: float | None


def transport_of(
    plan: Plan,
    steps: int,
    tokens_per_second: float | None = None,
    request_price: float = REQUEST_PRICE,
    nodes: int = 1,
) -> Transport | None:
    """How tokens travel in steps [0, steps) of a plan, and what that costs; None if no store is at a URL.

    Nothing is fetched, and the cache is not changed. The number of requests follows from the average number of pieces per sequence;
    a range that continues in the next shard is a further request, which is not counted.

    Args:
        plan: a plan.
        steps: steps of the plan.
        tokens_per_second: of the whole run.
        request_price: US dollars per 1,000 requests.
        nodes: number of nodes, which divide the lanes of sources with `locality` among them.
    """
    progress = plan.progress(steps)
    rows = tuple(
        _row(plan, source, member, progress[source.name].sequences, nodes)
        for source in plan.sources
        for member in source.members
        if member.store.url is not None
    )
    if not rows:
        return None
    tokens, requests = sum(row.tokens for row in progress.values()), sum(row.requests for row in rows)
    num_bytes, price = sum(row.num_bytes for row in rows), requests * request_price / 1000
    speed = None if tokens_per_second is None or not tokens else tokens_per_second / tokens
    return Transport(
        rows=rows,
        problem=_problem(plan, rows),
        tokens=tokens,
        requests=requests,
        num_bytes=num_bytes,
        cache_bytes=sum(row.cache_bytes for row in rows),
        request_price=request_price,
        price=price,
        tokens_per_second=tokens_per_second,
        requests_per_second=None if speed is None else requests * speed,
        bytes_per_second=None if speed is None else num_bytes * speed,
        price_per_hour=None if speed is None else price * speed * 3600,
    )


def _row(plan: Plan, source: Source, member: SourceMember, sequences: int, nodes: int) -> TransportRow:
    store = member.store
    assert store.remote is not None
    options = store.remote.options
    masks = any(name.startswith("mask-") for name in store.manifest.files)
    stored, kept = stored_bytes(store), 0
    folder = folder_of(options.cache, store.digest, BLOCK_BYTES, stored)
    ranges_of_lanes = LaneRanges(source, plan.config.seed, plan.config.sequence_length) if source.lanes else None
    needed = cache_bytes(source.lanes.count, nodes, ranges_of_lanes) if source.lanes and ranges_of_lanes else 0
    transport, why = expected_transport(options, folder, stored, needed)
    share = float(member.num_tokens * member.repeat / source.num_tokens)
    pieces = 1.0 if source.length_classes is None else source.length_classes.num_pieces / source.num_sequences
    ranges = share * sequences * pieces * (2 if masks else 1)
    tokens = share * sequences * float(source.num_tokens) / source.num_sequences
    num_bytes = tokens * (store.dtype.itemsize + (0.125 if masks else 0))
    if source.length_classes is None:
        num_bytes += share * sequences * store.dtype.itemsize  # the target of a window's last token
    if transport == "mirror":
        blocks = -(-stored // BLOCK_BYTES)
        touched = 1 - (1 - 1 / blocks) ** ranges if plan.config.shuffle else min(num_bytes / stored, 1)
        ranges, num_bytes = blocks * touched, stored * touched
        kept = stored
    elif transport == "blocks" and source.lanes is not None and ranges_of_lanes is not None:
        visits = share * sequences / source.lanes.block * (1 + source.lanes.count / source.lanes.num_blocks)
        parts = -(-ranges_of_lanes.most_bytes // PART_BYTES) + masks
        ranges, num_bytes, kept = visits * parts, visits * ranges_of_lanes.most_bytes, needed
    index = _index_bytes(plan, member)
    return TransportRow(member.name, store.place, transport, why, round(ranges), round(num_bytes), index, index + kept)


def _problem(plan: Plan, rows: tuple[TransportRow, ...]) -> str:
    """Why the mirrors do not all fit into the cache, and what happens then; empty if they do."""
    names = {row.source for row in rows if row.transport == "mirror"}
    members = [member for source in plan.sources for member in source.members if member.name in names]
    stores = {member.store.digest: member.store for member in members if member.store.remote is not None}
    needed = sum(stored_bytes(store) for store in stores.values())
    for store in stores.values():
        assert store.remote is not None
        options = store.remote.options
        room = mirror_room(options, folder_of(options.cache, store.digest, BLOCK_BYTES, stored_bytes(store)))
        if needed > room:
            refused = options.transport == "mirror"
            end = "the run will be refused" if refused else "stores that do not fit will be read as spans"
            return f"the mirrors take {needed:,} bytes, and the cache may hold {room:,}: {end}; raise the cache limit"
    return ""


def _index_bytes(plan: Plan, member: SourceMember) -> int:
    """Size of the files that a loader needs besides tokens and masks."""
    store = member.store
    names = ["boundaries.bin"]
    names += ["length_index.bin"] if plan.config.packing != "concat" else []
    names += ["block_checksums.bin"] if store.has_block_checksums else []
    return sum(store.entry(name).num_bytes for name in names)
