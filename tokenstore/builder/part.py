"""A part: what one unit of work leaves on disk. The tokens of its documents, a row per document, and a summary.

A part is a folder named by its key, a hash of everything that decides the part's bytes:

    tokens, mask, names     of all documents, one after the other
    rows                    ROW[n], one per document
    bad                     the bad records, one JSON list per line
    summary.json            the key, counts, and the size and checksum of each file above

A part is written in a private folder and renamed into place when all its files are synced (making.py). So nobody can see half a
part, also if two processes make the same one, or if a process that was believed dead goes on writing. A part with another key,
or with a file of another size, does not count. So parts are reused or discarded without reading their tokens. Checksums are compared
when a part is read, so damage in a part is an error, and never a wrong token in the store.
"""

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np

from tokenstore.builder.documents.collect import SliceSummary
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.options import BuildOptions, InputIdentity
from tokenstore.builder.reading.checksums import block_hashes, checksum_of_blocks, hashes_bytes, new_hasher
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Slice, Unit, slice_bytes
from tokenstore.builder.split import HASH_WORDS, is_partition_name
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.format.manifest import canonical_json
from tokenstore.store.files import free_cached, read_bytes

FILES = ("tokens", "mask", "names", "metadata", "rows", "bad")
SUMMARY = "summary.json"
_BLOCK_DOCUMENTS, _BLOCK_TOKENS = 1 << 16, 1 << 22  # parts are read in blocks that exceed neither
_BLOCK_BYTES = 1 << 20  # of the other files
# A document in a part: tokens, record number within its slice, slice within the unit, bytes of its id and of its metadata, hash
# of its content, which of the part's partitions
ROW = np.dtype(
    [
        ("length", "<i8"),
        ("record", "<i8"),
        ("slice", "<i4"),
        ("name_bytes", "<i4"),
        ("metadata_bytes", "<i4"),
        ("content", "<u8", HASH_WORDS),
        ("partition", "<i4"),
    ]
)
_SUMMARY_BYTES, _SLICE_BYTES = (
    1 << 16,
    1 << 10,
)  # a summary is below the first plus the second per slice, without hashes
_MOST_SUMMARY = 1 << 28
_STALE_TRIES = 5  # network file systems report ESTALE for a file that another node has just renamed
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Block:
    """Some documents of a part.

    Attributes:
        rows: ROW[n], one per document.
        tokens: uint16 or uint32[sum of lengths], the tokens of all documents, one after the other.
        mask: bool[sum of lengths], which tokens are in the loss; None in a store without masks.
        names: the id of each document; "" where it has none.
        metadata: the metadata of each document, as JSON; b"" where it has none.
    """

    rows: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray | None
    names: list[str]
    metadata: list[bytes]

    def only(self, kept: np.ndarray) -> Self:
        """The documents for which `kept`, bool[n], is true."""
        if kept.all():
            return self
        tokens_kept = np.repeat(kept, self.rows["length"])
        mask = None if self.mask is None else self.mask[tokens_kept]
        names = list(compress(self.names, kept.tolist()))
        metadata = list(compress(self.metadata, kept.tolist()))
        return replace(
            self, rows=self.rows[kept], tokens=self.tokens[tokens_kept], mask=mask, names=names, metadata=metadata
        )


@dataclass(frozen=True)
class Part:
    """A finished part.

    Attributes:
        folder: where its files are.
        num_documents, num_tokens: of all its slices.
        sizes, checksums: bytes of each file, and their checksum, in the order of `FILES`.
        slices: a summary per slice of the unit that was read.
        partitions: the names of the partitions of its documents, in the order of their first documents.
        note: why the part was tokenized a second time; "" if it was not.
    """

    folder: Path
    num_documents: int
    num_tokens: int
    sizes: tuple[int, ...]
    checksums: tuple[str, ...]
    slices: tuple[SliceSummary, ...]
    partitions: tuple[str, ...] = ()
    note: str = ""

    @property
    def num_bad(self) -> int:
        """Bad records in all slices."""
        return sum(part.num_bad for part in self.slices)

    def blocks(self, dtype: np.dtype) -> Iterator[Block]:
        """All documents in order, in blocks of bounded size; `dtype` is that of the store's tokens.

        Raises:
            CorruptionError: the files do not fit together.
        """
        with contextlib.ExitStack() as stack:
            tokens, mask, names, metadata = (
                stack.enter_context(self._open(name)) for name in ("tokens", "mask", "names", "metadata")
            )
            hashers = {"tokens": new_hasher(), "mask": new_hasher()}

            def read(file: BinaryIO, name: str, kind: np.dtype, count: int) -> np.ndarray:
                found = np.fromfile(file, kind, count)
                hashers[name].update(found.data)
                return found

            with_masks = self.sizes[FILES.index("mask")] > 0
            for block in (block for rows in self.rows() for block in _cut(rows)):
                count = int(block["length"].sum())
                yield Block(
                    block,
                    read(tokens, "tokens", dtype, count),
                    read(mask, "mask", np.dtype(np.bool_), count) if with_masks else None,
                    [names.read(size).decode() if size else "" for size in block["name_bytes"].tolist()],
                    [metadata.read(size) for size in block["metadata_bytes"].tolist()],
                )
            for name, hasher in hashers.items():
                self._check(name, hasher.hexdigest())
            free_cached(tokens)  # no build reads them again, and the memory serves the next part

    def rows(self) -> Iterator[np.ndarray]:
        """The rows of all documents in order, in blocks of ROW[n]. CorruptionError if they were changed."""
        with self._open("rows") as rows:
            while (block := np.fromfile(rows, ROW, _BLOCK_DOCUMENTS)).size:
                yield block

    def bad(self) -> Iterator[tuple[int, int, str, str]]:
        """(slice, record number in it, reason, start of the record) of every bad record, in order."""
        with self._open("bad") as lines:
            yield from map(json.loads, lines)

    def _open(self, name: str) -> BinaryIO:
        """Open a file. All but tokens and mask, which are large, are read once for their checksum before anything is taken from them."""
        with contextlib.ExitStack() as opened:
            file = _retried(lambda: opened.enter_context(open(self.folder / name, "rb")))
            if name not in ("tokens", "mask"):
                hasher = new_hasher()
                while data := file.read(_BLOCK_BYTES):
                    hasher.update(data)
                self._check(name, hasher.hexdigest())
                file.seek(0)
            opened.pop_all()
            return file

    def _check(self, name: str, checksum: str) -> None:
        """CorruptionError if something else wrote to a file after the build did."""
        if checksum != self.checksums[FILES.index(name)]:
            raise CorruptionError(
                f"part: {self.folder / name} was changed after the build wrote it; remove {self.folder} and run the tasks"
                " or the build again, which make this part again"
            )


def _retried(read: Callable[[], _Found]) -> _Found:
    """`read()`, again if a network file system reports a stale handle."""
    for _ in range(_STALE_TRIES - 1):
        try:
            return read()
        except (OSError, TokenStoreError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not (isinstance(cause, OSError) and cause.errno == errno.ESTALE):
                raise
    return read()


def _cut(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Cut `rows` into blocks of at most _BLOCK_TOKENS tokens. A longer document is a block of its own."""
    ends = np.cumsum(rows["length"])
    first = 0
    while first < rows.size:
        done = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield rows[first:stop]
        first = stop


def part_key(
    unit: Unit, files: Sequence[InputFile], recipe: dict[str, Any], time_of_work: int, identity: InputIdentity = "time"
) -> str:
    """Hash of everything that decides a part's bytes: the recipe, and the name, size and identity of each input.

    `time_of_work` is that of `resume.time_of_work`. It cannot be known in advance, so nobody can prepare a part with this key.
    """
    slices = [
        [
            files[part.file_number].name,
            files[part.file_number].num_bytes,
            _stamp(part, files, identity),
            part.start,
            part.stop,
            files[part.file_number].partition,
        ]
        for part in unit
    ]
    return hashlib.sha256(canonical_json([recipe, slices, time_of_work]).encode()).hexdigest()


def _stamp(part: Slice, files: Sequence[InputFile], identity: InputIdentity) -> int | str | None:
    """What says whether an input is the same as before, besides its size."""
    file = files[part.file_number]
    if identity == "content":
        return checksum_of_blocks(
            block_hashes(file.path, part.start, file.num_bytes if part.stop is None else part.stop)
        )
    return file.modified_ns if identity == "time" else None


def load_part(folder: Path, key: str, unit: Unit, files: Sequence[InputFile] | Mapping[int, InputFile]) -> Part | None:
    """The finished part in `folder`; None if its key is not `key`, or a file is missing, has another size or is a link."""
    num_bytes = sum(slice_bytes(part, files[part.file_number]) for part in unit)
    most = _SUMMARY_BYTES + len(unit) * _SLICE_BYTES + 2 * hashes_bytes(num_bytes)  # in hex
    return _load(folder, key, most, FILES)


def load_emptied(folder: Path, key: str) -> Part | None:
    """A part whose documents are in a finished group, and of which only the summary and the bad records are left."""
    return _load(folder, key, _MOST_SUMMARY, ("bad",))


def _load(folder: Path, key: str, most: int, names: Sequence[str]) -> Part | None:
    try:
        summary = json.loads(_retried(lambda: read_bytes(folder / SUMMARY, most)))
        found = [_retried((folder / name).lstat) for name in names]
        sizes, checksums = tuple(summary.pop("sizes")), tuple(summary.pop("checksums"))
        if summary.pop("key", None) != key or not len(sizes) == len(checksums) == len(FILES):
            return None
        if [each.st_size for each in found] != [sizes[FILES.index(name)] for name in names]:
            return None
        slices = tuple(SliceSummary(*part) for part in summary.pop("slices"))
        partitions = tuple(summary.pop("partitions"))
        if not all(name == "" or is_partition_name(name) for name in partitions):
            return None
        part = Part(folder, slices=slices, sizes=sizes, checksums=checksums, partitions=partitions, **summary)
    except (TokenStoreError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return part if all(S_ISREG(each.st_mode) for each in found) else None


def part_bytes(num_documents: int, num_tokens: int, dtype: np.dtype, options: BuildOptions) -> int:
    """Bytes that parts with this many documents and tokens take on disk, without the documents' ids."""
    return num_tokens * (dtype.itemsize + has_masks(options)) + num_documents * ROW.itemsize
