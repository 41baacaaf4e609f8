"""Configuration and opened stores -> the sources of a run, each with its sequences per epoch."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from tokenstore.batches.sources import Source, SourceMember
from tokenstore.errors import ConfigError
from tokenstore.order.classes import length_classes
from tokenstore.order.packing import num_best_fit
from tokenstore.order.repeats import Member
from tokenstore.order.windows import num_windows
from tokenstore.planning.config import PlanConfig
from tokenstore.store import Store


def resolve_sources(config: PlanConfig, stores: Mapping[str, Store]) -> tuple[Source, ...]:
    """The sources of a plan, sorted by name. ConfigError if one has no sequence, or lacks what its packing needs."""
    return tuple(_source(name, config, stores) for name in sorted(config.drawn_sources))


def _source(name: str, config: PlanConfig, stores: Mapping[str, Store]) -> Source:
    repeats = config.sources[name].repeats or {name: Decimal(1)}
    members = tuple(SourceMember(each, stores[each], Fraction(repeats[each])) for each in sorted(repeats))
    if config.packing == "concat":
        return _concat_source(name, members, config.sequence_length)
    for member in members:
        if not member.store.has_length_index:
            raise ConfigError(
                f"source {member.name}: expected a length index for packing {config.packing}, found none"
                f" ({member.store.path}); run `tokenstore index {member.store.path}`, or use packing: concat"
            )
    classes = length_classes([_by_length(member) for member in members], config.sequence_length)
    num_sequences = num_best_fit(classes) if config.packing == "best_fit" else classes.num_pieces
    num_tokens = sum((member.store.num_tokens * member.repeat for member in members), Fraction(0))
    return Source(name, config.packing, members, num_sequences, num_tokens, classes)


def _by_length(member: SourceMember) -> Member:
    lengths, starts = member.store.runs().T.copy()
    return Member(lengths, starts, len(member.store), member.repeat.numerator, member.repeat.denominator)


def _concat_source(name: str, members: tuple[SourceMember, ...], length: int) -> Source:
    store = members[0].store
    count = num_windows(store.num_tokens, length)
    if count == 0:
        raise ConfigError(
            f"source {name}: expected at least one sequence of {length} tokens,"
            f" found {store.num_tokens} tokens ({store.path}); use a shorter sequence_length or another packing, or remove it"
        )
    return Source(name, "concat", members, count, Fraction(count * length), None)
