"""StageConfig and BatchRamp: the fields of changes of the mixture and of the batch size."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, ClassVar, Required, TypedDict, Unpack

from tokenstore.planning.checks import COUNT, Checked, dict_of, integer, optional
from tokenstore.planning.source_config import WEIGHT, Number

MOST_ROWS = 1 << 24  # sequences per step: arrays of this size are allocated
ROWS = integer(1, MOST_ROWS)


class RampFields(TypedDict):
    """Fields of a BatchRamp, as a dictionary."""

    to: int
    steps: int
    multiple_of: int


class StageFields(TypedDict, total=False):
    """Fields of a StageConfig, as a dictionary."""

    from_step: Required[int]
    weights: Mapping[str, Number] | None
    global_batch_size: int | None
    batch_ramp: "BatchRamp | RampFields | None"


@dataclass(frozen=True, init=False)
class BatchRamp(Checked):
    """A change of the batch size over some steps.

    Attributes:
        to: sequences per step after the ramp.
        steps: steps of the ramp. It begins at the current batch size.
        multiple_of: every size is rounded down to a multiple of this number. World size times microbatch size must divide it.
    """

    what: ClassVar[str] = "batch_ramp"
    to: Annotated[int, ROWS]
    steps: Annotated[int, COUNT]
    multiple_of: Annotated[int, ROWS]

    def __init__(self, /, **fields: Unpack[RampFields]):
        super().__init__(**fields)


@dataclass(frozen=True, init=False)
class StageConfig(Checked):
    """A change of the mixture, the batch size, or both, from step `from_step` on.

    Attributes:
        from_step: first step of the stage.
        weights: weights that replace all earlier ones; the interleave of the sources starts again. Default: the
            current mixture continues.
        global_batch_size: sequences per step. Default: unchanged, so that a batch ramp continues.
        batch_ramp: `{to: 1024, steps: 500, multiple_of: 64}`: changes the batch size gradually, starting at this stage.
    """

    what: ClassVar[str] = "stage"
    from_step: Annotated[int, COUNT]
    weights: Annotated[dict[str, Decimal] | None, optional(dict_of(WEIGHT))] = None
    global_batch_size: Annotated[int | None, optional(ROWS)] = None
    batch_ramp: Annotated[BatchRamp | None, optional(BatchRamp.check)] = None

    def __init__(self, /, **fields: Unpack[StageFields]):
        super().__init__(**fields)
