"""Group: requests that are waited for together; and how many threads make requests."""

import threading

from tokenstore.errors import RemoteError

# Threads for small ranges: at 100 ms of latency, 1,280 requests per second. Threads for blocks: as many as a fast network needs;
# more would only delay the block that is needed first, and hold more memory
SPAN_THREADS, BLOCK_THREADS = 128, 32


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
