"""The mirror of a store: its token files in the cache folder, fetched block by block when they are needed, and kept.

Several processes share a mirror. A block is fetched by the process that claims it; the others wait for its mark, but only
for a limited time, and then fetch it themselves. So nobody depends on a process that died or stopped.
"""

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from time import monotonic, sleep

import numpy as np

from tokenstore.store.files import renew_after_fork
from tokenstore.store.remote.client import Wanted
from tokenstore.store.remote.group import BLOCK_THREADS, Group
from tokenstore.store.remote.mirror_file import MirrorFile, UnusableMirror
from tokenstore.store.remote.mirrors import MirrorFolder
from tokenstore.store.workers import workers

PATIENCE = 30.0  # seconds to leave a block to a process that has claimed it. The claim of a dead process ends at once
_LOOK_EVERY = 0.01  # seconds
Fetch = Callable[[int, int, int, Wanted], np.ndarray]


class MirrorWarning(UserWarning):
    """The cache cannot be used any more, for example because its disk is full. Tokens are fetched from the bucket instead."""


class Mirror:
    """The token files of a store in a cache folder. Can be shared among threads.

    Attributes:
        is_usable: whether blocks can be added. Otherwise those that are present are used.
    """

    def __init__(self, folder: MirrorFolder, files: Sequence[tuple[str, int, str]], block_bytes: int, fetch: Fetch):
        """Open the mirror. Its files are opened when they are first needed.

        Args:
            folder: where it is.
            files: (name, size in bytes, checksum) of each file.
            block_bytes: size of a block.
            fetch: fetch(file, start, stop, is_wanted) returns these bytes of a file, verified, as uint8[stop - start].
        """
        self._folder, self._files, self._block_bytes, self._fetch = folder, files, block_bytes, fetch
        self._opened: dict[int, MirrorFile] = {}
        self.is_usable, self._problem = folder.writable, ""
        self._is_complete = False
        self._renew()
        renew_after_fork(self, Mirror._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()
        # Blocks that are being fetched, and who waits for them. A group that nobody holds any more does not wait
        self._coming: dict[tuple[int, int], list[weakref.ref[Group]]] = {}

    def file(self, number: int) -> MirrorFile:
        """A file of the mirror. Raises: UnusableMirror: it cannot be opened or created."""
        with self._lock:
            if number not in self._opened:
                name, num_bytes, checksum = self._files[number]
                path = self._folder.file(name)
                self._opened[number] = MirrorFile(path, num_bytes, self._block_bytes, checksum)
            return self._opened[number]

    @property
    def is_complete(self) -> bool:
        """Whether every block of every file is present. Cheap once it is True."""
        if not self._is_complete and len(self._opened) == len(self._files):
            self._is_complete = all(self._opened[number].is_complete for number in range(len(self._files)))
        return self._is_complete

    def open_all(self) -> bool:
        """Open all files; returns whether the mirror is complete."""
        try:
            for number in range(len(self._files)):
                self.file(number)
        except UnusableMirror:
            return False
        return self.is_complete

    @property
    def num_coming(self) -> int:
        """Number of blocks that this process is fetching or will fetch."""
        return len(self._coming)

    def blocks_of(
        self, numbers: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The absent blocks of some ranges, whose files are open.

        Args:
            numbers: int64[n], a file for each range.
            starts, stops: int64[n], byte offsets, starts < stops.

        Returns:
            bool[n], whether the range is present; and (file, block), each once, in order of their first range.
        """
        present = np.ones(len(numbers), np.bool_)
        absent: dict[tuple[int, int], None] = {}
        first, last = starts // self._block_bytes, (stops - 1) // self._block_bytes
        for i, (number, low, high) in enumerate(zip(numbers.tolist(), first.tolist(), last.tolist(), strict=True)):
            marks = self._opened[number].marks
            for block in range(low, high + 1):
                if not marks[block]:
                    present[i] = False
                    absent[number, block] = None
        return present, list(absent)

    def spend(self, num_bytes: int, most: int) -> bool:
        """Whether exact ranges of `num_bytes` bytes may be fetched besides blocks, if all processes together fetch at most `most`."""
        try:
            return self.file(0).spend(num_bytes, most)
        except UnusableMirror:
            return False

    def want(self, number: int, block: int, group: Group) -> None:
        """Fetch an absent block in a thread; `group` gets a job that ends when the block is present."""
        group.add()
        with self._lock:
            waiting = self._coming.setdefault((number, block), [])
            waiting.append(weakref.ref(group))
            if len(waiting) > 1:
                return
        workers(BLOCK_THREADS).submit(lambda: self._bring(number, block))

    def _bring(self, number: int, block: int) -> None:
        """Make a block present, and report it to all who wait."""
        error: BaseException | None = None
        with self._lock:
            if not self._is_wanted(number, block):
                self._coming.pop((number, block), None)
                return
            num_waiting = len(self._coming[number, block])
        try:
            if self.is_usable:
                self._fill(number, block)
        except UnusableMirror as problem:
            self.give_up(problem)
        except BaseException as problem:  # raised where the block is waited for
            error = problem
        with self._lock:
            waiting = self._coming.pop((number, block))
            if error is not None and (late := waiting[num_waiting:]):  # who came late has attempts of their own
                self._coming[number, block], waiting = late, waiting[:num_waiting]
                workers(BLOCK_THREADS).submit(lambda: self._bring(number, block))
        for holder in waiting:
            if (group := holder()) is not None:
                group.finish(error)

    def _is_wanted(self, number: int, block: int) -> bool:
        """Whether anybody still waits for a block."""
        return any(holder() is not None for holder in self._coming.get((number, block), ()))

    def _fill(self, number: int, block: int) -> None:
        file = self.file(number)
        with file.claimed(block) as is_mine:
            end = monotonic() + (0 if is_mine else PATIENCE)
            while not file.marks[block] and monotonic() < end and self._is_wanted(number, block):
                sleep(_LOOK_EVERY)
            if file.marks[block]:
                return
            if not file.writable:
                raise UnusableMirror(f"cannot write {file.path}: it is read-only")
            start, stop = file.range_of(block)
            file.write(block, self._fetch(number, start, stop, lambda: self._is_wanted(number, block)).data)

    def give_up(self, problem: UnusableMirror) -> None:
        """Add no more blocks. Those that are present stay in use."""
        with self._lock:
            self._problem = self._problem or (str(problem) if self.is_usable else "")
            self.is_usable = False

    def warn(self) -> None:
        """Warn once, if the mirror has become unusable. Not done by threads, where a warning has no reader."""
        with self._lock:
            problem, self._problem = self._problem, ""
        if problem:
            warnings.warn(f"cache: {problem}; tokens are fetched from the bucket instead", MirrorWarning, stacklevel=2)
