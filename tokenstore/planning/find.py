"""When a document comes by: every rule of the order backwards, an epoch at a time and without replay."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokenstore.batches.packings import Packings
from tokenstore.batches.sources import Source
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import BOUNDARIES_NAME, LENGTH_INDEX_NAME
from tokenstore.order.classes import slot_of
from tokenstore.order.inverse import BinIndex, circle_offset, place_before
from tokenstore.order.keys import base_key
from tokenstore.order.repeats import ranks_of
from tokenstore.order.schedule import Schedule
from tokenstore.store import Store


class Occurrence(NamedTuple):
    """Tokens [start, stop) of a document stand in row `row` of `step`, in pass `epoch` over its source."""

    epoch: int
    step: int
    row: int
    start: int
    stop: int


class Finder:
    """Looks documents up in one plan; keeps the index of the epochs it was asked for last."""

    def __init__(self, schedule: Schedule, packings: Packings, seed: int, length: int, shuffle: bool):
        self._schedule, self._seed, self._length, self._shuffle = schedule, seed, length, shuffle
        self._index = lru_cache(maxsize=4)(lambda source, epoch: BinIndex(packings.packing(source, epoch)))

    def occurrences(
        self, number: int, source: Source, member: int, document: int, epochs: Iterator[int], steps: range | None
    ) -> Iterator[Occurrence]:
        """In order of step; `number` is that of the stream, `member` of the store in it. Ends where the source does."""
        schedule, count = self._schedule, source.num_sequences
        first_cursor = 0 if steps is None else schedule.cursor(steps.start)
        last_cursor = None if steps is None else schedule.cursor(steps.stop)
        for epoch in epochs:
            begin, end = schedule.find(source.name, epoch * count), schedule.find(source.name, (epoch + 1) * count - 1)
            if begin is None or (last_cursor is not None and begin >= last_cursor):
                return
            if end is not None and end < first_cursor:
                continue
            if source.packing == "concat":
                pieces = list(self._windows(source, document, epoch))
                if not pieces and not self._shuffle:  # left out of this epoch, and so of every one
                    return
            else:
                pieces = list(self._slots(number, source, member, document, epoch))
            yield from sorted(self._given(source, epoch, pieces, first_cursor, last_cursor), key=lambda o: o[1:])

    def _given(
        self,
        source: Source,
        epoch: int,
        pieces: list[tuple[int, int, int]],
        first_cursor: int,
        last_cursor: int | None,
    ) -> Iterator[Occurrence]:
        """(sequence in the epoch, start, stop) -> where in the run, for those that are given to a rank."""
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

    def _slots(
        self, number: int, source: Source, member: int, document: int, epoch: int
    ) -> Iterator[tuple[int, int, int]]:
        """(sequence in the epoch, start, stop) of each piece of a document of a packed stream."""
        store, repeat = source.members[member].store, source.members[member].repeat
        runs = store.runs()
        size, position = _position(store, runs, document)
        rank_firsts = runs[:, 1] * repeat.numerator // repeat.denominator
        for rank in ranks_of(position, epoch, repeat.numerator, repeat.denominator):
            room = int(runs[int(np.searchsorted(rank_firsts, rank, side="right")) - 1, 0])
            for piece in range(-(-size // self._length)):
                length, slot = slot_of(source.classes, member, rank, piece, room)
                slot = self._before(slot, int(source.classes.counts[length]), "class", source.name, epoch, length)
                bin_number = self._index(number, epoch).bin_of(length, slot)
                i = self._before(bin_number, source.num_sequences, "sequence", source.name, epoch)
                yield i, piece * self._length, min((piece + 1) * self._length, size)

    def _windows(self, source: Source, document: int, epoch: int) -> Iterator[tuple[int, int, int]]:
        """(sequence in the epoch, start, stop) of each piece of a document under `concat`."""
        store, length = source.members[0].store, self._length
        total, count = store.num_tokens, source.num_sequences
        first, stop = (int(x) for x in store.boundaries()[document : document + 2])
        offset = circle_offset(total, base_key(self._seed, "offset", source.name), epoch) if self._shuffle else 0
        begin = (first - offset) % total  # on the circle; behind its joint the document goes on at 0
        for low, high in ((begin, min(begin + stop - first, total)), (0, max(begin + stop - first - total, 0))):
            for window in range(low // length, min(-(-high // length), count)):
                i = self._before(window, count, "sequence", source.name, epoch)
                here, there = max(low, window * length), min(high, (window + 1) * length)
                start = (here - begin) % total
                yield i, start, start + there - here


def _position(store: Store, runs: np.ndarray, document: int) -> tuple[int, int]:
    """(tokens, position by length) of a document."""
    start, stop = (int(x) for x in store.boundaries()[document : document + 2])
    run = int(np.searchsorted(runs[:, 0], stop - start))
    if run == len(runs):
        raise _misplaced(store, document)
    first = int(runs[run, 1])
    end = int(runs[run + 1, 1]) if run + 1 < len(runs) else len(store)
    position = first + int(np.searchsorted(store.length_index()[first:end], document))
    if runs[run, 0] != stop - start or position == end or store.length_index()[position] != document:
        raise _misplaced(store, document)
    return stop - start, position


def _misplaced(store: Store, document: int) -> CorruptionError:
    return CorruptionError(
        f"document {document}: expected to find it among those of its length, found others"
        f" ({store.file(LENGTH_INDEX_NAME)}, or {BOUNDARIES_NAME} beside it); run `tokenstore verify {store.path}`"
    )
