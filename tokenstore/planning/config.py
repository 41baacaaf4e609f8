"""PlanConfig: describes the data of a run, from plan.yaml or from Python. All invalid fields are reported at once."""

import contextlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Required, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tokenstore.errors import ConfigError
from tokenstore.planning.plan_file import explain, read_yaml

MOST = 1 << 48  # upper limit of every count; ORD-10 limits their products, checked when the schedule is computed
# Decimal, not float: a weight of 0.6 in YAML means 6/10, and shares are computed from exactly that (ORD-3).
MOST_DIGITS = 100  # digits of a weight: exact arithmetic on a number of 500,000 digits would take seconds
Weight = Annotated[Decimal, Field(ge=0, allow_inf_nan=False, max_digits=MOST_DIGITS)]
Repeat = Annotated[Decimal, Field(ge=Decimal("0.0001"), le=100, decimal_places=4)]
Temperature = Annotated[Decimal, Field(ge=1, le=100, decimal_places=2)]
MOST_LENGTH, MOST_ROWS = (
    1 << 24,
    1 << 24,
)  # tokens per sequence, sequences per step: arrays of these sizes are allocated
Seed = Annotated[int, Field(ge=-(1 << 127), le=1 << 127, strict=True)]
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS, strict=True)]
Step = Annotated[int, Field(ge=0, le=MOST, strict=True)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# The TypedDicts below type what a caller may pass; validation turns it into the models' own types.
Number = int | float | str | Decimal


class SourceFields(TypedDict, total=False):
    """Fields of a SourceConfig, as a dictionary."""

    path: str | None
    version: int | None
    pool: Sequence[str] | Mapping[str, Number] | None
    weight: Number | None
    max_epochs: int | None


class StageFields(TypedDict, total=False):
    """Fields of a StageConfig, as a dictionary."""

    from_step: Required[int]
    weights: Mapping[str, Number] | None
    global_batch_size: int | None


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
    cross_document_targets: bool


class PlanFields(RunFields, total=False):
    """Fields of a PlanConfig."""

    sequence_length: Required[int]
    global_batch_size: Required[int]
    sources: Required[Mapping[str, "SourceConfig | SourceFields"]]
    seed: int


class SourceConfig(_Frozen):
    """A source of a plan: a store, or a pool of other sources whose documents are packed together.

    Attributes:
        path: the store's directory.
        version: version of the store to use. Default: the newest version when the plan is made.
        pool: instead of a path, the names of sources that have a path, or a mapping {name: repeats}, where `repeats`
            is how often one epoch contains each document of that source.
        weight: share of the sequences, relative to the other sources. Stages can replace it.
        max_epochs: maximum number of passes over the source. Default: no limit.
    """

    path: str | None = None
    version: Count | None = None
    pool: tuple[str, ...] | dict[str, Repeat] | None = None
    weight: Weight | None = None
    max_epochs: Count | None = None

    @property
    def repeats(self) -> dict[str, Decimal]:
        """Repeat factor of each member of a pool, by name; {} if the source is not a pool."""
        pool = self.pool or {}
        return dict(pool) if isinstance(pool, dict) else dict.fromkeys(pool, Decimal(1))


class StageConfig(_Frozen):
    """A change of the mixture, the batch size, or both, from step `from_step` on.

    Attributes:
        from_step: first step of the stage.
        weights: weights that replace all earlier ones; the interleave of the sources starts again. Default: the
            current mixture continues.
        global_batch_size: sequences per step. Default: unchanged.
    """

    from_step: Count
    weights: dict[str, Weight] | None = None
    global_batch_size: Rows | None = None


class PlanConfig(_Frozen):
    """The configuration of a run's data. It is immutable, and `Plan` works on its own copy.

    Paths are relative to the working directory. In a file read by `load` they are relative to that file, and `~` is
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
        skip_steps: [start, stop) ranges of steps that are not trained on.
        cross_document_targets: predict the first token of a document from the last token of the document before it.
            Only valid with packing `concat`.

    Raises:
        ConfigError: a field is unknown, missing or invalid, or two fields contradict each other. The message lists
            all invalid fields, or if there are none, all contradictions.

    Example:
        >>> PlanConfig(sequence_length=2048, global_batch_size=64, sources={"web": {"path": "stores/web"}})
    """

    sequence_length: Annotated[int, Field(ge=1, le=MOST_LENGTH, strict=True)]
    global_batch_size: Rows
    sources: Annotated[dict[str, SourceConfig], Field(min_length=1)]
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    seed: Seed = 0
    shuffle: bool = True
    num_steps: Count | Literal["first_exhausted", "all_exhausted"] | None = None
    on_exhausted: Literal["error", "drop", "stop"] | None = None
    temperature: Temperature | None = None
    last_batch: Literal["drop", "pad"] | None = None
    stages: tuple[StageConfig, ...] = ()
    skip_steps: tuple[tuple[Step, Step], ...] = ()
    cross_document_targets: bool = False

    def __init__(self, /, **fields: Unpack[PlanFields]):
        given: dict[str, Any] = {**fields}
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError("plan: " + explain(error.errors(include_url=False), _fields_at)) from None

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [
            *self._wrong_names(),
            *self._wrong_pools(),
            *self._wrong_weights(),
            *self._wrong_steps(),
            *self._wrong_words(),
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def drawn_sources(self) -> tuple[str, ...]:
        """Names of the sources that sequences are drawn from: all sources that are not members of a pool."""
        pooled = {name for source in self.sources.values() for name in source.repeats}
        return tuple(name for name in self.sources if name not in pooled)

    @property
    def pads_last_batch(self) -> bool:
        """Whether a last step that is not full is filled with empty rows."""
        return (self.last_batch or ("pad" if self.packing == "none" else "drop")) == "pad"

    def _wrong_names(self) -> list[str]:
        """Names that are not valid Unicode: half of a surrogate pair cannot be encoded (ORD-1)."""
        return [
            f"sources: {name!a} is not a valid name: it contains half of a surrogate pair"
            for name in self.sources
            if any("\ud800" <= character <= "\udfff" for character in name)
        ]

    def _wrong_pools(self) -> list[str]:
        wrong = []
        pool_of: dict[str, str] = {}
        for name, source in self.sources.items():
            if (source.path is None) == (source.pool is None):
                wrong.append(f"sources.{name}: expected either a path or a pool, found {_found(source)}")
            if source.pool is not None and not source.repeats:
                wrong.append(f"sources.{name}.pool: expected at least one source, found none")
            if source.pool is not None and source.version is not None:
                wrong.append(f"sources.{name}.version: a pool has no version; set the version of its members instead")
            if isinstance(source.pool, tuple) and len(set(source.pool)) < len(source.pool):
                wrong.append(f"sources.{name}.pool: a source is listed twice; write {{name: 2}} to repeat it")
            for each in source.repeats:
                if each not in self.sources or self.sources[each].path is None:
                    wrong.append(f"sources.{name}.pool: expected names of sources with a path, found {each!r}")
                elif self.sources[each].weight is not None or self.sources[each].max_epochs is not None:
                    wrong.append(f"sources.{each}: a member of a pool has no weight or max_epochs; set them on {name}")
                if pool_of.setdefault(each, name) != name:
                    wrong.append(
                        f"sources.{each}: is a member of two pools, {pool_of[each]} and {name}; keep it in one"
                    )
            if source.pool is not None and self.packing == "concat":
                wrong.append(f"sources.{name}.pool: only valid with packing best_fit or none, found packing concat")
        return wrong

    def _wrong_words(self) -> list[str]:
        wrong = []
        if self.cross_document_targets and self.packing != "concat":
            wrong.append(f"cross_document_targets: only valid with packing concat, found packing {self.packing}")
        if self.temperature is not None and any(source.weight is not None for source in self.sources.values()):
            wrong.append("temperature: cannot be combined with weights; remove the temperature or all weights")
        return wrong

    def _wrong_weights(self) -> list[str]:
        given = {name: source.weight for name, source in self.sources.items() if source.weight is not None}
        wrong = []
        if given and not any(given.values()):
            wrong.append("sources: expected at least one weight above 0, found none")
        for i, stage in enumerate(self.stages):
            if stage.weights is None:
                if stage.global_batch_size is None:
                    wrong.append(f"stages[{i}]: expected weights or global_batch_size, found neither")
                continue
            if unknown := sorted(set(stage.weights) - set(self.drawn_sources)):
                wrong.append(
                    f"stages[{i}].weights: expected names of sources ({', '.join(self.drawn_sources)}), found {unknown}"
                )
            if not any(stage.weights.values()):
                wrong.append(f"stages[{i}].weights: expected at least one weight above 0, found none")
        staged = {name for stage in self.stages for name in stage.weights or {}}
        if staged and not given:
            wrong.append("sources: have no weights although a stage sets some; give each source a weight")
        for name in self.drawn_sources:
            if given and name not in given and name not in staged:
                wrong.append(
                    f"sources.{name}: has no weight although other sources have one, so it would get no sequences;"
                    " give it a weight, or 0 to declare it only"
                )
        if isinstance(self.num_steps, str) and self.on_exhausted is not None:
            wrong.append(
                f"on_exhausted: not valid with num_steps {self.num_steps}, found {self.on_exhausted}; remove one of them"
            )
        return wrong

    def _wrong_steps(self) -> list[str]:
        wrong = []
        starts = [stage.from_step for stage in self.stages]
        if starts != sorted(set(starts)):
            wrong.append(f"stages: expected from_step to increase, found {starts}")
        if any(start >= stop for start, stop in self.skip_steps):
            wrong.append("skip_steps: expected [start, stop] with start below stop")
        ranges = sorted(self.skip_steps)
        if any(a[1] > b[0] for a, b in pairwise(ranges)):
            wrong.append("skip_steps: ranges overlap; merge them")
        return wrong


def _fields_at(place: Sequence[int | str]) -> tuple[str, ...]:
    """Names of the fields allowed at a place: those of the plan, of a source or of a stage."""
    if not place:
        return tuple(PlanConfig.model_fields)
    models: dict[str, type[BaseModel]] = {"sources": SourceConfig, "stages": StageConfig}
    model = models.get(str(place[0])) if len(place) == 2 else None
    return tuple(model.model_fields) if model else ()


def _found(source: SourceConfig) -> str:
    return "neither" if source.path is None else "both"


def _moved(source: Any, folder: Path) -> Any:
    """A source read from a file in `folder`, with its path made relative to here. Invalid sources are left unchanged."""
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return source
    path = Path(source["path"])
    with contextlib.suppress(RuntimeError):  # `~name` of an unknown user is an ordinary path, as in a shell
        path = path.expanduser()
    return {**source, "path": str(folder / path)}
