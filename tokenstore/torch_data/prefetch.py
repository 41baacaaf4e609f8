"""Work ahead of the training loop: reading pages of the next batches from the disk, and making batches in a thread.

Neither changes the batches or the state: both visit the same places of the plan in the same order.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from tokenstore.store.files import major_faults

# Batches of a burst of readahead, the first and the longest; and how often to look where nothing came from the disk so far: a
# look costs 0.4 us, a burst about 10 us a batch
FIRST_BURST, LONGEST_BURST, LOOK_EVERY = 8, 256, 16
# To find out whether a burst still helps, one row of some batches near its end is not read ahead: the test costs one
# page, not a batch
PROBES = 2
_ITEM, _END, _ERROR, _GONE = range(4)

T = TypeVar("T")


class PrefetchStopped(Exception):
    """The thread that made the items has ended, or belongs to the process that this one was forked from."""


def check_ahead(name: str, batches: int) -> int:
    """A number of batches ahead: 0 or more."""
    if batches < 0:
        raise ValueError(f"{name}: expected a number of microbatches, 0 for none, found {batches}")
    return batches


class Bursts:
    """Decides when to read ahead from the disk: in bursts, after a batch had to wait for the disk.

    A wait for a page may mean that others are missing too, or that a single page of a store in memory was reclaimed. So
    the first burst is short. It grows as long as batches still wait, and if the next one follows soon, it is twice as
    long. After a time without waits it is short again.
    """

    def __init__(self, batches: int):
        """batches: how many microbatches ahead to read; 0: never."""
        self._batches = batches
        self._faults = major_faults() if batches else 0
        self._length, self._quiet = FIRST_BURST, 0
        self._left = 2 if batches else 0  # a burst of one batch: the first batch often has to wait
        self._num_asked = 0  # of the waiting microbatches, how many have been requested

    def reach(self) -> int:
        """How many microbatches ahead to read now. Called once per batch."""
        self._num_asked = max(self._num_asked - 1, 0)
        if not self._batches:
            return 0
        if not self._left:
            self._quiet += 1
            if self._quiet > self._length and self._quiet % LOOK_EVERY:
                return 0
        if (faults := major_faults()) > self._faults:
            soon = self._left or self._quiet <= self._length
            self._length = min(2 * self._length, LONGEST_BURST) if soon else FIRST_BURST
            self._faults, self._left, self._quiet = faults, self._length, 0
        elif self._left:
            self._left -= 1
        return self._batches if self._left else 0

    def due(self, waiting: Sequence[tuple[Any, T]]) -> Iterator[tuple[T, int]]:
        """The waiting microbatches to read now, at most two, so that the first batch does not wait for more.

        Each with the first row to read, which is 1 if the microbatch tests whether the burst still helps.
        """
        first = self._num_asked
        self._num_asked = max(min(first + 2, len(waiting), self._batches + 1), first)
        probed = self._batches < self._left <= self._batches + PROBES  # early enough to extend the burst
        for i in range(first, self._num_asked):
            yield waiting[i][1], int(probed)


class Prefetcher(Iterator[Any]):
    """The items of an iterator, at most `most` of them made ahead by a thread, which ends with this object.

    An error of the iterator is raised after the items before it. PrefetchStopped is raised if the thread no longer
    exists: after the end, after `close`, and in a forked process after the items that were ready.
    """

    def __init__(self, items: Iterator[Any], most: int):
        self._ready: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._places: SimpleQueue[None] = SimpleQueue()  # one per free place; one more ends the thread
        self._ended = False
        closing = threading.Event()
        for _ in range(most):
            self._places.put(None)
        arguments = (items, self._places, self._ready, closing)  # not self, so that it can be collected
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
        self._ended = True  # nothing follows, even if the thread has not ended yet
        if kind == _ERROR:
            raise value
        raise StopIteration if kind == _END else PrefetchStopped


def _make(
    items: Iterator[Any], places: SimpleQueue[None], ready: SimpleQueue[tuple[int, Any]], closing: threading.Event
) -> None:
    """Put each item into `ready` when there is a place for it, and finally how the iterator ended."""
    end: tuple[int, Any] = (_GONE, None)
    try:
        while not (places.get() or closing.is_set()):
            ready.put((_ITEM, next(items)))
    except StopIteration:
        end = (_END, None)
    except BaseException as error:  # the consumer raises it, whatever it is
        end = (_ERROR, error)
    ready.put(end)


def _close(thread: threading.Thread, places: SimpleQueue[None], closing: threading.Event) -> None:
    closing.set()
    places.put(None)
    mine = thread is threading.current_thread()  # the garbage collector may come by in any
    if thread.is_alive() and not mine:
        thread.join()
