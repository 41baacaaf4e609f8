"""PlanConfig: describes the data of a run, from plan.yaml or from Python. All invalid fields are reported at once."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Required, Self, TypedDict, Unpack

from tokenstore.errors import ConfigError
from tokenstore.planning.checks import (
    MOST,
    Checked,
    Mistakes,
    Take,
    decimal,
    dict_of,
    expected,
    flag,
    integer,
    is_integer,
    is_list,
    list_of,
    one_of,
    optional,
    part_of,
    proper_fraction,
    text,
)
from tokenstore.planning.contradictions import contradictions
from tokenstore.planning.locality import LocalityConfig, LocalityFields
from tokenstore.planning.plan_file import read_yaml, write_yaml
from tokenstore.planning.row_fields import BalanceConfig, BalanceFields, check_balance
from tokenstore.store.remote import is_url

MOST_LENGTH, MOST_ROWS = (
    1 << 24,
    1 << 24,
)  # tokens per sequence, sequences per step: arrays of these sizes are allocated
_COUNT, _ROWS = integer(1, MOST), integer(1, MOST_ROWS)
# Decimal, not float: a weight of 0.6 in YAML means 6/10, and shares are computed from exactly that (ORD-3).
_WEIGHT, _REPEAT = decimal("0"), decimal("0.0001", "100", places=4)
_LOSS_WEIGHT = decimal("0", "1000000", places=6)
_SKIPPED = list_of(integer(0, MOST), "[start, stop]", length=2)
_ENDS = ("first_exhausted", "all_exhausted")


def _check_pool(value: Any, place: str, mistakes: Mistakes) -> Any:
    """Names of sources, as a tuple, or their repeats by name, as a dict."""
    if isinstance(value, Mapping):
        return dict_of(_REPEAT)(value, place, mistakes)
    if is_list(value):
        return list_of(text)(value, place, mistakes)
    return mistakes.add(place, expected("a list of sources, or {name: repeats}", value))


def _check_num_steps(value: Any, place: str, mistakes: Mistakes) -> Any:
    if (is_integer(value) and 1 <= value <= MOST) or (isinstance(value, str) and value in _ENDS):
        return value
    return mistakes.add(place, expected(f"a whole number above 0, {' or '.join(_ENDS)}", value))


# The TypedDicts below type what a caller may pass; validation converts it to the types of the classes.
Number = int | float | str | Decimal


class SourceFields(TypedDict, total=False):
    """Fields of a SourceConfig, as a dictionary."""

    path: str | None
    version: int | None
    pool: Sequence[str] | Mapping[str, Number] | None
    weight: Number | None
    max_epochs: int | None
    documents: "DocumentRange | DocumentFields | None"
    take: str | tuple[int, int] | None
    fraction: Number | Fraction | None
    loss_weight: Number | None
    locality: "LocalityConfig | LocalityFields | None"


class DocumentFields(TypedDict, total=False):
    """Fields of a DocumentRange, as a dictionary."""

    min_tokens: int
    max_tokens: int | None


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


class RunFields(TypedDict, total=False):
    """Fields of a PlanConfig that have a default, without the seed."""

    packing: Literal["best_fit", "concat", "none"]
    shuffle: bool
    num_steps: int | Literal["first_exhausted", "all_exhausted"] | None
    on_exhausted: Literal["error", "drop", "stop"] | None
    temperature: Number | None
    last_batch: Literal["drop", "pad"] | None
    stages: Sequence["StageConfig | StageFields"]
    skip_steps: Sequence[tuple[int, int]]
    batch_ramp: "BatchRamp | RampFields | None"
    cross_document_targets: bool
    align: int | None
    balance: "Literal['attention'] | BalanceConfig | BalanceFields | None"


class PlanFields(RunFields, total=False):
    """Fields of a PlanConfig."""

    sequence_length: Required[int]
    global_batch_size: Required[int]
    sources: Required[Mapping[str, "SourceConfig | SourceFields"]]
    seed: int


@dataclass(frozen=True, init=False)
class DocumentRange(Checked):
    """Lengths of documents.

    Attributes:
        min_tokens: the fewest tokens of a document, with its end-of-text token.
        max_tokens: the most tokens of a document. Default: no limit.
    """

    what: ClassVar[str] = "documents"
    min_tokens: Annotated[int, _COUNT] = 1
    max_tokens: Annotated[int | None, optional(_COUNT)] = None

    def __init__(self, /, **fields: Unpack[DocumentFields]):
        super().__init__(**fields)


@dataclass(frozen=True, init=False)
class SourceConfig(Checked):
    """A source of a plan: a store, or a pool of other sources whose documents are packed together.

    Attributes:
        path: the store's directory.
        version: version of the store to use. Default: the newest version when the plan is made.
        pool: instead of a path, the names of sources that have a path, or a mapping {name: repeats}, where `repeats`
            is how often one epoch contains each document of that source.
        weight: share of the sequences, relative to the other sources. Stages can replace it.
        max_epochs: maximum number of passes over the source. Default: no limit.
        documents: use only documents of some lengths: `{min_tokens: 64, max_tokens: 4096}`, both included. This and the next
            two fields select a slice of the store. They are applied in this order, and need packing best_fit or none.
        take: `i/n`, with i from 0: of these documents, sorted by length, use every n-th, starting with number i. The
            parts 0/4, 1/4, 2/4 and 3/4 are disjoint and together complete.
        fraction: `1/16` or 0.0625: of these documents, use an evenly spaced fraction.
        loss_weight: weight of its tokens in the loss, in the batch field `loss_weights`. It does not change which tokens a
            batch contains. Default: 1.
        locality: `{block_sequences: 1024, lanes: 1024}`: reads the store in blocks of neighbouring sequences, for storage
            on which small random reads are slow or cost money. Only with packing concat. Default: sequences come from
            anywhere in the store.
    """

    what: ClassVar[str] = "source"
    path: Annotated[str | None, optional(text)] = None
    version: Annotated[int | None, optional(_COUNT)] = None
    pool: Annotated[tuple[str, ...] | dict[str, Decimal] | None, optional(_check_pool)] = None
    weight: Annotated[Decimal | None, optional(_WEIGHT)] = None
    max_epochs: Annotated[int | None, optional(_COUNT)] = None
    documents: Annotated[DocumentRange | None, optional(DocumentRange.check)] = None
    take: Annotated[Take | None, optional(part_of)] = None
    fraction: Annotated[Fraction | None, optional(proper_fraction)] = None
    loss_weight: Annotated[Decimal | None, optional(_LOSS_WEIGHT)] = None
    locality: Annotated[LocalityConfig | None, optional(LocalityConfig.check)] = None

    def __init__(self, /, **fields: Unpack[SourceFields]):
        super().__init__(**fields)

    @property
    def slice_fields(self) -> tuple[str, ...]:
        """Names of the fields that select a slice of the store, of those that are set."""
        return tuple(name for name in ("documents", "take", "fraction") if getattr(self, name) is not None)

    @property
    def slice_text(self) -> str:
        """The slice as it is written, for messages: `64 to 4,096 tokens, take 0/4, fraction 1/16`."""
        parts = []
        if (lengths := self.documents) is not None:
            most = f"to {lengths.max_tokens:,} tokens" if lengths.max_tokens else "or more tokens"
            parts.append(f"{lengths.min_tokens:,} {most}")
        return ", ".join(
            [*parts, *(f"{name} {getattr(self, name)}" for name in self.slice_fields if name != "documents")]
        )

    @property
    def repeats(self) -> dict[str, Decimal]:
        """Repeat factor of each member of a pool, by name; {} if the source is not a pool."""
        pool = self.pool or {}
        return dict(pool) if isinstance(pool, dict) else dict.fromkeys(pool, Decimal(1))


@dataclass(frozen=True, init=False)
class BatchRamp(Checked):
    """A change of the batch size over some steps.

    Attributes:
        to: sequences per step after the ramp.
        steps: steps of the ramp. It begins at the current batch size.
        multiple_of: every size is rounded down to a multiple of this number. World size times microbatch size must divide it.
    """

    what: ClassVar[str] = "batch_ramp"
    to: Annotated[int, _ROWS]
    steps: Annotated[int, _COUNT]
    multiple_of: Annotated[int, _ROWS]

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
    from_step: Annotated[int, _COUNT]
    weights: Annotated[dict[str, Decimal] | None, optional(dict_of(_WEIGHT))] = None
    global_batch_size: Annotated[int | None, optional(_ROWS)] = None
    batch_ramp: Annotated[BatchRamp | None, optional(BatchRamp.check)] = None

    def __init__(self, /, **fields: Unpack[StageFields]):
        super().__init__(**fields)


@dataclass(frozen=True, init=False)
class PlanConfig(Checked):
    """The configuration of a run's data. It is immutable, and `Plan` works on its own copy.

    A path may be the URL of a store. Other paths are relative to the working directory. In a file read by `load` they are relative to that file, and `~` is
    the home directory.

    Attributes:
        sequence_length: tokens per sequence, at most 2**24.
        global_batch_size: sequences per step over all ranks, at most 2**24.
        sources: the sources by name. The order of the run depends on the names, not on the paths. Give a weight to every
            source (here or in a stage) or to none. Without weights each source takes part in proportion to its number
            of sequences, so that all epochs end together. Weight 0 declares a source without using it.
        packing: how documents become sequences. `best_fit` packs whole documents, differently in every epoch, and cuts
            only documents longer than a sequence. `concat` cuts the concatenated documents into windows, at a different
            offset in every epoch. `none` puts one document (or one part of a long document) in each sequence; without
            shuffle the longest document comes first.
        temperature: only without weights. Each source's weight is (sequences per epoch) ** (1 / temperature). 1, the
            default, is proportional; higher values are more even.
        seed: any integer in -2**127..2**127.
        shuffle: False reads every source in its own order.
        num_steps: the number of steps, or `first_exhausted` or `all_exhausted`: one epoch, until the first or the last
            source ends. Default: endless.
        on_exhausted: what happens when a source would exceed its max_epochs: `error` (the plan is rejected), `drop`
            (the other sources continue without it) or `stop` (the plan ends). Default: `error`.
        last_batch: a last step that is not full is omitted (`drop`) or filled with empty rows (`pad`). Default: `pad`
            with packing none, otherwise `drop`.
        stages: changes of weights and batch size, in order of from_step.
        batch_ramp: `{to: 1024, steps: 500, multiple_of: 64}`: changes the batch size gradually, starting at step 0.
        skip_steps: [start, stop) ranges of steps that are not trained on.
        cross_document_targets: predict the first token of a document from the last token of the document before it.
            Only valid with packing `concat`.
        align: each piece of a document begins in its row at a multiple of this number of tokens, with padding after the
            piece before it. It must divide sequence_length. Context parallelism requires 2 x its number of ranks. Not
            valid with packing `concat`. Default: pieces follow one another.
        balance: `attention` deals the rows of a step to ranks so that the ranks of a microbatch have about equally much
            attention to compute. The content of every step is the same. `{attention: a, linear: b}` also sets what a row
            costs, as positive integers; the default is a = 1, b = 0. Default: rows are dealt in order.

    Raises:
        ConfigError: a field is unknown, missing or invalid, or two fields contradict each other. The message lists
            all invalid fields, or if there are none, all contradictions.

    Example:
        >>> PlanConfig(sequence_length=2048, global_batch_size=64, sources={"web": {"path": "stores/web"}})
    """

    what: ClassVar[str] = "plan"
    sequence_length: Annotated[int, integer(1, MOST_LENGTH)]
    global_batch_size: Annotated[int, _ROWS]
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

    def __init__(self, /, **fields: Unpack[PlanFields]):
        super().__init__(**fields)
        if wrong := contradictions(self):
            raise ConfigError("plan: " + "; ".join(wrong))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the configuration in a YAML or JSON file. Paths in it are relative to the file's directory.

        Raises:
            ConfigError: the file cannot be read, is not YAML, or its fields are invalid. The message names the file.
        """
        path = Path(path)
        fields = read_yaml(path)
        if isinstance(sources := fields.get("sources"), dict):
            fields["sources"] = {name: _moved(source, path.parent) for name, source in sources.items()}
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(f"{error} ({path})") from None

    def save(self, path: str | Path, comment: str = "") -> None:
        """Write the configuration to a YAML file that `load` reads, replacing the file atomically.

        Args:
            path: the file. Paths of stores inside its folder are written relative to it.
            comment: text of a comment in its first line.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_yaml(Path(path), self.changed_fields(), comment)

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


def _moved(source: Any, folder: Path) -> Any:
    """A source read from a file in `folder`, with its path made relative to here. Invalid sources are left unchanged."""
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return source
    if is_url(source["path"]):
        return source
    path = Path(source["path"])
    with contextlib.suppress(RuntimeError):  # `~name` of an unknown user is an ordinary path, as in a shell
        path = path.expanduser()
    return {**source, "path": str(folder / path)}
