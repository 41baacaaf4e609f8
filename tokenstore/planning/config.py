"""PlanConfig: what a run's data should be, from plan.yaml or from Python. All wrong fields are reported at once."""

import contextlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Required, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tokenstore.errors import ConfigError
from tokenstore.planning.plan_file import explain, read_yaml

MOST = 1 << 48  # of anything that is counted; products are held against ORD-10 when the plan is laid out
# Decimal, not float: a weight of 0.6 in YAML means 6/10, and shares are made from that exactly (ORD-3).
MOST_DIGITS = 100  # of a weight, as of any number in a plan.yaml: exact arithmetic with 500,000 takes seconds
Weight = Annotated[Decimal, Field(ge=0, allow_inf_nan=False, max_digits=MOST_DIGITS)]
Repeat = Annotated[Decimal, Field(ge=Decimal("0.0001"), le=100, decimal_places=4)]
Temperature = Annotated[Decimal, Field(ge=1, le=100, decimal_places=2)]
MOST_LENGTH, MOST_ROWS = 1 << 24, 1 << 24  # tokens per sequence, sequences per step: a plan has arrays of these sizes
Seed = Annotated[int, Field(ge=-(1 << 127), le=1 << 127, strict=True)]
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS, strict=True)]
Step = Annotated[int, Field(ge=0, le=MOST, strict=True)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# What a caller may pass: pydantic makes of it what the models below hold. Names are those of their fields
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
    """Fields of a PlanConfig that have a default, except the seed."""

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
    """A source: a store, or a pool of other sources packed together; its share of the sequences; most passes over it.

    Attributes:
        path: the store's directory.
        version: which version of a store that has grown; left out: the newest when the plan is made.
        pool: in place of a path, names of sources with a path, or {name: how often an epoch gives each of its documents}.
        weight: share of the sequences; stages may override it.
        max_epochs: most passes.
    """

    path: str | None = None
    version: Count | None = None
    pool: tuple[str, ...] | dict[str, Repeat] | None = None
    weight: Weight | None = None
    max_epochs: Count | None = None

    @property
    def repeats(self) -> dict[str, Decimal]:
        """Repeat factors of a pool by name; {} for a source that is none."""
        pool = self.pool or {}
        return dict(pool) if isinstance(pool, dict) else dict.fromkeys(pool, Decimal(1))


class StageConfig(_Frozen):
    """From `from_step` on, another mixture, another batch size, or both.

    Attributes:
        from_step: the first step of the stage.
        weights: replace all earlier ones, and the interleave of the sources starts again. Omitted: the mixture continues.
        global_batch_size: sequences per step; omitted: as before.
    """

    from_step: Count
    weights: dict[str, Weight] | None = None
    global_batch_size: Rows | None = None


class PlanConfig(_Frozen):
    """A run's data. Paths are relative to the working directory, in `load` to the file, where `~` is the home folder.

    A Plan works on a copy of its own. All wrong fields are named at once; where none is, all contradictions.

    Attributes:
        sequence_length: tokens per sequence, at most 2**24.
        global_batch_size: sequences per step, over all ranks, at most 2**24.
        sources: by name. Names, not paths, decide the order. Either every source has a weight, in `sources` or in a
            stage, or none has: then all take part in proportion to their sequences, and end their epochs together.
            Weight 0 declares a source without using it.
        packing: how documents become sequences. `best_fit`: whole documents, packed anew every epoch; only those longer
            than a sequence are cut. `concat`: windows of the stream, at another offset every epoch. `none`: one document
            (or part of a long one) a sequence; without shuffle the longest first.
        temperature: with all weights left out, take them as (sequences an epoch) ** (1 / temperature): 1, the default, is
            in proportion; the higher, the more even.
        seed: any integer in -2**127..2**127.
        shuffle: false gives every source in its own order.
        num_steps: a number; `first_exhausted` or `all_exhausted`: one epoch, until the first or the last source ends;
            left out: endless.
        on_exhausted: what happens where a source would pass its max_epochs: `error` (refused at load), `drop` (the others
            go on without it), `stop` (the plan ends).
        last_batch: whether a last step that is not full is left out (`drop`) or filled with empty rows (`pad`).
            Left out: `pad` under packing none, else `drop`.
        stages: changes of weights and batch size, by rising from_step.
        skip_steps: [start, stop) ranges of steps that no rank is given.
        cross_document_targets: predict a document's first token from the last one of the document before.
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
        """The plan in a YAML (or JSON) file; paths in it are relative to the file's folder."""
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
        """Names of the sources that take part by themselves: all but those that only stand in a pool."""
        pooled = {name for source in self.sources.values() for name in source.repeats}
        return tuple(name for name in self.sources if name not in pooled)

    @property
    def pads_last_batch(self) -> bool:
        return (self.last_batch or ("pad" if self.packing == "none" else "drop")) == "pad"

    def _wrong_names(self) -> list[str]:
        """A name is text (ORD-1): half of a surrogate pair is no character."""
        return [
            f"sources: {name!a} is not a valid name: it holds half of a surrogate pair"
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
                wrong.append(
                    f"sources.{name}.version: expected with a path only, found in a pool; give it to its sources"
                )
            if isinstance(source.pool, tuple) and len(set(source.pool)) < len(source.pool):
                wrong.append(f"sources.{name}.pool: expected every source once; write {{name: 2}} to repeat one")
            for each in source.repeats:
                if each not in self.sources or self.sources[each].path is None:
                    wrong.append(f"sources.{name}.pool: expected names of sources with a path, found {each!r}")
                elif self.sources[each].weight is not None or self.sources[each].max_epochs is not None:
                    wrong.append(f"sources.{each}: expected no weight or max_epochs, as it is given by the pool {name}")
                if pool_of.setdefault(each, name) != name:
                    wrong.append(f"sources.{each}: expected in one pool, found in {pool_of[each]} and {name}")
            if source.pool is not None and self.packing == "concat":
                wrong.append(f"sources.{name}.pool: expected packing best_fit or none, found concat")
        return wrong

    def _wrong_words(self) -> list[str]:
        wrong = []
        if self.cross_document_targets and self.packing != "concat":
            wrong.append(f"cross_document_targets: expected packing concat, found {self.packing}")
        if self.temperature is not None and any(source.weight is not None for source in self.sources.values()):
            wrong.append("temperature: expected all weights left out, found some")
        return wrong

    def _wrong_weights(self) -> list[str]:
        given = {name: source.weight for name, source in self.sources.items() if source.weight is not None}
        wrong = []
        if given and not any(given.values()):
            wrong.append("sources: expected a weight above 0, found none")
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
                wrong.append(f"stages[{i}].weights: expected one above 0, found none")
        staged = {name for stage in self.stages for name in stage.weights or {}}
        if staged and not given:
            wrong.append("sources: expected weights, as a stage has some, found none")
        for name in self.drawn_sources:
            if given and name not in given and name not in staged:
                wrong.append(
                    f"sources.{name}: has no weight although other sources have one, so it would get no sequences;"
                    " give it a weight, or 0 to declare it only"
                )
        if isinstance(self.num_steps, str) and self.on_exhausted is not None:
            wrong.append(
                f"on_exhausted: expected it left out with num_steps {self.num_steps}, found {self.on_exhausted}"
            )
        return wrong

    def _wrong_steps(self) -> list[str]:
        wrong = []
        starts = [stage.from_step for stage in self.stages]
        if starts != sorted(set(starts)):
            wrong.append(f"stages: expected rising from_step, found {starts}")
        if any(start >= stop for start, stop in self.skip_steps):
            wrong.append("skip_steps: expected [start, stop] with start below stop")
        ranges = sorted(self.skip_steps)
        if any(a[1] > b[0] for a, b in pairwise(ranges)):
            wrong.append("skip_steps: expected ranges that do not overlap")
        return wrong


def _fields_at(place: Sequence[int | str]) -> tuple[str, ...]:
    """The fields there are at a place of a plan: of the plan, of a source or of a stage."""
    if not place:
        return tuple(PlanConfig.model_fields)
    models: dict[str, type[BaseModel]] = {"sources": SourceConfig, "stages": StageConfig}
    model = models.get(str(place[0])) if len(place) == 2 else None
    return tuple(model.model_fields) if model else ()


def _found(source: SourceConfig) -> str:
    return "neither" if source.path is None else "both"


def _moved(source: Any, folder: Path) -> Any:
    """A source of a file in `folder`: its path from here. Anything that is no source is left to be refused."""
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return source
    path = Path(source["path"])
    with contextlib.suppress(RuntimeError):  # `~name` of nobody: a path like any other, as in a shell
        path = path.expanduser()
    return {**source, "path": str(folder / path)}
