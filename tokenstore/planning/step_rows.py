"""StepRows: the pure function batch = f(step, rank), and the documents of its rows."""

import operator
import threading
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from tokenstore.batches.block_readahead import local_blocks
from tokenstore.batches.dealing import Dealer
from tokenstore.batches.lane_rows import CachedBlocks, LaneRows
from tokenstore.batches.open_blocks import open_blocks
from tokenstore.batches.packings import Packings
from tokenstore.batches.places import Place
from tokenstore.batches.sampler import Order, Sampler
from tokenstore.batches.tables import Tables
from tokenstore.collector import paused_collector
from tokenstore.order.rank_rows import check_split, first_row
from tokenstore.planning.pieces import Piece, SequenceInfo, piece_of
from tokenstore.planning.timeline import Timeline


class Arrays(TypedDict):
    """The batch of a rank: two int64[sequences, sequence_length] arrays."""

    input_ids: np.ndarray
    targets: np.ndarray


class StepRows(Timeline):
    """What a plan computes about the rows of its steps. `Plan` sets the attributes, and documents them."""

    _order: Order

    def _renew(self) -> None:
        """A lock and a sampler that no other thread has used."""
        self._lock = threading.Lock()
        self._own: tuple[Sampler, Dealer] | None = None

    def _made(self) -> tuple[Sampler, Dealer]:
        """The plan's own sampler and dealer, for the thread that holds the lock. A loader has others, and never needs them."""
        if self._own is None:
            sampler = self.sampler()
            self._own = sampler, self.dealer(sampler)
        return self._own

    @property
    def _sampler(self) -> Sampler:
        return self._made()[0]

    @property
    def _dealer(self) -> Dealer:
        return self._made()[1]

    @paused_collector()
    def sampler(self) -> Sampler:
        """A new Sampler over this plan, for use by one thread."""
        tables = Tables(self.stores, self.sources, self.config.seed)
        return Sampler(self._order, tables, Packings(self.sources, self.stores, self.config.seed, self.config.shuffle))

    def dealer(self, sampler: Sampler) -> Dealer:
        """A new Dealer over this plan, which uses `sampler`."""
        return Dealer(self._order, sampler)

    def open_blocks(
        self, rank: int = 0, world_size: int = 1, nodes: int = 1
    ) -> tuple[LaneRows, dict[int, CachedBlocks]]:
        """The blocks of sources with lanes at URLs, for a loader of this rank; see `tokenstore.batches.open_blocks`."""
        return open_blocks(self._order, self.sources, self.stores, rank, world_size, nodes)

    def local_blocks(self, rank: int = 0, world_size: int = 1, nodes: int = 1) -> LaneRows:
        """What reads the blocks of sources with lanes on disks ahead, for a loader of this rank."""
        return local_blocks(self._order, self.sources, rank, world_size, nodes)

    def batch(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None, nodes: int = 1
    ) -> Arrays:
        """The batch of `rank` at `step`.

        Args:
            step: 0 <= step < num_steps, not skipped.
            rank, world_size: data-parallel rank, and number of ranks.
            microbatch_size: sequences per microbatch, as in the loader: it decides which rows of the step belong to this rank.
                The microbatches are concatenated. Default: all sequences of the rank are one microbatch.
            nodes: node groups, as in the loader. It matters only if a source has `locality`.

        Returns:
            `input_ids` and `targets`, int64[global_batch_size / world_size, sequence_length]. A target is the next token of the
            document, and -100 at the document's last token.

        Raises:
            ValueError: the plan has no such step, or the global batch cannot be divided in this way.
            CorruptionError: a store is damaged or was replaced.
        """
        with self._lock:
            rows = self._rows(step, rank, world_size, microbatch_size, nodes)
            shape = (len(rows), self.config.sequence_length)
            batch: Arrays = {"input_ids": np.empty(shape, np.int64), "targets": np.empty(shape, np.int64)}
            self._sampler.fill(rows, batch["input_ids"], batch["targets"])
            return batch

    def documents(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None, nodes: int = 1
    ) -> list[list[Piece]]:
        """The pieces of each sequence that `batch` returns for the same arguments, in the same order."""
        names = tuple(self.stores)
        with self._lock:
            rows = self._rows(step, rank, world_size, microbatch_size, nodes)
            return [[piece_of(names, span) for span in spans.tolist()] for spans in self._sampler.spans(rows)]

    def sequence(self, sequence_id: int) -> SequenceInfo:
        """Look up a sequence by its global number, as in the batch field `sequence_ids`: where it is, and its documents.

        Numbers count the rows of all steps, on all ranks: row r of step s has the number of sequences before step s, plus r. So it
        does not depend on the number of ranks. Skipped steps count, and their sequences can be looked up too.

        Args:
            sequence_id: 0 or more, below the number of sequences of the plan.

        Raises:
            IndexError: the plan has no such sequence.

        Example:
            >>> info = plan.sequence(batch["sequence_ids"][3])
            >>> info.step, [piece.document for piece in info.pieces]
        """
        number = operator.index(sequence_id)
        end = self.schedule.cursor(self.last_start)
        if not 0 <= number < end:
            raise IndexError(f"sequence: expected a number in 0..{end - 1}, found {number}")
        step = self.schedule.step_of(number)
        row = number - self.schedule.cursor(step)
        with self._lock:
            located = self._sampler.locate(step, row, 1)
            (spans,) = self._sampler.spans(located)
        source, k = located[0].tolist()
        if source < 0:
            return SequenceInfo(step, row, None, None, None, ())
        names, stores = tuple(self.num_sequences), tuple(self.stores)
        pieces = tuple(piece_of(stores, span) for span in spans.tolist())
        return SequenceInfo(step, row, names[source], k, k // self.num_sequences[names[source]], pieces)

    def rows(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None, nodes: int = 1
    ) -> np.ndarray:
        """The numbers in the step of the sequences that `batch` returns for the same arguments, in the same order.

        `find` and `SequenceDataset` use these numbers too. They do not depend on the number of ranks, the microbatch size,
        `nodes` or `balance`.

        Returns: int64[global_batch_size / world_size], numbers in 0..global_batch_size - 1.
        """
        with self._lock:
            places = self._places(step, rank, world_size, microbatch_size)
            return np.concatenate([self._dealer.numbers(place, rank, world_size, nodes) for place in places])

    def rows_of_place(self, place: Place, rank: int, world_size: int, nodes: int = 1) -> Sequence[int]:
        """The numbers of the rows of one microbatch; see `Dealer.numbers`."""
        if not self.deals_rows(nodes):
            return range(place[1], place[1] + place[2])
        with self._lock:
            return [int(number) for number in self._dealer.numbers(place, rank, world_size, nodes)]

    def deals_rows(self, nodes: int) -> bool:
        """Whether ranks of this many nodes may get rows in another order than that of their numbers."""
        return self.config.row_costs is not None or (nodes > 1 and self.has_lanes)

    @property
    def has_lanes(self) -> bool:
        """Whether a source has `locality`."""
        return bool(self._order.lanes)

    def num_groups(self, step: int, world_size: int, nodes: int) -> int:
        """Node groups among which the rows of `step` are divided (ORD-21).

        It is `nodes` if no other rule applies: 1 if `nodes` does not divide `world_size`, and 1 if no source of the step has
        `locality`.
        """
        return self._order.num_groups(step, world_size, nodes)

    def rank_of(self, step: int, row: int, world_size: int, microbatch_size: int | None = None, nodes: int = 1) -> int:
        """The rank that receives row number `row` of a step.

        Raises: ValueError: the plan has no such step or row, or the global batch cannot be divided in this way.
        """
        size = self._places(step, 0, world_size, microbatch_size)[0][2]
        if not 0 <= row < self.global_batch_size(step):
            raise ValueError(f"row: expected 0 to {self.global_batch_size(step) - 1}, found {row}")
        with self._lock:
            return self._dealer.rank_of(operator.index(step), row, world_size, size, nodes)

    def _rows(self, step: int, rank: int, world_size: int, microbatch_size: int | None, nodes: int) -> np.ndarray:
        places = self._places(step, rank, world_size, microbatch_size)
        return self._dealer.locate_places(places, rank, world_size, nodes)

    def _places(self, step: int, rank: int, world_size: int, microbatch_size: int | None) -> list[Place]:
        """(step, first row, number of rows) of each microbatch of a rank."""
        self.check_step(step)
        step = operator.index(step)
        size = self.global_batch_size(step)
        microbatch_size = check_split(size, rank, world_size, microbatch_size)
        count = size // (world_size * microbatch_size)
        return [(step, first_row(j, rank, world_size, microbatch_size), microbatch_size) for j in range(count)]
