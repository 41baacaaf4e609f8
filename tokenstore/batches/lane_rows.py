"""Reads the blocks of lanes (ORD-20) for one sampler: which blocks have a place at a step, and the block of a row.

A source with W lanes has W blocks in use at any time, those of a group of nodes W / R. A cache has room for twice as many: one
that a lane reads, and the one that comes next. When a step begins, the blocks whose last sequence was in an earlier step leave,
and the next ones come. Nothing is guessed: both follow from the plan.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tokenstore.batches.lane_ranges import LaneRanges
from tokenstore.batches.sources import Source
from tokenstore.order.keys import base_key
from tokenstore.order.lane_blocks import LaneBlocks, Slots, Visit
from tokenstore.order.schedule import Schedule
from tokenstore.store.block_ranges import Block
from tokenstore.store.remote.block_cache import BlockCache

# A block is fetched for at least this share of its sequences; fewer are fetched one by one. That costs about 2 / SHARE^2 of its
# sequences as requests wherever a stretch cuts a block, and saves a quarter of its bytes
SHARE = 8
Stretches = Callable[[int], Mapping[str, Sequence[int]]]  # step -> stretches of each source that this process reads


class Sink(Protocol):
    """What brings blocks nearer: a cache, or readahead from a disk."""

    def drop(self, start: int, stop: int | None, blocks: Sequence[Block]) -> None:
        """Forget blocks; sequences in [start, stop) may need others."""

    def bring(self, block: Block) -> None:
        """Bring a block."""


class Move(NamedTuple):
    """A block that gets a place: the number of the first sequence that needs it, and the block."""

    number: int
    block: Block


class SourceBlocks:
    """The blocks of one source.

    Attributes:
        name: of the source.
    """

    def __init__(self, source: Source, seed: int, ranges: LaneRanges, sink: Sink, most_blocks: int | None = None):
        """most_blocks: room of the sink. Default: two per stretch."""
        if source.lanes is None:
            raise ValueError(f"source {source.name}: expected lanes, found none")
        self.name, self._ranges, self.sink, self._most_blocks = source.name, ranges, sink, most_blocks
        self._blocks = LaneBlocks(source.lanes, base_key(seed, "block", source.name))
        self._step = source.lanes.count
        self._slots = Slots(iter(()), 0)
        self._known: dict[int, Block] = {}  # by the first sequence of the visit
        self.room = 0

    def start(self, stretches: Sequence[int], number: int, stop: int | None) -> list[Move]:
        """Read some stretches from a sequence on. Blocks that have a place and are still needed keep it."""
        visits = (
            visit for visit in self._blocks.visits(stretches, number, stop) if self._is_worth(visit, number, stop)
        )
        self.room = 2 * len(stretches) if self._most_blocks is None else self._most_blocks
        self._slots, before = Slots(visits, self.room), self._known
        self._known = {}
        _, added = self._slots.move_to(number)
        moves = self._moves(added, number)
        self.sink.drop(
            number, self._slots.horizon, [block for first, block in before.items() if first not in self._known]
        )
        return [move for move in moves if move.block.key[0] not in before]

    def move_to(self, number: int) -> list[Move]:
        """Every sequence before `number` was requested."""
        over, added = self._slots.move_to(number)
        self.sink.drop(number, self._slots.horizon, [self._known.pop(visit.first) for visit in over])
        return self._moves(added, number)

    def _moves(self, added: Iterable[Visit], number: int) -> list[Move]:
        moves = []
        for visit in added:
            block = self._known[visit.first] = Block((visit.first, visit.last), self._ranges.of(visit))
            moves.append(Move(self._first_of(visit, number), block))
        return moves

    def _first_of(self, visit: Visit, start: int) -> int:
        """The first sequence of a visit from `start` on."""
        return visit.first + max(-((visit.first - start) // self._step), 0) * self._step

    def _is_worth(self, visit: Visit, start: int, stop: int | None) -> bool:
        """Whether enough sequences of a visit are in [start, stop) to fetch the whole block."""
        last = visit.last if stop is None else min(visit.last, stop - 1)
        count = (last - self._first_of(visit, start)) // self._step + 1
        return count * SHARE >= visit.size

    @property
    def blocks(self) -> list[Block]:
        """The blocks that have a place."""
        return list(self._known.values())

    def block_of(self, number: int) -> Block | None:
        """The block of a sequence, if it has a place."""
        return self._known.get(self._blocks.visit_of(number).first) if self._known else None


class LaneRows:
    """The blocks of all sources with lanes, as a loader moves through the steps."""

    def __init__(self, schedule: Schedule, sources: Sequence[SourceBlocks], stretches: Stretches):
        """stretches: for a step, the stretches of each source that this process reads."""
        self._schedule, self._sources, self._stretches_of = schedule, sources, stretches
        self._step = -1
        self._stretches: dict[str, Sequence[int]] = {}
        end = None if schedule.num_steps is None else schedule.counts(schedule.cursor(schedule.num_steps))
        self._stops = {source.name: None if end is None else end.get(source.name, 0) for source in sources}

    def move_to(self, step: int | None) -> None:
        """All rows of the steps before `step` were requested, and its rows will be next. None: no more rows will be."""
        if step is None:
            self._step = -1
            for source in self._sources:
                source.start((), 0, 0)
            return
        if step == self._step:
            return
        stretches = self._stretches_of(step)
        is_next, counts = step > self._step >= 0, self._schedule.counts(self._schedule.cursor(step))
        coming = []
        for source in self._sources:
            name, number = source.name, counts.get(source.name, 0)
            if is_next and stretches[name] == self._stretches.get(name):
                moves = source.move_to(number)
            else:
                moves = source.start(stretches[name], number, self._stops[name])
            coming += [(self._schedule.find(name, move.number) or 0, source, move.block) for move in moves]
        self._step, self._stretches = step, dict(stretches)
        for _, source, block in sorted(coming, key=lambda each: each[0]):  # as the run needs them
            source.sink.bring(block)


class CachedBlocks(SourceBlocks):
    """The blocks of a source at a URL."""

    sink: BlockCache

    def __init__(self, source: Source, seed: int, ranges: LaneRanges, cache: BlockCache, num_ranks: int = 1):
        """num_ranks: how many processes read these blocks, about."""
        super().__init__(source, seed, ranges, cache)
        self._num_exact, self._warm, self._num_ranks = 0, 0, num_ranks
        self._is_clean = False
        weakref.finalize(self, cache.close)

    def start(self, stretches: Sequence[int], number: int, stop: int | None) -> list[Move]:
        """As in SourceBlocks. At first a row per stretch may be fetched by itself, because its block is on its way."""
        moves = super().start(stretches, number, stop)
        self._num_exact, self._warm = len(stretches) // self._num_ranks, number + self._step
        if not self._is_clean:
            self.sink.clean(self.blocks)
            self._is_clean = True
        return moves

    def move_to(self, number: int) -> list[Move]:
        """As in SourceBlocks. After one turn of all lanes, rows wait for their blocks."""
        if number >= self._warm:
            self._num_exact = 0
        return super().move_to(number)

    def block_to_read(self, number: int) -> Block | None:
        """The block from which to read a sequence; None if its row is to be fetched by itself."""
        block = self.block_of(number) if number >= 0 and self.sink.is_usable else None
        if block is not None and self._num_exact > 0 and not self.sink.is_present(block):
            self._num_exact -= 1
            return None
        return block
