"""The field `locality` of a source: an order that reads a few blocks of neighbouring sequences at a time (ORD-20)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict, Unpack

from tokenstore.order.lanes import MOST_LANES
from tokenstore.planning.checks import MOST, Checked, integer


class LocalityFields(TypedDict):
    """Fields of a LocalityConfig, as a dictionary."""

    block_sequences: int
    lanes: int


@dataclass(frozen=True, init=False)
class LocalityConfig(Checked):
    """How a source is read in blocks. Only for packing `concat` with shuffle.

    Its sequences are neighbouring windows of the store in blocks of `block_sequences`. At any time the source has one
    block per lane in use, and successive sequences come from different lanes. Both numbers are part of the order, and
    fixed for the run.

    Attributes:
        block_sequences: sequences per block. A block is read from storage as a whole, so make it 1 to 4 MB.
        lanes: blocks in use at a time, at most 2**24. At least the sequences of this source in a step, so that they come
            from different blocks; 4 times that, if the store's documents are not shuffled.
    """

    what: ClassVar[str] = "locality"
    block_sequences: Annotated[int, integer(1, MOST)]
    lanes: Annotated[int, integer(1, MOST_LANES)]

    def __init__(self, /, **fields: Unpack[LocalityFields]):
        super().__init__(**fields)

    def __str__(self) -> str:
        blocks = "1 sequence" if self.block_sequences == 1 else f"{self.block_sequences:,} sequences"
        return f"blocks of {blocks}, {self.lanes:,} lane{'s' * (self.lanes > 1)}"
