"""The sources that the interleave draws from, each with its stores and its number of sequences per epoch.

A source with a path has one member, its own store; a pool has several members, which are packed together.
"""

from dataclasses import dataclass
from fractions import Fraction

from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.order.classes import LengthClasses
from tokenstore.store import Store


@dataclass(frozen=True)
class SourceMember:
    """A store of a source, and how often one epoch of the source contains each of its documents."""

    name: str
    store: Store
    repeat: Fraction


@dataclass(frozen=True)
class Source:
    """Attributes:
    packing: `concat`, `best_fit` or `none`.
    num_sequences: sequences per epoch, the same in every epoch.
    num_tokens: tokens per epoch, averaged over epochs.
    length_classes: of its pieces; None under `concat`.
    """

    name: str
    packing: str
    members: tuple[SourceMember, ...]
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
        """Whether it is a pool of named sources. Otherwise the source is its own only member."""
        return self.members[0].name != self.name

    @property
    def identity(self) -> dict[str, object]:
        """The properties of the stores that decide the source's sequences."""
        if not self.is_pool:
            return {**self._content(self.members[0]), "num_sequences": self.num_sequences}
        pool = {member.name: {**self._content(member), "repeat": str(member.repeat)} for member in self.members}
        return {"pool": pool, "num_sequences": self.num_sequences}

    def _content(self, member: SourceMember) -> dict[str, str]:
        """Identity of a member's content. The digest does not cover the length index, and packing reads it.

        A sound index follows from the boundaries, so it makes no difference; a forged index makes a different plan.
        """
        if self.packing == "concat":
            return {"digest": member.store.digest}
        return {"digest": member.store.digest, "length_index": member.store.entry(LENGTH_INDEX_NAME).checksum}
