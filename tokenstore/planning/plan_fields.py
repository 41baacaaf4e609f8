"""PlanValues: the fields of a plan, each valid by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Required, TypedDict

from tokenstore.planning.checks import (
    MOST,
    Checked,
    Mistakes,
    decimal,
    dict_of,
    expected,
    flag,
    integer,
    is_integer,
    list_of,
    one_of,
    optional,
)
from tokenstore.planning.row_fields import BalanceConfig, BalanceFields, check_balance
from tokenstore.planning.source_config import Number, SourceConfig, SourceFields
from tokenstore.planning.stage_config import ROWS, BatchRamp, RampFields, StageConfig, StageFields

MOST_LENGTH = 1 << 24  # tokens per sequence: arrays of this size are allocated
_SKIPPED = list_of(integer(0, MOST), "[start, stop]", length=2)
_ENDS = ("first_exhausted", "all_exhausted")


def _check_num_steps(value: Any, place: str, mistakes: Mistakes) -> Any:
    if (is_integer(value) and 1 <= value <= MOST) or (isinstance(value, str) and value in _ENDS):
        return value
    return mistakes.add(place, expected(f"a whole number above 0, {' or '.join(_ENDS)}", value))


class RunFields(TypedDict, total=False):
    """Fields of a PlanConfig that have a default, without the seed."""

    packing: Literal["best_fit", "concat", "none"]
    shuffle: bool
    num_steps: int | Literal["first_exhausted", "all_exhausted"] | None
    on_exhausted: Literal["error", "drop", "stop"] | None
    temperature: Number | None
    last_batch: Literal["drop", "pad"] | None
    stages: Sequence[StageConfig | StageFields]
    skip_steps: Sequence[tuple[int, int]]
    batch_ramp: BatchRamp | RampFields | None
    cross_document_targets: bool
    align: int | None
    balance: Literal["attention"] | BalanceConfig | BalanceFields | None


class PlanFields(RunFields, total=False):
    """Fields of a PlanConfig."""

    sequence_length: Required[int]
    global_batch_size: Required[int]
    sources: Required[Mapping[str, SourceConfig | SourceFields]]
    seed: int


@dataclass(frozen=True, init=False)
class PlanValues(Checked):
    """The fields of a PlanConfig, which documents them, and what follows from them."""

    what: ClassVar[str] = "plan"
    sequence_length: Annotated[int, integer(1, MOST_LENGTH)]
    global_batch_size: Annotated[int, ROWS]
    sources: Annotated[dict[str, SourceConfig], dict_of(SourceConfig.check, at_least_one=True)]
    packing: Annotated[Literal["best_fit", "concat", "none"], one_of("best_fit", "concat", "none")] = "best_fit"
    seed: Annotated[int, integer(-(1 << 127), 1 << 127)] = 0
    shuffle: Annotated[bool, flag] = True
    num_steps: Annotated[int | Literal["first_exhausted", "all_exhausted"] | None, optional(_check_num_steps)] = None
    on_exhausted: Annotated[Literal["error", "drop", "stop"] | None, optional(one_of("error", "drop", "stop"))] = None
    temperature: Annotated[Decimal | None, optional(decimal("1", "100", places=2))] = None
    last_batch: Annotated[Literal["drop", "pad"] | None, optional(one_of("drop", "pad"))] = None
    stages: Annotated[tuple[StageConfig, ...], list_of(StageConfig.check)] = ()
    batch_ramp: Annotated[BatchRamp | None, optional(BatchRamp.check)] = None
    skip_steps: Annotated[tuple[tuple[int, int], ...], list_of(_SKIPPED)] = ()
    cross_document_targets: Annotated[bool, flag] = False
    align: Annotated[int | None, optional(integer(1, MOST_LENGTH))] = None
    balance: Annotated[Literal["attention"] | BalanceConfig | None, optional(check_balance)] = None

    @property
    def drawn_sources(self) -> tuple[str, ...]:
        """Names of the sources that sequences are drawn from: all sources that are not members of a pool."""
        pooled = {name for source in self.sources.values() for name in source.repeats}
        return tuple(name for name in self.sources if name not in pooled)

    @property
    def pads_last_batch(self) -> bool:
        """Whether a last step that is not full is filled with empty rows."""
        return (self.last_batch or ("pad" if self.packing == "none" else "drop")) == "pad"

    @property
    def row_costs(self) -> tuple[int, int] | None:
        """The integers (a, b) of ORD-19; None if the plan is not balanced."""
        chosen = BalanceConfig() if self.balance == "attention" else self.balance
        return None if chosen is None else (chosen.attention, chosen.linear)
