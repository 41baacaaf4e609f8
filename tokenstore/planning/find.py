"""Finds every step in which a document appears: inverts each rule of the order, one epoch at a time, without replay."""

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np

from tokenstore.batches.packings import Packings
from tokenstore.batches.sources import Source, SourceMember
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import BOUNDARIES_NAME, LENGTH_INDEX_NAME
from tokenstore.order.classes import slot_of
from tokenstore.order.inverse import BinIndex, circle_offset, place_before
from tokenstore.order.keys import base_key
from tokenstore.order.lanes import lane_numbers
from tokenstore.order.repeats import Member, copies_of
from tokenstore.order.schedule import Schedule
from tokenstore.store import Store


class Occurrence(NamedTuple):
    """Tokens [start, stop) of a document are in row `row` of `step`, in pass `epoch` over its source."""

    epoch: int
    step: int
    row: int
    start: int
    stop: int


class Finder:
    """Finds documents in one plan. It caches the packings of the epochs that were searched last."""

    def __init__(
        self,
        schedule: Schedule,
        sources: Sequence[Source],
        packings: Packings,
        seed: int,
        length: int,
        shuffle: bool,
    ):
        self._schedule, self._seed, self._length, self._shuffle = schedule, seed, length, shuffle
        self._places = {each.name: (n, m) for n, source in enumerate(sources) for m, each in enumerate(source.members)}
        self._sources = sources
        self._index = lru_cache(maxsize=4)(lambda source, epoch: BinIndex(packings.packing(source, epoch)))

    def find(self, source: str, document: int, epoch: int | None, steps: range | None) -> Iterator[Occurrence]:
        """See `Plan.find`; `steps` are steps of the plan."""
        if source not in self._places:
            raise ValueError(f"source: expected one of {', '.join(sorted(self._places))}, found {source!r}")
        number, member = self._places[source]
        drawn = self._sources[number]
        num_documents = len(drawn.members[member].store)
        if not 0 <= operator.index(document) < num_documents:
            raise IndexError(f"document: expected one of {num_documents}, found {document} (source {source})")
        if epoch is not None:
            check_epoch(epoch)
        if drawn.members[member].is_sliced and _position(drawn.members[member], document)[1] is None:
            return iter(())  # the plan never uses it
        if epoch is not None:
            epochs: Iterator[int] = iter([operator.index(epoch)])
        else:
            before = (
                0 if steps is None else self._schedule.counts(self._schedule.cursor(steps.start)).get(drawn.name, 0)
            )
            epochs = count(before // drawn.num_sequences)
        return self._occurrences(number, drawn, member, operator.index(document), epochs, steps)

    def _occurrences(
        self, number: int, source: Source, member: int, document: int, epochs: Iterator[int], steps: range | None
    ) -> Iterator[Occurrence]:
        """Yield the occurrences of a document, in order of step; ends when the source does.

        Args:
            number: index of the source among the sources of the plan.
            source: that source.
            member: index of the document's store among the members of the source.
            document: number of the document in its store.
            epochs: epochs to search, rising.
            steps: only steps in this range; None for all.
        """
        schedule, count = self._schedule, source.num_sequences
        first_cursor = 0 if steps is None else schedule.cursor(steps.start)
        last_cursor = None if steps is None else schedule.cursor(steps.stop)
        by_length = None if source.packing == "concat" else source.members[member].by_length()
        for epoch in epochs:
            begin, end = schedule.find(source.name, epoch * count), schedule.find(source.name, (epoch + 1) * count - 1)
            if begin is None or (last_cursor is not None and begin >= last_cursor):
                return
            if end is not None and end < first_cursor:
                continue
            if by_length is None:
                pieces = list(self._windows(source, document, epoch))
                if not pieces and not self._shuffle:  # not in this epoch, and without shuffle all epochs are equal
                    return
            else:
                pieces = list(self._slots(number, source, member, by_length, document, epoch))
            yield from sorted(self._given(source, epoch, pieces, first_cursor, last_cursor), key=lambda o: o[1:])

    def _given(
        self,
        source: Source,
        epoch: int,
        pieces: list[tuple[int, int, int]],
        first_cursor: int,
        last_cursor: int | None,
    ) -> Iterator[Occurrence]:
        """(sequence in the epoch, start, stop) -> occurrences in the run, without skipped steps and outside the range."""
        schedule = self._schedule
        for i, start, stop in pieces:
            cursor = schedule.find(source.name, epoch * source.num_sequences + i)
            if cursor is None or cursor < first_cursor or (last_cursor is not None and cursor >= last_cursor):
                continue
            step = schedule.step_of(cursor)
            if schedule.is_skipped(step) or (schedule.num_steps is not None and step >= schedule.num_steps):
                continue
            place = cursor - schedule.cursor(step)
            row = self._before(place, schedule.stage(step).global_batch_size, "step", "", step)
            yield Occurrence(epoch, step, row, start, stop)

    def _before(self, image: int, size: int, purpose: str, name: str, counter: int, inner: int = -1) -> int:
        if not self._shuffle:
            return image
        return int(place_before(np.array([image]), size, base_key(self._seed, purpose, name), counter, inner)[0])

    def _number_of(self, source: Source, image: int, epoch: int) -> int:
        """The number in its epoch of a window or a bin."""
        if source.lanes is None:
            return self._before(image, source.num_sequences, "sequence", source.name, epoch)
        keys = (base_key(self._seed, purpose, source.name) for purpose in ("block", "place"))
        return int(lane_numbers(source.lanes, np.array([image]), epoch, *keys)[0])

    def _slots(
        self, number: int, source: Source, member: int, by_length: Member, document: int, epoch: int
    ) -> Iterator[tuple[int, int, int]]:
        """(sequence in the epoch, start, stop) of each piece of a document of a packed source."""
        size, position = _position(source.members[member], document)
        if position is None:
            return
        p, q = by_length.p, by_length.q
        copy_starts = by_length.starts * p // q
        for copy in copies_of(position, epoch, p, q):
            room = int(by_length.lengths[int(np.searchsorted(copy_starts, copy, side="right")) - 1])
            for piece in range(-(-size // self._length)):
                length, slot = slot_of(source.classes, member, copy, piece, room)
                slot = self._before(slot, int(source.classes.counts[length]), "class", source.name, epoch, length)
                bin_number = self._index(number, epoch).bin_of(length, slot)
                i = self._number_of(source, bin_number, epoch)
                yield i, piece * self._length, min((piece + 1) * self._length, size)

    def _windows(self, source: Source, document: int, epoch: int) -> Iterator[tuple[int, int, int]]:
        """(sequence in the epoch, start, stop) of each piece of a document with packing `concat`."""
        store, length = source.members[0].store, self._length
        total, count = store.num_tokens, source.num_sequences
        first, stop = (int(x) for x in store.boundaries()[document : document + 2])
        offset = circle_offset(total, base_key(self._seed, "offset", source.name), epoch) if self._shuffle else 0
        begin = (first - offset) % total  # on the circle; after its wrap-around point the document continues at 0
        for low, high in ((begin, min(begin + stop - first, total)), (0, max(begin + stop - first - total, 0))):
            for window in range(low // length, min(-(-high // length), count)):
                i = self._number_of(source, window, epoch)
                here, there = max(low, window * length), min(high, (window + 1) * length)
                start = (here - begin) % total
                yield i, start, start + there - here


def check_epoch(epoch: int) -> None:
    """ValueError unless an epoch is in 0..2**48 - 1."""
    if operator.index(epoch) < 0:
        raise ValueError(f"epoch: expected 0 or more, found {epoch}")
    if epoch >= 1 << 48:
        raise ValueError(f"epoch: expected less than 2**48, found {epoch}")


def _position(member: SourceMember, document: int) -> tuple[int, int | None]:
    """(tokens, position by length among those of the slice) of a document (ORD-12); None if it is not in the slice."""
    store = member.store
    runs = store.runs()
    start, stop = (int(x) for x in store.boundaries()[document : document + 2])
    run = int(np.searchsorted(runs[:, 0], stop - start))
    if run == len(runs):
        raise _misplaced(store, document)
    first = int(runs[run, 1])
    end = int(runs[run + 1, 1]) if run + 1 < len(runs) else len(store)
    position = first + int(np.searchsorted(store.length_index()[first:end], document))
    if runs[run, 0] != stop - start or position == end or store.length_index()[position] != document:
        raise _misplaced(store, document)
    return stop - start, member.chosen.number_of(position)


def _misplaced(store: Store, document: int) -> CorruptionError:
    return CorruptionError(
        f"document {document}: the length index does not list it under its length"
        f" ({store.file(LENGTH_INDEX_NAME)}, or {BOUNDARIES_NAME} next to it); run `tokenstore verify {store.place}`"
    )
