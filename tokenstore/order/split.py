"""Rows of a step for one rank (ORD-8), and the checks that let every rank have the same number of batches."""


def first_row(microbatch: int, rank: int, world_size: int, microbatch_size: int) -> int:
    """First row, inside the step, of a rank's microbatch; it has `microbatch_size` rows."""
    return (microbatch * world_size + rank) * microbatch_size


def divisors_below(value: int, limit: int) -> list[int]:
    """The divisors of `value` up to `limit`, for messages that list what would do."""
    return [d for d in range(1, min(value, limit) + 1) if value % d == 0]
