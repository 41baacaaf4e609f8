"""A bounded cache of blocks: brings the blocks that it is given, in that order, and forgets those that are dropped.

It decides nothing: which blocks come and go follows from the plan. Rows read their parts of a block when it is present, or as
soon as it arrives. Several processes with the same blocks fetch each one once; nobody depends on another process.
"""

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from time import monotonic, sleep

import numpy as np

from tokenstore.store.block_ranges import Block, Key
from tokenstore.store.files import renew_after_fork
from tokenstore.store.remote.block_files import BlockFiles
from tokenstore.store.remote.client import Wanted
from tokenstore.store.remote.group import BLOCK_THREADS, Group
from tokenstore.store.remote.mirror import PATIENCE, MirrorWarning
from tokenstore.store.remote.mirror_file import UnusableMirror
from tokenstore.store.workers import workers

PART_BYTES = 4 << 20  # of one request
_LOOK_EVERY = 0.02  # seconds
Fetch = Callable[[int, int, int, Wanted], np.ndarray]
Part = tuple[int, int, np.ndarray]  # file, first byte, uint8[n] to fill


class BlockCache:
    """The blocks of one source. Can be shared among threads.

    Attributes:
        is_usable: whether blocks can be kept. Otherwise each is fetched for those who wait for it, and forgotten.
    """

    def __init__(self, files: BlockFiles, fetch: Fetch):
        """fetch(file, start, stop, is_wanted) returns these bytes of a file, which are a range of a block, or raises."""
        self._files, self._fetch = files, fetch
        self._blocks: dict[Key, Block] = {}  # those that have a place
        self._late: set[Key] = set()  # dropped here, and still needed by another process
        self.is_usable, self._problem = True, ""
        self._renew()
        self._is_forked = False
        renew_after_fork(self, BlockCache._renew)

    def _renew(self) -> None:
        self._lock, self._is_forked = threading.RLock(), True
        # Blocks that are being fetched, and the parts that wait for them. A group that nobody holds any more does not wait
        self._coming: dict[Key, list[tuple[Sequence[Part], weakref.ref[Group]]]] = {}

    def clean(self, needed: Sequence[Block]) -> None:
        """Remove blocks that killed processes left, except `needed` and those that other processes need."""
        self._files.remove_leftovers({block.key for block in needed})

    def drop(self, start: int, stop: int | None, blocks: Sequence[Block]) -> None:
        """Forget blocks. What waits for them still gets it.

        Args:
            start, stop: from now on, this process needs the blocks that sequences in [start, stop) use. stop: None for all.
            blocks: the blocks.
        """
        self._files.need(start, stop)
        with self._lock:
            for block in blocks:
                self._blocks.pop(block.key, None)
            self._late |= {block.key for block in blocks}
            late, lost = list(self._late), list(self._blocks.values()) if self._is_forked else []
            self._is_forked = False
        gone = {key for key in late if self._files.remove(key)}
        with self._lock:
            self._late -= gone
        for block in lost:  # the threads that would have fetched them exist only in the parent
            self.bring(block)

    def bring(self, block: Block) -> None:
        """Give a block a place, and fetch it in a thread, after those before it."""
        with self._lock:
            self._blocks[block.key] = block
            self._late.discard(block.key)
        self._bring_later(block)

    def request(self, block: Block, parts: Sequence[Part], group: Group) -> bool:
        """Fill parts of a block that has a place: now if it is present, otherwise when it arrives; `group` gets a job then.

        Returns whether it was present.
        """
        if self._files.read(block.key, block.num_bytes, _places(block, parts)):
            return True
        group.add()
        self._bring_later(block, (parts, weakref.ref(group)))
        return False

    def is_present(self, block: Block) -> bool:
        """Whether a block is there."""
        return self._files.has(block.key, block.num_bytes)

    def close(self) -> None:
        """Bring no more blocks, except those that are waited for."""
        with self._lock:
            self._blocks.clear()

    def warn(self) -> None:
        """Warn once, if blocks cannot be kept. Not done by threads, where a warning has no reader."""
        with self._lock:
            problem, self._problem = self._problem, ""
        if problem:
            warnings.warn(f"cache: {problem}; rows are fetched from the bucket instead", MirrorWarning, stacklevel=2)

    # ---- threads

    def _bring_later(self, block: Block, waiting: tuple[Sequence[Part], "weakref.ref[Group]"] | None = None) -> None:
        with self._lock:
            is_new = block.key not in self._coming
            self._coming.setdefault(block.key, []).extend([] if waiting is None else [waiting])
        if is_new:
            _submit(weakref.ref(self), block, monotonic())

    def _is_wanted(self, key: Key) -> bool:
        if key in self._blocks and self.is_usable:
            return True
        return any(holder() is not None for _, holder in self._coming.get(key, ()))

    def fetch_block(self, block: Block, since: float) -> bool:
        """Make a block present and fill the parts that wait for it. False to try later: another process is fetching it."""
        key, error = block.key, None
        pieces: list[np.ndarray] | None = None
        try:
            if self._is_wanted(key) and not self.is_present(block):
                with self._files.claimed(key) as is_mine:
                    if not is_mine and monotonic() - since < PATIENCE:
                        return False
                    if not self.is_present(block):
                        pieces = [self._fetch_range(each, lambda: self._is_wanted(key)) for each in block.ranges]
                        self._keep(key, pieces)
        except UnusableMirror as problem:
            self._give_up(problem)
        except BaseException as problem:  # raised where the block is waited for
            error = problem
        with self._lock:
            waiting = self._coming.pop(key, [])
        for parts, holder in waiting:
            if (group := holder()) is not None:
                group.finish(error or self._fill(block, parts, pieces))
        return True

    def _keep(self, key: Key, pieces: list[np.ndarray]) -> None:
        if self.is_usable and key in self._blocks:
            self._files.write(key, pieces)
            if key not in self._blocks:  # dropped meanwhile
                self._files.remove(key)

    def _fetch_range(self, place: tuple[int, int, int], is_wanted: Wanted) -> np.ndarray:
        number, start, stop = place
        cuts = range(start, stop, PART_BYTES)
        parts = [self._fetch(number, at, min(at + PART_BYTES, stop), is_wanted) for at in cuts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _fill(self, block: Block, parts: Sequence[Part], pieces: list[np.ndarray] | None) -> BaseException | None:
        """Fill parts from a block that has arrived; returns the error.

        One that is gone again is fetched again as a whole, because its rows alone could not be verified.
        """
        try:
            if pieces is None and self._files.read(block.key, block.num_bytes, _places(block, parts)):
                return None
            pieces = pieces or [self._fetch_range(each, lambda: True) for each in block.ranges]
            whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            for at, out in _places(block, parts):
                out[:] = whole[at : at + len(out)]
        except BaseException as problem:
            return problem
        return None

    def _give_up(self, problem: UnusableMirror) -> None:
        with self._lock:
            self._problem = self._problem or (str(problem) if self.is_usable else "")
            self.is_usable = False


def _places(block: Block, parts: Sequence[Part]) -> list[tuple[int, np.ndarray]]:
    """(offset in the block, uint8[n]) of each part."""
    found = [(block.offset(number, start, start + len(out)), out) for number, start, out in parts]
    return [(at, out) for at, out in found if at is not None]


def _submit(holder: "weakref.ref[BlockCache]", block: Block, since: float) -> None:
    """Bring a block in a thread, unless the cache is gone."""

    def job() -> None:
        cache = holder()
        if cache is not None and not cache.fetch_block(block, since):
            del cache
            sleep(_LOOK_EVERY)
            _submit(holder, block, since)

    workers(BLOCK_THREADS).submit(job)
