"""Prefetching: reading the pages of later batches from the disk, and making batches ahead in a thread.

Neither changes the batches or the state, because both visit the places of the plan in order.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from tokenstore.batches.lane_rows import LaneRows
from tokenstore.store.files import major_faults

# Lengths, in batches, of the first and of the longest burst of readahead. While nothing comes from the disk, page faults are
# counted only every LOOK_EVERY batches: counting takes 0.4 us, a burst about 10 us per batch
FIRST_BURST, LONGEST_BURST, LOOK_EVERY = 8, 256, 16
# Near the end of a burst, the first row of PROBES batches is not read ahead. If it has to be waited for, the burst still pays.
# The test costs one page, not a batch
PROBES = 2
_ITEM, _END, _ERROR, _GONE = range(4)

T = TypeVar("T")


class PrefetchStopped(Exception):
    """The thread of a Prefetcher was stopped, or does not exist in this process because the process was forked."""


def check_ahead(name: str, batches: int) -> int:
    """`batches`, if it is a valid value of the argument `name`. Raises: ValueError: it is negative."""
    if batches < 0:
        raise ValueError(f"{name}: expected 0 or more microbatches, found {batches}")
    return batches


class Bursts:
    """Decides when to read ahead from the disk: in bursts, after a major page fault.

    A fault may mean that other pages are missing too, or it may mean nothing: a single reclaimed page of a store in memory
    causes one. So the first burst is short. A fault during a burst, or soon after it, starts another one of twice the
    length. After a longer time without faults, the next burst is short again.
    """

    def __init__(self, batches: int):
        """batches: how many microbatches ahead to read; 0 never reads ahead."""
        self._batches = batches
        self._faults = major_faults() if batches else 0
        self._length, self._quiet = FIRST_BURST, 0
        self._left = 2 if batches else 0  # start with a burst of one batch, as the first batch often has to wait
        self._num_asked = 0  # how many of the waiting microbatches have been read ahead
        self._rest = 0 if batches else sys.maxsize  # batches until faults are counted again

    def reach(self) -> int:
        """How many microbatches ahead to read now. Must be called once per batch."""
        if self._rest:
            self._rest -= 1
            return 0
        self._num_asked = max(self._num_asked - 1, 0)
        self._quiet += not self._left
        if (faults := major_faults()) > self._faults:
            soon = self._left or self._quiet <= self._length
            self._length = min(2 * self._length, LONGEST_BURST) if soon else FIRST_BURST
            self._faults, self._left, self._quiet = faults, self._length, 0
        elif self._left:
            self._left -= 1
        elif self._quiet >= self._length:
            self._rest = -(self._quiet + 1) % LOOK_EVERY
            self._quiet += self._rest
            self._num_asked = max(self._num_asked - self._rest, 0)
        return self._batches if self._left else 0

    def due(self, waiting: Sequence[tuple[Any, T]]) -> Iterator[tuple[T, int]]:
        """Yield the waiting microbatches to read ahead now: at most two per call, so that no batch is delayed by many.

        Each is yielded with the first row to read: 0, or 1 for a batch that tests whether the burst still pays.
        """
        first = self._num_asked
        self._num_asked = max(min(first + 2, len(waiting), self._batches + 1), first)
        probed = self._batches < self._left <= self._batches + PROBES  # early enough that a fault extends the burst
        for i in range(first, self._num_asked):
            yield waiting[i][1], int(probed)


class BlockReadahead:
    """Reads whole blocks of sources with lanes ahead, during bursts."""

    def __init__(self, open_blocks: Callable[[], LaneRows]):
        self._open, self._left = open_blocks, PROBES
        self._lanes: LaneRows | None = None

    def move_to(self, step: int) -> None:
        """A burst reads ahead before a batch of `step`. The burst at the start does not count: nothing has been waited for."""
        if self._left:
            self._left -= 1
            return
        if self._lanes is None:
            self._lanes = self._open()
        self._lanes.move_to(step)


class Prefetcher(Iterator[Any]):
    """Iterates over `items` in a thread, at most `most` of them ahead. The thread ends when this object is deleted.

    An error of the iterator is raised after the items that precede it. PrefetchStopped is raised if the thread no longer
    runs: after the last item or an error, after `close`, and in a forked process once the finished items are taken.
    """

    def __init__(self, items: Iterator[Any], most: int):
        self._ready: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._places: SimpleQueue[None] = SimpleQueue()  # an entry per item to make, and one more to end the thread
        self._ended = False
        closing = threading.Event()
        for _ in range(most):
            self._places.put(None)
        arguments = (
            items,
            self._places,
            self._ready,
            closing,
        )  # not self, so that deleting this object ends the thread
        self._thread = threading.Thread(target=_make, args=arguments, name="tokenstore-ahead", daemon=True)
        self.close = weakref.finalize(self, _close, self._thread, self._places, closing)  # also when the process ends
        self._thread.start()

    def __next__(self) -> Any:
        if self._ended or (not self._thread.is_alive() and self._ready.empty()):
            raise PrefetchStopped
        kind, value = self._ready.get()
        if kind == _ITEM:
            self._places.put(None)
            return value
        self._ended = True  # the thread may still be alive for a moment, but makes no more items
        if kind == _ERROR:
            raise value
        raise StopIteration if kind == _END else PrefetchStopped


def _make(
    items: Iterator[Any], places: SimpleQueue[None], ready: SimpleQueue[tuple[int, Any]], closing: threading.Event
) -> None:
    """Make an item for each entry of `places` and put it into `ready`; finally put how it ended."""
    end: tuple[int, Any] = (_GONE, None)
    try:
        while not (places.get() or closing.is_set()):
            ready.put((_ITEM, next(items)))
    except StopIteration:
        end = (_END, None)
    except BaseException as error:  # raised in the consumer's thread, whatever it is
        end = (_ERROR, error)
    ready.put(end)


def _close(thread: threading.Thread, places: SimpleQueue[None], closing: threading.Event) -> None:
    closing.set()
    places.put(None)
    mine = thread is threading.current_thread()  # the garbage collector runs in any thread
    if thread.is_alive() and not mine:
        thread.join()
