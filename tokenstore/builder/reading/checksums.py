"""The checksum of an input's bytes: what tells an edited input from the one a store was made of.

A store records it in inputs.jsonl (FMT-4). When a command is run again, an input of the same name and size is the same if
its checksum is. Reading terabytes for that would take hours, so a large build keeps in its work folder what each input was
when its checksum was taken: size, inode, and times of the last change of its bytes and of the file itself. A user can set
the first time back, but not the second. Only where one of these is another are the bytes read.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tokenstore.builder.reading.inputs import InputFile
from tokenstore.errors import CorruptionError
from tokenstore.store.files import read_bytes
from tokenstore.store.work import Work
from tokenstore.store.writing import write_atomically

BLOCK = 4 << 20  # bytes; the checksum is that of the checksums of the blocks, so that parts of a file can be read apart
_CHEAP = 1 << 30  # bytes of inputs that are read again in about a second
_MAX_KNOWN_BYTES = 1 << 28
_PIECE = 1 << 20

Stamp = list[int]  # size, inode, time of change of the bytes and of the file, in nanoseconds


def block_hashes(path: Path, start: int, stop: int) -> bytes:
    """The checksums of the blocks of a file that begin in bytes [start, stop)."""
    found = []
    with open(path, "rb", buffering=0) as file:
        for first in range(-(-start // BLOCK) * BLOCK, stop, BLOCK):
            file.seek(first)
            hasher, left = xxhash.xxh3_128(), BLOCK
            while left and (data := file.read(min(left, _PIECE))):
                hasher.update(data)
                left -= len(data)
            found.append(hasher.digest())
    return b"".join(found)


def hashes_of(data: bytes) -> bytes:
    """The checksums of the blocks of a whole file."""
    return b"".join(xxhash.xxh3_128_digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def hashes_bytes(num_bytes: int) -> int:
    """At most so many bytes of checksums belong to so many bytes of an input; one block more where these begin inside one."""
    return (num_bytes // BLOCK + 2) * xxhash.xxh3_128().digest_size


def checksum_of_blocks(hashes: bytes) -> str:
    """The checksum of a file, from those of all its blocks."""
    return xxhash.xxh3_128_hexdigest(hashes)


def stamp_of(path: Path) -> Stamp:
    """What a file is now, without reading it."""
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


class KnownChecksums:
    """Checksums of inputs, from the work folder of a store where the files are what they were, else by reading them.

    What is kept there only saves time. The store is there when it is written, so a failure to write it is no failure.
    """

    def __init__(self, work: Work):
        self._path = work.inputs
        self._known: dict[str, list[Any]] = {}
        try:
            known = json.loads(read_bytes(self._path, _MAX_KNOWN_BYTES))
            if isinstance(known, dict):
                self._known = {path: each for path, each in known.items() if _is_known(each)}
        except (OSError, CorruptionError, ValueError, RecursionError):
            pass  # as if nothing were known

    def checksum(self, file: InputFile) -> str:
        """The checksum of an input as it is now."""
        before = stamp_of(file.path)
        stamp, checksum = self._known.get(str(file.path), (None, ""))
        if stamp == before:
            return checksum
        found = checksum_of_blocks(block_hashes(file.path, 0, before[0]))
        if stamp_of(file.path) == before:
            self._known[str(file.path)] = [before, found]
        return found

    def add(self, files: Sequence[InputFile], checksums: Sequence[str]) -> None:
        """Take over the checksums of inputs that were just read, except of those that changed since."""
        if not self._known and sum(file.num_bytes for file in files) < _CHEAP:
            return  # they would not be kept
        for file, checksum in zip(files, checksums, strict=True):
            with contextlib.suppress(OSError):  # removed since
                stamp = stamp_of(file.path)
                if (stamp[0], stamp[2]) == (file.num_bytes, file.modified_ns):
                    self._known[str(file.path)] = [stamp, checksum]

    def keep(self) -> None:
        """Keep what is known, where reading the inputs again would take long."""
        if sum(stamp[0] for stamp, _ in self._known.values()) >= _CHEAP:
            with contextlib.suppress(OSError):
                write_atomically(self._path, json.dumps(self._known).encode())


def _is_known(entry: object) -> bool:
    match entry:
        case [[int(), int(), int(), int()], str()]:
            return True
    return False


def changed(known: KnownChecksums, files: Iterable[InputFile], there: Mapping[str, str | None]) -> list[InputFile]:
    """The inputs whose bytes are not those of the checksum that a store records for their names."""
    recorded = ((file, there[file.name]) for file in files)
    return [file for file, checksum in recorded if checksum is not None and known.checksum(file) != checksum]
