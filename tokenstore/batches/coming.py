"""Coming: what a microbatch of stores at URLs waits for."""

from time import monotonic

import numpy as np

from tokenstore.store.remote.group import Group
from tokenstore.store.remote.mirror import Mirror
from tokenstore.store.remote.token_files import TokenFiles
from tokenstore.store.workers import generation


class Coming:
    """What a microbatch waits for. Its buffers exist as long as it does."""

    def __init__(self) -> None:
        self.group, self._generation = Group(), generation()
        self.is_needed = False
        self._buffers: list[np.ndarray] = []
        self._blocks: list[tuple[Mirror, int, int]] = []
        self._files: list[TokenFiles] = []

    def buffer(self, files: TokenFiles, num_bytes: int) -> np.ndarray:
        """A new buffer, uint8[num_bytes]."""
        self.is_needed = True
        self._files.append(files)
        self._buffers.append(np.empty(num_bytes, np.uint8))
        return self._buffers[-1]

    def want(self, files: TokenFiles, mirror: Mirror, number: int, block: int) -> None:
        """Wait for a block of a mirror too."""
        self.is_needed = True
        self._files.append(files)
        self._blocks.append((mirror, number, block))
        mirror.want(number, block, self.group)

    def wait(self) -> bool:
        """Wait until everything is there. False if the rows must be requested again: a block could not be kept, or this process
        was forked since.

        Raises:
            TokenStoreError: something cannot be read, or is damaged.
        """
        if self._generation != generation():
            return False
        if not self.group.is_ready:
            files, began = self._files[0], monotonic()
            files.traffic.waits += 1
            try:
                self.group.wait(2 * max(each.client.deadline for each in self._files))
            finally:
                files.traffic.wait_seconds += monotonic() - began
        else:
            self.group.wait(0)  # raises an error of a job
        is_whole = all(mirror.file(number).marks[block] for mirror, number, block in self._blocks)
        if not is_whole:
            for mirror in {mirror for mirror, _, _ in self._blocks}:
                mirror.warn()
        return is_whole
