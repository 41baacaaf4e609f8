"""The stores of a build: one, or one per split, per partition, or per split of each partition."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tokenstore.builder.options import BuildOptions
from tokenstore.builder.placed import Placed
from tokenstore.builder.split import Split, parse_split
from tokenstore.errors import BuildError
from tokenstore.store.writer import FileWriter

MAX_PARTITIONS = 100  # stores of a partitioned build, splits included: each has up to eight open files
PARTITION_BUFFER_BYTES = 128 << 10  # bytes of the buffer of each file, so that a hundred stores take little memory


def check_partitions(options: BuildOptions, partitions: Collection[str]) -> None:
    """BuildError if these partitions would be too many stores."""
    most = MAX_PARTITIONS // max(1, len(splits_of(options)))
    if len(partitions) > most:
        shown = ", ".join(islice(partitions, 3))
        raise BuildError(
            f"partition_by: field {options.partition_by!r} has more than {most} values, such as {shown}; map them to fewer with"
            " --map"
        )


@dataclass(frozen=True)
class Place:
    """Which store of a build: names of its partition and split, None if the build has none."""

    partition: str | None = None
    split: str | None = None

    def below(self, folder: Path) -> Path:
        """The store's folder, below the folder of all stores of the build."""
        return folder.joinpath(*(name for name in (self.partition, self.split) if name is not None))

    def __str__(self) -> str:
        return "/".join(name for name in (self.partition, self.split) if name is not None)


def splits_of(options: BuildOptions) -> tuple[Split, ...]:
    """The splits of a build; () for a single store."""
    return parse_split(options.split) if options.split else ()


def places_of(options: BuildOptions, partitions: Sequence[str] | None) -> list[Place]:
    """The stores of a build with these partitions, sorted by name; None for a build without partitions."""
    names: list[str | None] = [None] if partitions is None else [*sorted(partitions)]
    splits: list[str | None] = [each.name for each in splits_of(options)]
    return [Place(name, split) for name in names for split in splits or [None]]


class Writers:
    """The writers of a build's stores. Those of a partition are made when its first document is written.

    Args:
        options: of the build.
        new: makes the writer of a store.
        first_inputs: for each store, the number of lines that its inputs.jsonl has already.

    Attributes:
        writers: number of a store -> its place and writer.
        num_tokens: written by this build to all stores.
        is_full: whether `max_total_tokens` left documents out.
    """

    def __init__(self, options: BuildOptions, new: Callable[[Place], FileWriter], first_inputs: Sequence[int] = ()):
        self.options, self._new, self._first_inputs = options, new, first_inputs
        self.num_splits = max(1, len(splits_of(options)))
        self.writers: dict[int, tuple[Place, FileWriter]] = {}
        self.num_tokens = 0
        self.is_full = False
        self._partitions: dict[str, int] = {}
        if options.partition_by is None:
            self._add(0, None)

    def _add(self, number: int, partition: str | None) -> None:
        """Make the writers of all splits of a partition."""
        for split, place in enumerate(places_of(self.options, None if partition is None else [partition])):
            self.writers[number * self.num_splits + split] = place, self._new(place)

    def partition(self, name: str) -> int:
        """The number of a partition. BuildError if there are too many."""
        if name not in self._partitions:
            self._partitions[name] = len(self._partitions)
            check_partitions(self.options, self._partitions)
        return self._partitions[name]

    def write(self, documents: Placed, count: Callable[[int, np.ndarray], None]) -> bool:
        """Write documents to their stores; False if `max_total_tokens` is reached, and the last of them were left out.

        Args:
            documents: in order.
            count: called with the number of each store and int64[n], the inputs of the documents written to it.
        """
        documents = self._limited(documents)
        self.num_tokens += int(documents.rows["length"].sum())
        for store in np.unique(documents.rows["store"]).tolist():
            if store not in self.writers:
                number = store // self.num_splits
                self._add(number, [*self._partitions][number])
            some = documents.only(documents.rows["store"] == store)
            count(store, some.rows["file"])
            self._append(store, some)
        return not self.is_full

    def _limited(self, documents: Placed) -> Placed:
        limit = self.options.max_total_tokens
        if limit is None:
            return documents
        fit = self.num_tokens + np.cumsum(documents.rows["length"]) <= limit
        self.is_full = not fit.all()
        return documents.only(fit)

    @property
    def full_note(self) -> str:
        """For messages about stores without documents: that `max_total_tokens` left some out; "" if it did not."""
        limit = self.options.max_total_tokens
        return f"; the next document would exceed max_total_tokens, {limit}: allow more" if self.is_full else ""

    def _append(self, store: int, some: Placed) -> None:
        options = self.options
        first = self._first_inputs[store] if self._first_inputs else 0
        shuffled = options.shuffle_documents is not None and options.origins
        _, writer = self.writers[store]
        writer.append(
            some.tokens,
            some.rows["length"].astype(np.int64),
            mask=some.mask,
            origins=some.rows["record"].astype(np.int64) if options.origins else None,
            ids=some.names if options.id_field else None,
            metadata=some.metadata if options.keep else None,
            inputs=first + some.rows["file"].astype(np.int64) if shuffled else None,
            contents=some.rows["content"] if options.dedup != "none" else None,
        )

    def sorted(self) -> Iterator[tuple[int, Place, FileWriter]]:
        """(number, place, writer) of every store, by partition and then in the order of the splits."""
        for number, (place, writer) in sorted(
            self.writers.items(), key=lambda each: (each[1][0].partition or "", each[0])
        ):
            yield number, place, writer

    @property
    def partitions(self) -> list[str] | None:
        """The names of the partitions that have documents, sorted; None in a build without them."""
        if self.options.partition_by is None:
            return None
        return sorted({place.partition for place, _ in self.writers.values() if place.partition is not None})

    @property
    def empty_partitions(self) -> list[str]:
        """The names of partitions without documents, sorted: all were duplicates, or came after `max_total_tokens`."""
        return sorted({*self._partitions} - {*(self.partitions or ())})
