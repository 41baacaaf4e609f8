"""The sources of a plan that read their store in blocks (ORD-20)."""

from dataclasses import dataclass

from tokenstore.batches.sources import Source
from tokenstore.order.lanes import Lanes
from tokenstore.planning import Plan


@dataclass(frozen=True)
class LocalityRow:
    """A source with a locality, in some steps of a plan.

    Attributes:
        source: its name in the plan.
        block_sequences: sequences per block; at most those of an epoch.
        block_bytes: bytes of the tokens of a block.
        num_blocks: blocks per epoch.
        lanes: blocks in use at a time; at most `num_blocks`.
        sequences_per_step: its sequences in a step, rounded up; the most of all stages in these steps.
    """

    source: str
    block_sequences: int
    block_bytes: int
    num_blocks: int
    lanes: int
    sequences_per_step: int


def localities_of(plan: Plan, steps: int) -> tuple[LocalityRow, ...]:
    """A row per source with a locality, by name, for steps [0, steps)."""
    return tuple(_row(plan, source, source.lanes, steps) for source in plan.sources if source.lanes is not None)


def _row(plan: Plan, source: Source, lanes: Lanes, steps: int) -> LocalityRow:
    sequence_bytes = plan.config.sequence_length * source.members[0].store.dtype.itemsize
    per_step = [
        -(-stage.global_batch_size * stage.shares.get(source.name, 0) // sum(stage.shares.values()))
        for stage in plan.schedule.stages
        if stage.from_step < steps
    ]
    return LocalityRow(
        source=source.name,
        block_sequences=lanes.block,
        block_bytes=lanes.block * sequence_bytes,
        num_blocks=lanes.num_blocks,
        lanes=lanes.count,
        sequences_per_step=max(per_step),
    )
