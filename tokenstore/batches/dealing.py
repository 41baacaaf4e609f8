"""Deals the rows of a step to ranks: in order (ORD-8), by the owners of lanes (ORD-21), by cost (ORD-19), or by both."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenstore.batches.places import Place
from tokenstore.batches.sampler import Order, Sampler
from tokenstore.order.balance import by_cost, dealt_places, rank_of_place
from tokenstore.order.node_groups import NodeGroups

_KEPT = 2  # steps whose rows are kept: the current one and the next one, which is planned ahead


class _Layout(NamedTuple):
    """How the rows of a step are divided.

    Attributes:
        groups: number of node groups.
        ranks: ranks per group.
        is_balanced: whether a group deals its rows by cost.
    """

    groups: int
    ranks: int
    is_balanced: bool


class DealtStep(NamedTuple):
    """The rows of a step, by node group, in the order in which a group uses them.

    Attributes:
        numbers: int64[groups, n], their numbers in the step.
        rows: int64[groups, n, 2], source and sequence number of each; source -1 is a row of padding.
    """

    numbers: np.ndarray
    rows: np.ndarray


class Dealer:
    """Finds the rows of microbatches. Not thread-safe: it uses a sampler, which belongs to one thread.

    Its methods take the place of a microbatch (step, first row of the rank under ORD-8, number of rows, ...), the rank, the
    number of ranks, and the number of nodes.
    """

    def __init__(self, order: Order, sampler: Sampler):
        self._order, self._sampler = order, sampler
        self._steps: dict[tuple[int, int, bool], DealtStep] = {}
        self._layouts: dict[tuple[int, int, int, int], _Layout | None] = {}  # by first step of a stage, and sizes

    def dealt(self, step: int, groups: int = 1, is_balanced: bool = False) -> DealtStep:
        """All rows of a step. Every rank computes this, once per step.

        Args:
            step: a step.
            groups: number of node groups, as `Order.num_groups` returns it.
            is_balanced: whether each group uses its rows by falling cost. Without balance, a cost is the sum of squares.
        """
        key = step, groups, is_balanced
        if key not in self._steps:
            if len(self._steps) >= _KEPT:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = self._deal(*key)
        return self._steps[key]

    def _deal(self, step: int, groups: int, is_balanced: bool) -> DealtStep:
        located = self._sampler.locate(step, 0, self._order.schedule.stage(step).global_batch_size)
        numbers = np.arange(len(located))[np.newaxis]
        if groups > 1:
            numbers = NodeGroups(self._order.lanes_in(step), groups).deal(located)
        if is_balanced:
            costs = self._sampler.costs(located)
            numbers = np.stack([mine[by_cost(costs[mine])] for mine in numbers])
        return DealtStep(numbers, located[numbers])

    def _layout(self, step: int, size: int, world_size: int, nodes: int) -> _Layout | None:
        """The division of a step into microbatches of `size` rows; None if rows are dealt in their order."""
        stage = self._order.schedule.stage(step)
        key = stage.from_step, size, world_size, nodes
        if key not in self._layouts:
            groups = self._order.num_groups(step, world_size, nodes)
            whole = groups == world_size and size * world_size == stage.global_batch_size
            is_balanced = self._order.balance is not None and not whole
            dealt = _Layout(groups, world_size // groups, is_balanced) if groups > 1 or is_balanced else None
            self._layouts[key] = dealt
        return self._layouts[key]

    def _mine(self, place: Place, rank: int, layout: _Layout) -> tuple[int, np.ndarray]:
        """The group of a rank, and the places int64[B] of its rows of a microbatch among those of the group."""
        _, first, size = place[:3]
        group, rank_inside = divmod(rank, layout.ranks)
        start = (first - rank * size) // layout.groups
        if layout.is_balanced:
            return group, dealt_places(start, rank_inside, layout.ranks, size)
        return group, start + rank_inside * size + np.arange(size)

    def numbers(self, place: Place, rank: int, world_size: int, nodes: int = 1) -> np.ndarray:
        """int64[B], the numbers in the step of the rows of a microbatch, in the order of the batch."""
        step, first, size = place[:3]
        layout = self._layout(step, size, world_size, nodes)
        if layout is None:
            return np.arange(first, first + size)
        mine: np.ndarray = self.dealt(step, layout.groups, layout.is_balanced).numbers[self._mine(place, rank, layout)]
        return mine

    def locate_places(self, places: Sequence[Place], rank: int, world_size: int, nodes: int = 1) -> np.ndarray:
        """int64[n, 2], source and sequence number of the rows of all places, in order."""
        parts = []
        for place in places:
            step, _, size = place[:3]
            layout = self._layout(step, size, world_size, nodes)
            if layout is None:
                parts.append(self._sampler.locate_places([place]))
            else:
                mine = self._mine(place, rank, layout)
                parts.append(self.dealt(step, layout.groups, layout.is_balanced).rows[mine])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rank_of(self, step: int, row: int, world_size: int, microbatch_size: int, nodes: int = 1) -> int:
        """The rank that gets row number `row` of a step."""
        layout = self._layout(step, microbatch_size, world_size, nodes)
        if layout is None:
            return row // microbatch_size % world_size
        dealt = self.dealt(step, layout.groups, layout.is_balanced).numbers
        group, place = (int(each[0]) for each in np.nonzero(dealt == row))
        if layout.is_balanced:
            return group * layout.ranks + rank_of_place(place, layout.ranks, microbatch_size)
        return group * layout.ranks + place // microbatch_size % layout.ranks

    def rows_in_use_order(self, step: int, world_size: int, nodes: int = 1) -> np.ndarray:
        """int64[G, 2]: rows [a, b) of it are those that all ranks together use between a and b rows of the step.

        a and b are multiples of a microbatch's rows over all ranks.
        """
        groups = self._order.num_groups(step, world_size, nodes)
        rows = self.dealt(step, groups, self._order.balance is not None).rows
        return rows.transpose(1, 0, 2).reshape(-1, 2)
