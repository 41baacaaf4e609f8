"""Threads that make requests, and groups of jobs that are waited for together.

A blocking call of obstore costs less processor time than an asynchronous one and releases the GIL. So latency is hidden by
many threads. They are shared by all stores and loaders of a process, and take jobs in the order in which they were submitted.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic

from tokenstore.errors import RemoteError
from tokenstore.store.files import after_fork_in_child
from tokenstore.store.remote.client import stop_retrying

# Threads for small ranges: at 100 ms of latency, 1,280 requests per second. Threads for blocks: as many as a fast network needs;
# more would only delay the block that is needed first, and hold more memory
SPAN_THREADS, BLOCK_THREADS = 128, 32
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
                thread = threading.Thread(target=self._work, name="tokenstore-remote", daemon=True)
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
    stop_retrying()
    while not jobs.empty():
        jobs.get()
    for _ in threads:
        jobs.put(None)
    end = monotonic() + _LAST_SECONDS
    for thread in threads:
        thread.join(max(end - monotonic(), 0))


_pools: dict[int, Workers] = {}
_lock = threading.Lock()
_generation = 0


def generation() -> int:
    """How many forks lead to this process: jobs of another generation have no threads here."""
    return _generation


def workers(most: int = SPAN_THREADS) -> Workers:
    """The pool of this process with this number of threads."""
    with _lock:
        if most not in _pools:
            _pools[most] = Workers(most)
        return _pools[most]


def are_idle() -> bool:
    """Whether all jobs of this process have ended."""
    return all(pool.is_idle for pool in list(_pools.values()))


def _forget() -> None:
    global _pools, _generation, _lock
    _pools, _lock = {}, threading.Lock()  # the threads exist only in the parent
    _generation += 1


after_fork_in_child(_forget)


class Group:
    """Jobs that are waited for together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unfinished = 0
        self._error: BaseException | None = None

    def add(self, count: int = 1) -> None:
        """Expect `count` more calls of `finish`."""
        with self._changed:
            self._unfinished += count

    def finish(self, error: BaseException | None = None) -> None:
        """Report the end of a job."""
        with self._changed:
            self._unfinished -= 1
            self._error = self._error or error
            if self._error or not self._unfinished:
                self._changed.notify_all()

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return not self._unfinished or self._error is not None

    def wait(self, seconds: float) -> None:
        """Wait for all jobs.

        Raises:
            RemoteError: they have not ended after `seconds`.
            Exception: the first error of a job.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_ready, seconds):
                raise RemoteError(
                    f"object storage: {self._unfinished} requests have no answer after {seconds:.3g} s;"
                    " check the network and the endpoint, and start again from the last state"
                )
            if self._error is not None:
                raise self._error
