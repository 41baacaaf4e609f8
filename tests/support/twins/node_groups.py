"""ORD-21 in plain Python: lists of rows that groups keep, and a line of the others from which they take what they lack."""

from tests.support.twins import lanes as lanes_twin
from tests.support.twins import order as order_twin

Row = tuple[str | None, int]  # the source and its sequence number k; None is a row without pieces
Shape = tuple[int, int, int]  # N, s and W of a source with a locality


def place_of(row: Row, shapes: dict[str, Shape]) -> int | None:
    """The place z of a row on the circle of its source; None if it has none."""
    source, k = row
    if source not in shapes:
        return None
    num_windows, block, lanes = shapes[source]
    circle, m = min(lanes, -(-num_windows // block)), sorted(shapes).index(source)
    return lanes_twin.owner(k % num_windows + m * circle // len(shapes), num_windows, block, lanes)


def owner_of(row: Row, shapes: dict[str, Shape], groups: int) -> int | None:
    """The group that a row belongs to."""
    place = place_of(row, shapes)
    if place is None:
        return None
    num_windows, block, lanes = shapes[row[0]]
    circle = min(lanes, -(-num_windows // block))
    return next(g for g in range(groups) if g * circle // groups <= place < (g + 1) * circle // groups)


def deal(rows: list[Row], shapes: dict[str, Shape], groups: int) -> list[list[int]]:
    """T(g, ...): the rows p of each group.

    shapes: of the sources with a locality and a share in the stage.
    """

    def in_order(p: int) -> tuple:
        source, k = rows[p]
        place = place_of(rows[p], shapes)
        if place is not None:
            return 0, place, source, k
        return (1, 0, source, k) if source is not None else (2, 0, "", p)

    everything, quota = sorted(range(len(rows)), key=in_order), len(rows) // groups
    dealt, line = [], []
    for g in range(groups):
        own = [p for p in everything if owner_of(rows[p], shapes, groups) == g]
        dealt.append(own[:quota])
        line += own[quota:]
    line += [p for p in everything if owner_of(rows[p], shapes, groups) is None]
    for mine in dealt:
        while len(mine) < quota:
            mine.append(line.pop(0))
        mine.sort(key=in_order)
    return dealt


def rows_of_rank(
    dealt: list[list[int]], start: int, rank: int, world_size: int, size: int, costs: list[int] | None = None
) -> list[int]:
    """The rows of a microbatch that begins after `start` rows of the step over all ranks. costs: of all rows, with `balance`."""
    ranks = world_size // len(dealt)
    rows, inside, first = dealt[rank // ranks], rank % ranks, start // len(dealt)
    if costs is None or (ranks == 1 and size == len(rows)):
        return rows[first + inside * size : first + (inside + 1) * size]
    places = order_twin.dealt_rows([costs[p] for p in rows], first, inside, ranks, size)
    return [rows[place] for place in places]
