"""Comparisons of the fast engine with the reference: immediately, or on a thread, while the next batches are encoded."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

_GROUP_CHARS = 1 << 16  # compared in one call: the reference takes a third less time than for the samples of each batch


class Checks:
    """Samples of batches that are to be compared with the reference.

    Args:
        compare: called with texts and the ids that the fast engine gave for each; raises EngineMismatch if they differ.
    """

    def __init__(self, compare: Callable[[Sequence[str], Sequence[np.ndarray]], None]):
        self._compare = compare
        self._pool: ThreadPoolExecutor | None = None
        self._texts: list[str] = []
        self._found: list[np.ndarray] = []
        self._running: Future[None] | None = None

    def add(self, texts: Sequence[str], found: Sequence[np.ndarray]) -> None:
        """Compare some texts: now, or inside `aside` by `settle` at the latest."""
        if self._pool is None:
            self._compare(texts, found)
            return
        self._texts += texts
        self._found += [ids.copy() for ids in found]  # a view would keep the whole batch in memory
        if sum(map(len, self._texts)) >= _GROUP_CHARS:
            self.start()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Compare on a thread. Call `settle` before using the results: samples that are left over are discarded."""
        with ThreadPoolExecutor(1, "tokenstore-check") as self._pool:
            try:
                yield
            finally:
                self._texts, self._found, self._pool, self._running = [], [], None, None

    def start(self) -> None:
        """Begin to compare the samples added so far. Raises EngineMismatch if an earlier comparison found a difference."""
        self._wait()
        if self._pool is not None and self._texts:
            self._running = self._pool.submit(self._compare, self._texts, self._found)
            self._texts, self._found = [], []

    def settle(self) -> None:
        """Return when all samples have been compared. Raises EngineMismatch if one differs."""
        self.start()
        self._wait()

    def _wait(self) -> None:
        if self._running is not None:
            self._running.result()
            self._running = None
