"""Detects that an open store was replaced or damaged (FMT-8).

A pin records the manifest and the identity of each file. A check costs one `stat` per file. Only a file whose identity has
changed is read, once, and its checksum compared with the manifest.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic

import numpy as np
import xxhash

from tokenstore.errors import CorruptionError, FormatError, TokenStoreError
from tokenstore.format.layout import MANIFEST_NAME, MASK_PREFIX, is_of_adoption, mask_of, version_of
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry
from tokenstore.store.adopted import check_unchanged
from tokenstore.store.files import Identity, check_sizes, identity_of, read_blocks
from tokenstore.store.find_manifest import read_manifest
from tokenstore.store.maps import map_array

# Checking mapped files again takes at most 1 % of the run time. Seconds between checks: at least, at most
_CHECK_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.01, 0.002, 0.2


class Pin:
    """One version of a store at a path. Files are numbered: first the shards, then their masks, then all others.

    Attributes:
        path: the store's directory.
        manifest: manifest of the opened version; it never changes.
        manifest_path: the file that contains that manifest now. It moves when the store grows (FMT-13).
    """

    def __init__(self, path: Path, version: int | None, check_sizes: bool, allow_links: Path | None):
        self.path = path
        self.manifest_path = path / MANIFEST_NAME
        self._check_sizes, self._allow_links = check_sizes, allow_links
        self.manifest, self._seen = self._read(version)
        shards, files = self.manifest.shards, self.manifest.files
        self._others = [name for name in files if not name.startswith(MASK_PREFIX)]
        self._num_paged = len(shards) * (2 if self.manifest.has_masks else 1)
        self._known = np.zeros((self._num_paged + len(self._others), 4), np.uint64)  # zeros: not recorded yet
        if check_sizes:
            self._known[:] = self._look_at(range(len(self._known)))
            self.check_manifest()  # the store may have been replaced while it was opened
            if self.manifest.is_adopted:
                found = [Identity(*row) for row in self._known[: len(shards)].tolist()]
                check_unchanged(path, self.manifest, found, allow_links)

    def _read(self, version: int | None) -> tuple[Manifest, Identity | None]:
        """The manifest of a version, and the identity of its file, taken before reading so that a later file is noticed."""
        while True:
            place, seen = self.manifest_path, self._seen_now()
            self.manifest_path, manifest = read_manifest(self.path, version, self._allow_links)
            if self.manifest_path == place:
                return manifest, seen

    @property
    def small_files(self) -> list[str]:
        """Names of the files that all versions share, except shards and masks: those of the tokenizer."""
        return [name for name in self._others if version_of(name) is None and not is_of_adoption(name)]

    def _seen_now(self) -> Identity | None:
        try:
            return identity_of(self.manifest_path, self._allow_links)
        except (TokenStoreError, ValueError):  # ValueError: a path with a zero byte
            return None  # reading it raises the error to report

    def number_of(self, name: str) -> int:
        """Number of a file that is neither a shard nor a mask, by its name in the manifest."""
        return self._num_paged + self._others.index(name)

    def mask_number(self, shard: int) -> int:
        """Number of the mask of a shard."""
        return len(self.manifest.shards) + shard

    def entry(self, number: int) -> tuple[str, FileEntry | ShardEntry]:
        """Name of a file, and its entry in the manifest (size and checksum)."""
        num_shards = len(self.manifest.shards)
        if number < num_shards:
            shard = self.manifest.shards[number]
            return shard.file, shard
        if number < self._num_paged:
            name = mask_of(self.manifest.shards[number - num_shards].file)
        else:
            name = self._others[number - self._num_paged]
        return name, self.manifest.files[name]

    def _look_at(self, numbers: Iterable[int]) -> list[Identity]:
        entries = map(self.entry, numbers)
        return check_sizes(self.path, ((name, entry.num_bytes) for name, entry in entries), self._allow_links)

    def map(self, number: int, dtype: np.dtype) -> np.ndarray:
        """All of a file as a read-only array.

        The file is mapped first and checked afterwards, so a replacement between the two is noticed.
        """
        name, entry = self.entry(number)
        while True:
            try:
                array, found = map_array(self.path / name, dtype, entry.num_bytes // dtype.itemsize, self._allow_links)
                if isinstance(entry, ShardEntry):
                    array = array[entry.first_byte // dtype.itemsize :]  # after the header of an adopted file
            finally:
                self.check_manifest()  # also if mapping failed: "the store was replaced" is the better message
            if not self._known[number].any():
                self._known[number] = found
            if [*found] == self._known[number].tolist():
                return array
            self.check_content(number)

    def check(self, numbers: Sequence[int]) -> None:
        """Check that the manifest and these files are still those that were opened.

        Raises:
            CorruptionError: names the file that was replaced, written to, truncated or removed.
        """
        self.check_manifest()
        for number, found, known in zip(numbers, self._look_at(numbers), self._known[numbers].tolist(), strict=True):
            if [*found] != known:
                self.check_content(number)

    def check_manifest(self) -> None:
        """CorruptionError if another store is at this path. A store that has grown or got a length index is the same store."""
        if self._seen_now() == self._seen:
            return
        try:
            manifest, seen = self._read(self.manifest.version)
        except FormatError as error:
            raise self._replaced(str(error)) from error
        if manifest.digest != self.manifest.digest:
            raise self._replaced(f"the digest {manifest.digest}")
        if self._check_sizes:
            self._look_at(range(len(self._known)))
        self._seen = seen  # last, so that an error is raised again at the next check

    def _replaced(self, found: str) -> CorruptionError:
        return CorruptionError(
            f"store: expected the digest {self.manifest.digest}, as when it was opened, found {found} ({self.path});"
            " it was replaced while in use: restore the old store, or open the new one and restart the run"
        )

    def check_content(self, number: int) -> None:
        """Read a file and compare its checksum with the manifest: an identical copy is accepted."""
        name, entry = self.entry(number)
        checksum = xxhash.xxh3_128()
        found = read_blocks(self.path / name, entry.num_bytes, checksum.update, self._allow_links)
        self.check_checksum(number, checksum.hexdigest())
        self._known[number] = found

    def check_checksum(self, number: int, found: str) -> None:
        """CorruptionError if a file that was read completely has another checksum than in the manifest."""
        name, entry = self.entry(number)
        if found != entry.checksum:
            self.check_manifest()  # "the store was replaced" is the better message
            raise CorruptionError(
                f"file: expected the checksum {entry.checksum}, found {found} ({self.path / name});"
                f" the file was damaged, or replaced while in use: run `tokenstore verify {self.path}`"
            )


class Pace:
    """Decides how often a reader checks the files that it has mapped."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether it is time for the next check."""
        return monotonic() >= self._next

    def checked(self, began: float) -> None:
        """Record a check that began at `began`, a time of `monotonic`."""
        now = monotonic()
        self._next = now + min(max((now - began) / _CHECK_SHARE, _LEAST_SECONDS), _MOST_SECONDS)
