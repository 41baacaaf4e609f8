"""Configuration and opened stores -> the sources of a run, each with its documents and sequences per epoch."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np

from tokenstore.batches.sources import Source, SourceMember, documents_by_length
from tokenstore.errors import ConfigError
from tokenstore.order.classes import length_classes
from tokenstore.order.lanes import Lanes
from tokenstore.order.packing import num_best_fit
from tokenstore.order.repeats import Member
from tokenstore.order.slices import Slice
from tokenstore.order.windows import num_windows
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.source_config import SourceConfig
from tokenstore.store import Store


def resolve_sources(config: PlanConfig, stores: Mapping[str, Store]) -> tuple[Source, ...]:
    """The sources of a plan, sorted by name. ConfigError if one has no sequence, or lacks what its packing needs."""
    return tuple(_source(name, config, stores) for name in sorted(config.drawn_sources))


def _source(name: str, config: PlanConfig, stores: Mapping[str, Store]) -> Source:
    repeats = config.sources[name].repeats or {name: Decimal(1)}
    if config.packing == "concat":
        return _concat_source(name, config, stores[name])
    members, by_length = zip(
        *(_member(each, config, stores[each], Fraction(repeats[each])) for each in sorted(repeats)), strict=True
    )
    try:
        classes = length_classes(by_length, config.sequence_length, config.align or 1)
    except ValueError as error:
        raise ConfigError(f"source {name}: {error}; use a longer sequence_length") from None
    num_sequences = num_best_fit(classes) if config.packing == "best_fit" else classes.num_pieces
    num_tokens = sum((member.num_tokens * member.repeat for member in members), Fraction(0))
    return Source(name, config.packing, members, num_sequences, num_tokens, classes)


def _member(name: str, config: PlanConfig, store: Store, repeat: Fraction) -> tuple[SourceMember, Member]:
    """A store of a packed source with its slice, and the documents of the slice by length (ORD-16)."""
    if not store.has_length_index:
        raise ConfigError(
            f"source {name}: expected a length index for packing {config.packing}, found none"
            f" ({store.place}); run `tokenstore index {store.place}`, or use packing: concat"
        )
    lengths, starts = store.runs().T.copy()
    chosen = _slice(name, config.sources[name], store, lengths, starts)
    by_length = documents_by_length(lengths, starts, len(store), chosen, repeat)
    num_tokens = by_length.num_tokens
    return SourceMember(name, store, repeat, chosen, num_tokens, _loss_weight(config, name)), by_length


def _loss_weight(config: PlanConfig, name: str) -> Decimal:
    given = config.sources[name].loss_weight
    return Decimal(1) if given is None else given


def _slice(name: str, source: SourceConfig, store: Store, lengths: np.ndarray, starts: np.ndarray) -> Slice:
    """The slice of a source. ConfigError if it has no documents.

    Args:
        name: name of the source.
        source: its configuration.
        store: its store.
        lengths: int64[runs], tokens per document of each run.
        starts: int64[runs], position of the first document of each run.
    """
    if not source.slice_fields:
        return Slice(0, len(store))
    edges, first, stop = np.append(starts, len(store)), 0, len(store)
    if (wanted := source.documents) is not None:
        first = int(edges[np.searchsorted(lengths, wanted.min_tokens)])
        stop = (
            len(store)
            if wanted.max_tokens is None
            else int(edges[np.searchsorted(lengths, wanted.max_tokens, "right")])
        )
    i, n = source.take or (0, 1)
    p, q = (source.fraction or Fraction(1)).as_integer_ratio()
    chosen = Slice(first, stop - first, i, n, p, q)
    if chosen.count * q >= 1 << 62:
        raise ConfigError(
            f"source {name}: fraction {source.fraction} of {chosen.count:,} documents is too fine; round it"
        )
    if not chosen.num_documents:
        raise ConfigError(
            f"source {name}: its slice ({source.slice_text}) has no documents: {chosen.count:,} of {len(store):,} documents"
            f" have these lengths ({lengths[0]:,} to {lengths[-1]:,} tokens in the store), and {chosen.num_taken:,} of them"
            f" are taken ({store.place}); select more"
        )
    return chosen


def _concat_source(name: str, config: PlanConfig, store: Store) -> Source:
    length = config.sequence_length
    count = num_windows(store.num_tokens, length)
    if count == 0:
        raise ConfigError(
            f"source {name}: expected at least one sequence of {length} tokens,"
            f" found {store.num_tokens} tokens ({store.place}); use a shorter sequence_length or another packing, or remove it"
        )
    members = (
        SourceMember(name, store, Fraction(1), Slice(0, len(store)), store.num_tokens, _loss_weight(config, name)),
    )
    local = config.sources[name].locality
    lanes = None if local is None else Lanes.of(count, local.block_sequences, local.lanes)
    return Source(name, "concat", members, count, Fraction(count * length), None, lanes)
