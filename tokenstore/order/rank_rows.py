"""Rows of a step for one rank (ORD-8), and checks that every rank gets the same number of microbatches."""

from tokenstore.errors import ConfigError, counted


def first_row(microbatch: int, rank: int, world_size: int, microbatch_size: int) -> int:
    """The first of the `microbatch_size` rows of a rank's microbatch, counted from the start of the step."""
    return (microbatch * world_size + rank) * microbatch_size


def divisors(value: int) -> list[int]:
    """The divisors of `value`, for messages that list possible values."""
    return [d for d in range(1, value + 1) if value % d == 0]


def check_nodes(nodes: int) -> int:
    """`nodes`, if it is a number of nodes. Raises: ConfigError: it is below 1."""
    if nodes < 1:
        raise ConfigError(f"nodes: expected 1 or more, found {nodes}; pass the number of nodes of the job")
    return nodes


def check_split(batch_size: int, rank: int, world_size: int, microbatch_size: int | None) -> int:
    """Check that all ranks get equal microbatches (P5), and return the microbatch size.

    Args:
        batch_size: sequences per step over all ranks.
        rank: data-parallel rank.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; None for all sequences that a rank has in a step.

    Raises: ValueError: `rank` is not in range(world_size). ConfigError: a size is not a divisor.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank: expected 0 <= rank < world_size, found rank {rank} of {world_size}")
    if batch_size % world_size:
        raise ConfigError(
            f"world_size: expected a divisor of the global batch of {batch_size} sequences, found {world_size};"
            f" choose one of {divisors(batch_size)}"
        )
    share = batch_size // world_size
    size = share if microbatch_size is None else microbatch_size
    if size < 1 or share % size:
        raise ConfigError(
            f"microbatch_size: expected a divisor of a rank's {share} sequences ({batch_size} over {counted(world_size, 'rank')}),"
            f" found {size}; choose one of {divisors(share)}"
        )
    return size
