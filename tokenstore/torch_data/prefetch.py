"""What a loader does before it is asked: calls for the pages of coming batches, and makes batches in a thread of its own.

Neither changes what is given or what the state says: both go through the same places of the plan in the same order.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.store.files import major_faults

# Batches: calling costs about what a warm batch costs, so it ends where nothing comes from the disk. To find out, some batches
# go with one row not called for: one page to wait for now and then, not a batch of them
_KEEP_CALLING, _PROBES = 256, 2
_LOOK_EVERY = 16  # batches, where nothing came from the disk so far: a look costs a microsecond
_ITEM, _END, _ERROR, _GONE = range(4)


class PrefetchStopped(Exception):
    """The thread that made the items was ended, or stayed behind in the process that this one was forked from."""


def check_ahead(name: str, batches: int) -> int:
    """A number of batches ahead: 0 or more."""
    if batches < 0:
        raise ValueError(f"{name}: expected a number of microbatches, 0 for none, found {batches}")
    return batches


def with_prefetched_pages(
    located: Iterator[tuple[Any, np.ndarray]], call_for: Callable[[np.ndarray], None], batches: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """The items (place, rows) of `located`, with the tokens of those up to `batches` ahead called for from the disk.

    It goes on for a while after anything had to be waited for. What is damaged is found when its batch is made, not before.
    """
    waiting: deque[tuple[Any, np.ndarray]] = deque()
    left, waits = 1, major_faults()
    while True:
        if (left or not waiting) and (now := major_faults()) > waits:
            left, waits = _KEEP_CALLING, now
        if left:
            left -= 1
            for item in islice(located, min(batches + 1 - len(waiting), 2)):  # by two: no long wait before the first
                probed = batches < left <= batches + _PROBES  # far enough from the end to hear of it
                with suppress(TokenStoreError):
                    call_for(item[1][probed:])
                waiting.append(item)
        elif not waiting:
            waiting.extend(islice(located, _LOOK_EVERY))
        if not waiting:
            return
        yield waiting.popleft()


class Prefetcher(Iterator[Any]):
    """The items of an iterator, at most `most` of them made ahead by a thread, which ends with this object.

    An error of the iterator is raised behind the items before it. PrefetchStopped is raised where the thread is no more: behind
    the end, after `close`, and in a forked process, once the items it had made are taken.
    """

    def __init__(self, items: Iterator[Any], most: int):
        self._ready: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._places: SimpleQueue[None] = SimpleQueue()  # one a free place, and one more to wake the thread to its end
        self._ended = False
        closing = threading.Event()
        for _ in range(most):
            self._places.put(None)
        arguments = (items, self._places, self._ready, closing)  # not self: who forgets this object ends the thread
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
        self._ended = True  # nothing comes behind it, though the thread may take its time to go
        if kind == _ERROR:
            raise value
        raise StopIteration if kind == _END else PrefetchStopped


def _make(
    items: Iterator[Any], places: SimpleQueue[None], ready: SimpleQueue[tuple[int, Any]], closing: threading.Event
) -> None:
    """Put each item into `ready` when there is a place for it; last, how it ended."""
    end: tuple[int, Any] = (_GONE, None)
    try:
        while not (places.get() or closing.is_set()):
            ready.put((_ITEM, next(items)))
    except StopIteration:
        end = (_END, None)
    except BaseException as error:  # whatever it is, it is the consumer's to see
        end = (_ERROR, error)
    ready.put(end)


def _close(thread: threading.Thread, places: SimpleQueue[None], closing: threading.Event) -> None:
    closing.set()
    places.put(None)
    mine = thread is threading.current_thread()  # the garbage collector may come by in any
    if thread.is_alive() and not mine:
        thread.join()
