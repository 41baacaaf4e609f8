"""The sources of a plan, with their stores and their number of sequences per epoch.

A source with a path has one member, its own store. A pool has several members, which are packed together.
"""

from dataclasses import dataclass
from fractions import Fraction

from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.order.classes import LengthClasses
from tokenstore.store import Store


@dataclass(frozen=True)
class SourceMember:
    """A store of a source.

    Attributes:
        name: name of the source whose store this is.
        store: the open store.
        repeat: average number of times that an epoch contains each document.
    """

    name: str
    store: Store
    repeat: Fraction


@dataclass(frozen=True)
class Source:
    """A source of the interleave.

    Attributes:
        name: name in the plan.
        packing: `concat`, `best_fit` or `none`.
        members: sorted by name.
        num_sequences: sequences per epoch, the same in every epoch.
        num_tokens: tokens per epoch, on average over epochs.
        length_classes: length classes of its pieces; None under `concat`.
    """

    name: str
    packing: str
    members: tuple[SourceMember, ...]
    num_sequences: int
    num_tokens: Fraction
    length_classes: LengthClasses | None

    @property
    def classes(self) -> LengthClasses:
        """Length classes of its pieces. Raises: ValueError: the packing is `concat`, which has none."""
        if self.length_classes is None:
            raise ValueError(f"source {self.name}: expected a packing with length classes, found {self.packing}")
        return self.length_classes

    @property
    def is_pool(self) -> bool:
        """Whether the source is a pool. Otherwise its only member has its own name."""
        return self.members[0].name != self.name

    @property
    def identity(self) -> dict[str, object]:
        """The properties of its stores that determine its sequences."""
        if not self.is_pool:
            return {**self._content(self.members[0]), "num_sequences": self.num_sequences}
        pool = {member.name: {**self._content(member), "repeat": str(member.repeat)} for member in self.members}
        return {"pool": pool, "num_sequences": self.num_sequences}

    def _content(self, member: SourceMember) -> dict[str, str]:
        """Identity of a member's content.

        The digest does not cover the length index, but packing reads it. So its checksum is part of the identity of
        packed sources, and a forged length index makes a different plan. A valid one follows from the boundaries, so
        this rejects nothing else.
        """
        if self.packing == "concat":
            return {"digest": member.store.digest}
        return {"digest": member.store.digest, "length_index": member.store.entry(LENGTH_INDEX_NAME).checksum}
