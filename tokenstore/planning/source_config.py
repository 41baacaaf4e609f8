"""SourceConfig: the fields of a source of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, ClassVar, TypedDict, Unpack

from tokenstore.planning.checks import (
    COUNT,
    Checked,
    Mistakes,
    Take,
    decimal,
    dict_of,
    expected,
    is_list,
    list_of,
    optional,
    part_of,
    proper_fraction,
    text,
)
from tokenstore.planning.locality import LocalityConfig, LocalityFields

# Decimal, not float: a weight of 0.6 in YAML means 6/10, and shares are computed from exactly that (ORD-3).
WEIGHT, _REPEAT = decimal("0"), decimal("0.0001", "100", places=4)
_LOSS_WEIGHT = decimal("0", "1000000", places=6)
Number = int | float | str | Decimal  # what a caller may pass; the fields of the classes are Decimals


def _check_pool(value: Any, place: str, mistakes: Mistakes) -> Any:
    """Names of sources, as a tuple, or their repeats by name, as a dict."""
    if isinstance(value, Mapping):
        return dict_of(_REPEAT)(value, place, mistakes)
    if is_list(value):
        return list_of(text)(value, place, mistakes)
    return mistakes.add(place, expected("a list of sources, or {name: repeats}", value))


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
    locality: LocalityConfig | LocalityFields | None


class DocumentFields(TypedDict, total=False):
    """Fields of a DocumentRange, as a dictionary."""

    min_tokens: int
    max_tokens: int | None


@dataclass(frozen=True, init=False)
class DocumentRange(Checked):
    """Lengths of documents.

    Attributes:
        min_tokens: the fewest tokens of a document, with its end-of-text token.
        max_tokens: the most tokens of a document. Default: no limit.
    """

    what: ClassVar[str] = "documents"
    min_tokens: Annotated[int, COUNT] = 1
    max_tokens: Annotated[int | None, optional(COUNT)] = None

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
    version: Annotated[int | None, optional(COUNT)] = None
    pool: Annotated[tuple[str, ...] | dict[str, Decimal] | None, optional(_check_pool)] = None
    weight: Annotated[Decimal | None, optional(WEIGHT)] = None
    max_epochs: Annotated[int | None, optional(COUNT)] = None
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
