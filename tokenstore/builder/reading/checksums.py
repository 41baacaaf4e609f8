"""Checksums of inputs, which show whether an input changed after the store was built.

A store records them in inputs.jsonl (FMT-4). When a command is repeated, inputs of the same name, size and checksum are the
same. Computing the checksums of terabytes would take hours. So a large build keeps in its work folder, for each input, what the
file system said when the checksum was computed: size, inode, modification time and inode change time. A user can set the
modification time, but not the inode change time. Only inputs for which one of the four differs are read again.
"""

import contextlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xxhash

from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.remote_inputs import InputPath, open_input
from tokenstore.errors import CorruptionError
from tokenstore.store.files import read_bytes
from tokenstore.store.work import Work
from tokenstore.store.writing import write_atomically

BLOCK = 4 << 20  # bytes. A file's checksum is that of its blocks' checksums, so that slices can be hashed separately
_CHEAP = 1 << 30  # inputs with fewer bytes in total are read again, which takes about a second
_MAX_KNOWN_BYTES = 1 << 28
_PIECE = 1 << 20

Stamp = list[int]  # size in bytes, inode, modification time and inode change time in nanoseconds


def new_hasher() -> Any:
    """A hasher of the kind that all checksums here are made with: xxh3-128."""
    return xxhash.xxh3_128()


def block_hashes(path: InputPath, start: int, stop: int) -> bytes:
    """The checksums, 16 bytes each, of the blocks of a file that begin in bytes [start, stop)."""
    found = []
    with open_input(path) as file:
        for first in range(-(-start // BLOCK) * BLOCK, stop, BLOCK):
            file.seek(first)
            hasher, left = xxhash.xxh3_128(), BLOCK
            while left and (data := file.read(min(left, _PIECE))):
                hasher.update(data)
                left -= len(data)
            found.append(hasher.digest())
    return b"".join(found)


class HashedInput(io.RawIOBase):
    """An input of `num_bytes` that is read, with checksums of its blocks that begin in bytes [start, stop).

    So it is read once for both.
    """

    def __init__(self, path: InputPath, num_bytes: int, start: int, stop: int):
        self._path, self._num_bytes, self._stop = path, num_bytes, stop
        self._raw = open_input(path)
        self._place = 0  # of the next byte to read
        self._next = -(-start // BLOCK) * BLOCK  # the first byte that is in no checksum yet
        self._hasher = new_hasher()
        self._digests: list[bytes] = []

    def digests(self) -> bytes:
        """The checksums, 16 bytes each. What was not read, or not in order, is read now, also if the file is closed."""
        if not self._is_done:
            with open_input(self._path) as raw:
                raw.seek(self._next)
                while not self._is_done and (data := raw.read(_PIECE)):
                    self._add(memoryview(data))
        return b"".join([*self._digests, self._hasher.digest()] if self._next % BLOCK else self._digests)

    @property
    def _is_done(self) -> bool:
        return self._next >= self._stop and (self._next % BLOCK == 0 or self._next >= self._num_bytes)

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into `buffer`; return how many, 0 at the end."""
        count = self._raw.readinto(buffer) or 0
        known = self._next - self._place
        self._place += count
        if 0 <= known < count:
            self._add(memoryview(buffer)[known:count])
        return count

    def _add(self, data: memoryview) -> None:
        while data and not self._is_done:
            part = data[: BLOCK - self._next % BLOCK]
            self._hasher.update(part)
            self._next += len(part)
            data = data[len(part) :]
            if self._next % BLOCK == 0:
                self._digests.append(self._hasher.digest())
                self._hasher = new_hasher()

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place in the file."""
        self._place = self._raw.seek(offset, whence)
        return self._place

    def close(self) -> None:
        """Close the file."""
        self._raw.close()
        super().close()


def hashes_of(data: bytes) -> bytes:
    """The checksums, 16 bytes each, of the blocks of a file with the content `data`."""
    return b"".join(xxhash.xxh3_128_digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def hashes_bytes(num_bytes: int) -> int:
    """An upper bound on the bytes of checksums for a slice of `num_bytes`, which may begin and end inside a block."""
    return (num_bytes // BLOCK + 2) * xxhash.xxh3_128().digest_size


def checksum_of_blocks(hashes: bytes) -> str:
    """The checksum of a file, in hex, from those of all its blocks."""
    return xxhash.xxh3_128_hexdigest(hashes)


def stamp_of(path: InputPath) -> Stamp:
    """The state of a file according to the file system, without reading it."""
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


class KnownChecksums:
    """Checksums of inputs: from the work folder of a store if the files did not change, else by reading them.

    The file in the work folder only saves time. It is written after the store is finished, so failing to write it is ignored.
    """

    def __init__(self, work: Work):
        self._path = work.inputs
        self._known: dict[str, list[Any]] = {}
        try:
            known = json.loads(read_bytes(self._path, _MAX_KNOWN_BYTES))
            if isinstance(known, dict):
                self._known = {path: each for path, each in known.items() if _is_known(each)}
        except (OSError, CorruptionError, ValueError, RecursionError):
            pass  # all inputs are read

    def checksum(self, file: InputFile) -> str:
        """The checksum of an input as it is now; OSError if it cannot be read."""
        before = stamp_of(file.path)
        stamp, checksum = self._known.get(str(file.path), (None, ""))
        if stamp == before:
            return checksum
        found = checksum_of_blocks(block_hashes(file.path, 0, before[0]))
        if stamp_of(file.path) == before:
            self._known[str(file.path)] = [before, found]
        return found

    def add(self, files: Sequence[InputFile], checksums: Sequence[str]) -> None:
        """Add checksums of inputs that were just read, except for inputs that changed since."""
        if not self._known and sum(file.num_bytes for file in files) < _CHEAP:
            return  # `keep` would not write them
        for file, checksum in zip(files, checksums, strict=True):
            with contextlib.suppress(OSError):  # the file was removed
                stamp = stamp_of(file.path)
                if (stamp[0], stamp[2]) == (file.num_bytes, file.modified_ns):
                    self._known[str(file.path)] = [stamp, checksum]

    def keep(self) -> None:
        """Write the checksums to the work folder, if reading the inputs again would take long."""
        if sum(stamp[0] for stamp, _ in self._known.values()) >= _CHEAP:
            with contextlib.suppress(OSError):
                write_atomically(self._path, json.dumps(self._known).encode())


def _is_known(entry: object) -> bool:
    match entry:
        case [[int(), int(), int(), int()], str()]:
            return True
    return False


def changed(known: KnownChecksums, files: Iterable[InputFile], there: Mapping[str, str | None]) -> list[InputFile]:
    """The inputs whose checksum differs from the one that a store records for their name in `there`, if it records one."""
    recorded = ((file, there[file.name]) for file in files)
    return [file for file, checksum in recorded if checksum is not None and known.checksum(file) != checksum]
