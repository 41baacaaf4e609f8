"""Rows of a step for one rank (ORD-8), and the checks that let every rank have the same number of batches."""

from tokenstore.errors import ConfigError


def first_row(microbatch: int, rank: int, world_size: int, microbatch_size: int) -> int:
    """First row, inside the step, of a rank's microbatch; it has `microbatch_size` rows."""
    return (microbatch * world_size + rank) * microbatch_size


def divisors(value: int) -> list[int]:
    """The divisors of `value`, for messages that list valid sizes."""
    return [d for d in range(1, value + 1) if value % d == 0]


def check_split(batch_size: int, rank: int, world_size: int, microbatch_size: int | None) -> int:
    """The microbatch size (if None, the whole share of a rank), after checking that all ranks get equal microbatches
    (P5).
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank: expected 0 <= rank < world_size, found rank {rank} of {world_size}")
    if batch_size % world_size:
        raise ConfigError(
            f"world_size: expected a divisor of the global batch of {batch_size} sequences, found {world_size};"
            f" these would do: {divisors(batch_size)}"
        )
    share = batch_size // world_size
    size = share if microbatch_size is None else microbatch_size
    if size < 1 or share % size:
        raise ConfigError(
            f"microbatch_size: expected a divisor of a rank's {share} sequences ({batch_size} over {world_size} ranks),"
            f" found {size}; these would do: {divisors(share)}"
        )
    return size
