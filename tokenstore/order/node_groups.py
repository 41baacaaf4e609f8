"""Node groups (ORD-21): the rows of a step, divided among groups of ranks by the lanes that the rows are read from.

A group owns a part of the lanes of each source, so that each node of a cluster reads other blocks.
"""

from collections.abc import Sequence

import numpy as np

from tokenstore.jit import kernel
from tokenstore.order.lanes import NUM_LANES, NUM_WINDOWS, SHAPE_WORDS, Lanes, owner_lane

NO_OWNER = -1
_LAST = np.iinfo(np.int64).max


@kernel
def _place_rows(rows: np.ndarray, shapes: np.ndarray, shifts: np.ndarray, groups: int, out: np.ndarray) -> None:
    """The place on the circle of each row, and the group that owns the place; -1 and NO_OWNER for a row without lane.

    Args:
        rows: int64[n, 2], source and sequence number.
        shapes: int64[sources, SHAPE_WORDS], `Lanes.shape` of each source; 0 lanes if it has none.
        shifts: int64[sources], see ORD-21.
        groups: number of groups.
        out: int64[2, n], output.
    """
    for i in range(rows.shape[0]):
        source = rows[i, 0]
        if source < 0 or shapes[source, NUM_LANES] == 0:
            out[0, i], out[1, i] = -1, NO_OWNER
        else:
            number = rows[i, 1] % shapes[source, NUM_WINDOWS]
            place = owner_lane(number + shifts[source], shapes[source])
            out[0, i], out[1, i] = place, ((place + 1) * groups - 1) // shapes[source, NUM_LANES]


class NodeGroups:
    """Groups with equally many ranks each. A group may get rows that another group owns, or none.

    Attributes:
        count: number of groups.
    """

    def __init__(self, lanes: Sequence[Lanes | None], count: int):
        """Divide lanes among groups.

        Args:
            lanes: the lanes of each source, by its number; None for one without lanes, or that the step does not use.
            count: number of groups, 1 or more.
        """
        self.count = count
        self._shapes = np.zeros((len(lanes), SHAPE_WORDS), np.int64)
        self._shifts = np.zeros(len(lanes), np.int64)
        with_lanes = [(source, each) for source, each in enumerate(lanes) if each is not None]
        for i, (source, each) in enumerate(with_lanes):
            self._shapes[source], self._shifts[source] = each.shape, i * each.count // len(with_lanes)

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """int64[n], the group that owns each row; NO_OWNER for a row that is read from no lane.

        rows: int64[n, 2], source and sequence number of each row; source -1 is a row of padding.
        """
        return self._places_and_owners(rows)[1]

    def deal(self, rows: np.ndarray) -> np.ndarray:
        """The rows of each group, as indices of `rows`, in the order in which the group uses them.

        A group gets the rows it owns, but no more than its share. What is left fills the groups that have room.

        rows: int64[n, 2], all rows of a step; n is a multiple of `count`.

        Returns: int64[count, n / count].
        """
        place, owner = self._places_and_owners(rows)
        share, last = len(rows) // self.count, self.count
        key = np.where(place < 0, _LAST, place), np.where(rows[:, 0] < 0, _LAST, rows[:, 0]), rows[:, 1]
        ordered = np.lexsort(key[::-1])
        group = np.where(owner < 0, last, owner)[ordered]
        by_group = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=last + 1)
        ends = np.minimum(counts[:-1], share) + np.cumsum(counts)[:-1] - counts[:-1]  # of what each group keeps
        kept = np.arange(len(rows)) < np.append(ends, 0)[group[by_group]]
        group[by_group[~kept]] = np.repeat(np.arange(last), np.maximum(share - counts[:-1], 0))
        dealt: np.ndarray = ordered[np.argsort(group, kind="stable")].reshape(last, share)
        return dealt

    def _places_and_owners(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((2, len(rows)), np.int64)
        _place_rows(np.ascontiguousarray(rows), self._shapes, self._shifts, self.count, found)
        return found
