"""Threads that fetch bytes of stores, from URLs and ahead from disks.

A blocking call of obstore costs less processor time than an asynchronous one and releases the GIL. So latency is hidden by
many threads. They are shared by all stores and loaders of a process, and take jobs in the order in which they were submitted.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic

from tokenstore.store.files import after_fork_in_child

_LAST_SECONDS = 20.0  # to wait at the end of the process for requests that are under way
Job = Callable[[], None]


class Workers:
    """A pool of daemon threads, started when they are needed. A job handles its own errors."""

    def __init__(self, most: int):
        self._most = most
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._unfinished = 0
        weakref.finalize(self, _stop, self._jobs, self._threads)

    def submit(self, job: Job) -> None:
        """Run `job` in a thread."""
        with self._lock:
            self._unfinished += 1
            self._jobs.put(job)
            if len(self._threads) < min(self._unfinished, self._most):
                thread = threading.Thread(target=self._work, name="tokenstore-worker", daemon=True)
                self._threads.append(thread)
                thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether all jobs have ended."""
        return not self._unfinished

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                with self._lock:
                    self._unfinished -= 1


def _stop(jobs: SimpleQueue[Job | None], threads: list[threading.Thread]) -> None:
    """Drop all waiting jobs and end the threads. A thread must not return from obstore while the interpreter is torn down."""
    _ending.set()
    while not jobs.empty():
        jobs.get()
    for _ in threads:
        jobs.put(None)
    end = monotonic() + _LAST_SECONDS
    for thread in threads:
        thread.join(max(end - monotonic(), 0))


_pools: dict[int, Workers] = {}
_lock = threading.Lock()
_ending = threading.Event()
_generation = 0


def wait_for_end(seconds: float) -> bool:
    """Wait until the process ends its threads, for at most `seconds`. Returns whether it does: then a job must end."""
    return _ending.wait(seconds)


def generation() -> int:
    """How many forks lead to this process: jobs of another generation have no threads here."""
    return _generation


def workers(most: int) -> Workers:
    """The pool of this process with this number of threads."""
    with _lock:
        if most not in _pools:
            _pools[most] = Workers(most)
        return _pools[most]


def are_idle() -> bool:
    """Whether all jobs of this process have ended."""
    return all(pool.is_idle for pool in list(_pools.values()))


def _forget() -> None:
    global _pools, _generation, _lock, _ending
    _pools, _lock = {}, threading.Lock()  # the threads exist only in the parent
    _ending = threading.Event()  # a thread of the parent may have held its lock
    _generation += 1


after_fork_in_child(_forget)
