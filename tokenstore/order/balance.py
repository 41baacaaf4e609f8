"""Balance (ORD-19): divides the rows of a step by cost, so that ranks which wait for each other have equal work."""

import numpy as np


def by_cost(costs: np.ndarray) -> np.ndarray:
    """int64[G], the rows of a step by falling cost; rows of equal cost keep their order. costs: int64[G]."""
    return np.argsort(-costs, kind="stable")


def dealt_places(start: int, rank: int, world_size: int, microbatch_size: int) -> np.ndarray:
    """The places, among the rows by cost, that a rank gets of one microbatch.

    Args:
        start: the first place of the microbatch, over all ranks.
        rank: data-parallel rank.
        world_size: number of ranks.
        microbatch_size: rows of the microbatch on each rank.

    Returns: int64[microbatch_size].
    """
    rows = np.arange(microbatch_size)
    forward = (rows + start // (world_size * microbatch_size)) % 2 == 0
    return start + rows * world_size + np.where(forward, rank, world_size - 1 - rank)


def rank_of_place(place: int, world_size: int, microbatch_size: int) -> int:
    """The rank that gets a place, if the microbatches of the step have this size from its start."""
    microbatch, u = divmod(place, world_size * microbatch_size)
    row, w = divmod(u, world_size)
    return w if (row + microbatch) % 2 == 0 else world_size - 1 - w
