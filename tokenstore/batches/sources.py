"""The sources of a plan, with their stores and their number of sequences per epoch.

A source with a path has one member, its own store. A pool has several members, which are packed together.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

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
        num_tokens: tokens of these documents, each counted once.
        loss_weight: weight of its tokens in the loss.
    """

    name: str
    store: Store
    repeat: Fraction
    chosen: Slice
    num_tokens: int
    loss_weight: Decimal = Decimal(1)

    @property
    def is_sliced(self) -> bool:
        """Whether the source uses only some of the documents of its store."""
        return not self.chosen.is_all(len(self.store))

    def by_length(self) -> Member:
        """These documents by length. They are read from the length index, because only searches need them again."""
        lengths, starts = self.store.runs().T.copy()
        return documents_by_length(lengths, starts, len(self.store), self.chosen, self.repeat)


def documents_by_length(
    lengths: np.ndarray, starts: np.ndarray, num_documents: int, chosen: Slice, repeat: Fraction
) -> Member:
    """The documents of a slice by length (ORD-16).

    Args:
        lengths: int64[runs], tokens per document of each run of a store.
        starts: int64[runs], position of the first document of each run.
        num_documents: documents of the store.
        chosen: the slice.
        repeat: average number of times that an epoch contains each document.
    """
    if not chosen.is_all(num_documents):
        edges = chosen.before(np.append(starts, num_documents))
        kept = np.diff(edges) > 0
        lengths, starts = lengths[kept], edges[:-1][kept]
    return Member(lengths, starts, chosen.num_documents, repeat.numerator, repeat.denominator)


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
