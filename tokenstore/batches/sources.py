"""The sources of a plan, with their stores and their number of sequences per epoch.

A source with a path has one member, its own store. A pool has several members, which are packed together.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.order.classes import LengthClasses
from tokenstore.order.lanes import Lanes
from tokenstore.order.repeats import Member
from tokenstore.order.slices import Slice
from tokenstore.store import Store


@dataclass(frozen=True)
class SourceMember:
    """A store of a source.

    Attributes:
        name: name of the source whose store this is.
        store: the open store.
        repeat: average number of times that an epoch contains each document.
        chosen: the documents that the source uses.
        loss_weight: weight of its tokens in the loss.
        by_length: these documents by length; None under `concat`, which uses all documents in the order of the store.
    """

    name: str
    store: Store
    repeat: Fraction
    chosen: Slice
    loss_weight: Decimal = Decimal(1)
    by_length: Member | None = None

    @property
    def is_sliced(self) -> bool:
        """Whether the source uses only some of the documents of its store."""
        return not self.chosen.is_all(len(self.store))

    @property
    def num_tokens(self) -> int:
        """Tokens of its documents, each counted once."""
        if self.by_length is None or not self.is_sliced:
            return self.store.num_tokens
        return self.by_length.num_tokens


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
        lanes: how it is read in blocks (ORD-20); None if its sequences come from anywhere.
    """

    name: str
    packing: str
    members: tuple[SourceMember, ...]
    num_sequences: int
    num_tokens: Fraction
    length_classes: LengthClasses | None
    lanes: Lanes | None = None

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
            return {**self._content(self.members[0]), **self._locality, "num_sequences": self.num_sequences}
        pool = {member.name: {**self._content(member), "repeat": str(member.repeat)} for member in self.members}
        return {"pool": pool, "num_sequences": self.num_sequences}

    @property
    def _locality(self) -> dict[str, object]:
        if self.lanes is None:
            return {}
        return {"locality": {"block_sequences": self.lanes.block, "lanes": self.lanes.count}}

    def _content(self, member: SourceMember) -> dict[str, object]:
        """Identity of a member's content.

        The digest does not cover the length index, but packing reads it. So its checksum is part of the identity of
        packed sources, and a forged length index makes a different plan. A valid one follows from the boundaries, so
        this rejects nothing else.
        """
        content: dict[str, object] = {"digest": member.store.digest}
        if member.loss_weight != 1:
            content["loss_weight"] = f"{member.loss_weight.normalize():f}"
        if self.packing == "concat":
            return content
        content["length_index"] = member.store.entry(LENGTH_INDEX_NAME).checksum
        if member.is_sliced:
            chosen = member.chosen
            content["slice"] = {
                "documents": [chosen.first, chosen.first + chosen.count],
                "take": [chosen.i, chosen.n],
                "fraction": [chosen.p, chosen.q],
            }
        return content
