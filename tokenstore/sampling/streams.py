"""Streams: the sources that take part in the interleave, each with the stores it draws from and its sequences an epoch.

A source with a path is a stream of one store; a pool is a stream of several, packed together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tokenstore.errors import ConfigError
from tokenstore.format.layout import ORDER_NAME
from tokenstore.order.classes import LengthClasses, length_classes
from tokenstore.order.packing import num_best_fit
from tokenstore.order.repeats import Member
from tokenstore.order.windows import num_windows
from tokenstore.sampling.config import PlanConfig
from tokenstore.store import Store


@dataclass(frozen=True)
class StreamMember:
    """A store in a stream, and how often an epoch of the stream gives each of its documents."""

    name: str
    store: Store
    repeat: Fraction


@dataclass(frozen=True)
class Stream:
    """Attributes:
    packing: `concat`, `best_fit` or `none`.
    num_sequences: sequences an epoch, the same in every epoch.
    num_tokens: tokens an epoch gives, on average over epochs.
    length_classes: of its pieces; None under `concat`.
    """

    name: str
    packing: str
    members: tuple[StreamMember, ...]
    num_sequences: int
    num_tokens: Fraction
    length_classes: LengthClasses | None

    @property
    def classes(self) -> LengthClasses:
        """Length classes of its pieces. Not under `concat`, which has none."""
        if self.length_classes is None:
            raise ValueError(f"source {self.name}: expected a packing with length classes, found {self.packing}")
        return self.length_classes

    @property
    def is_pool(self) -> bool:
        """Whether its members are sources of their own names; otherwise it is its own only member."""
        return self.members[0].name != self.name

    @property
    def identity(self) -> dict[str, object]:
        """What of the stores decides the stream's sequences."""
        if not self.is_pool:
            return {**self._content(self.members[0]), "num_sequences": self.num_sequences}
        pool = {member.name: {**self._content(member), "repeat": str(member.repeat)} for member in self.members}
        return {"pool": pool, "num_sequences": self.num_sequences}

    def _content(self, member: StreamMember) -> dict[str, str]:
        """Identity of a member's content. The digest does not cover the length index, and packing reads it.

        A sound index follows from the boundaries, so this refuses nothing more; a forged one is another plan.
        """
        if self.packing == "concat":
            return {"digest": member.store.digest}
        return {"digest": member.store.digest, "length_index": member.store.entry(ORDER_NAME).checksum}


def make_streams(config: PlanConfig, stores: Mapping[str, Store]) -> tuple[Stream, ...]:
    """The streams of a plan, by name; ConfigError for one without a single sequence, or without what its packing needs."""
    return tuple(_stream(name, config, stores) for name in sorted(config.streams))


def _stream(name: str, config: PlanConfig, stores: Mapping[str, Store]) -> Stream:
    repeats = config.sources[name].repeats or {name: Decimal(1)}
    members = tuple(StreamMember(each, stores[each], Fraction(repeats[each])) for each in sorted(repeats))
    if config.packing == "concat":
        return _concat_stream(name, members, config.sequence_length)
    for member in members:
        if not member.store.has_order:
            raise ConfigError(
                f"source {member.name}: expected an order file for packing {config.packing}, found none"
                f" ({member.store.path}); run `tokenstore index {member.store.path}`, or use packing: concat"
            )
    classes = length_classes([_by_length(member) for member in members], config.sequence_length)
    num_sequences = num_best_fit(classes) if config.packing == "best_fit" else classes.num_pieces
    num_tokens = sum((member.store.num_tokens * member.repeat for member in members), Fraction(0))
    return Stream(name, config.packing, members, num_sequences, num_tokens, classes)


def _by_length(member: StreamMember) -> Member:
    lengths, firsts = member.store.runs().T.copy()
    return Member(lengths, firsts, len(member.store), member.repeat.numerator, member.repeat.denominator)


def _concat_stream(name: str, members: tuple[StreamMember, ...], length: int) -> Stream:
    store = members[0].store
    count = num_windows(store.num_tokens, length)
    if count == 0:
        raise ConfigError(
            f"source {name}: expected at least one sequence of {length} tokens,"
            f" found {store.num_tokens} tokens ({store.path}); use a shorter sequence_length, another packing, or leave it out"
        )
    return Stream(name, "concat", members, count, Fraction(count * length), None)
