"""Deals the rows of a step to ranks: in order (ORD-8), or by cost if the plan is balanced (ORD-19)."""

from collections.abc import Sequence

import numpy as np

from tokenstore.batches.sampler import Order, Place, Sampler
from tokenstore.order.balance import by_cost, dealt_places, rank_of_place

_KEPT = 2  # steps whose rows are kept: the current one and the next one, which is planned ahead


class Dealer:
    """Finds the rows of microbatches. Not thread-safe: it uses a sampler, which belongs to one thread."""

    def __init__(self, order: Order, sampler: Sampler):
        self._order, self._sampler = order, sampler
        self._steps: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def by_cost(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """All rows of a step in the order in which a balanced plan consumes them.

        Every rank computes this for all rows, once per step.

        Returns: their numbers in the step, int64[G]; and their sources and sequence numbers, int64[G, 2].
        """
        if step not in self._steps:
            located = self._sampler.locate(step, 0, self._order.schedule.stage(step).global_batch_size)
            numbers = by_cost(self._sampler.costs(located))
            if len(self._steps) >= _KEPT:
                del self._steps[next(iter(self._steps))]
            self._steps[step] = numbers, located[numbers]
        return self._steps[step]

    def _is_dealt(self, step: int, world_size: int, microbatch_size: int) -> bool:
        """Whether rows are dealt by cost: not without balance, and not if one rank gets the whole step at once."""
        whole = world_size == 1 and microbatch_size == self._order.schedule.stage(step).global_batch_size
        return self._order.balance is not None and not whole

    def numbers(self, place: Place, rank: int, world_size: int) -> np.ndarray:
        """int64[B], the numbers in the step of the rows of a microbatch, in the order of the batch.

        Args:
            place: (step, first row of this rank under ORD-8, number of rows, ...).
            rank: data-parallel rank.
            world_size: number of ranks.
        """
        step, first, size = place[:3]
        if not self._is_dealt(step, world_size, size):
            return np.arange(first, first + size)
        numbers, _ = self.by_cost(step)
        mine: np.ndarray = numbers[dealt_places(first - rank * size, rank, world_size, size)]
        return mine

    def locate_places(self, places: Sequence[Place], rank: int, world_size: int) -> np.ndarray:
        """int64[n, 2], source and sequence number of the rows of all places, in order. Arguments as for `numbers`."""
        parts = []
        for place in places:
            step, first, size = place[:3]
            if self._is_dealt(step, world_size, size):
                mine = dealt_places(first - rank * size, rank, world_size, size)
                parts.append(self.by_cost(step)[1][mine])
            else:
                parts.append(self._sampler.locate_places([place]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rank_of(self, step: int, row: int, world_size: int, microbatch_size: int) -> int:
        """The rank that gets row number `row` of a step."""
        if not self._is_dealt(step, world_size, microbatch_size):
            return row // microbatch_size % world_size
        (place,) = np.flatnonzero(self.by_cost(step)[0] == row)
        return rank_of_place(int(place), world_size, microbatch_size)
