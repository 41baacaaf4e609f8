"""One unit -> one part: the tokens of its documents, a row per document, and a summary. Builds resume from finished parts.

A part is a set of files that share a stem. They are written and synced first; the summary (`.json`) is written last and
atomically. So:

    killed before the summary is renamed    the part does not count; the next run replaces its files
    killed after that                       the part is complete, also after a power failure, and is reused

The summary holds the part's key, a hash of everything that decides the part's bytes, and the size of each file. A part with
another key, or with a file of another size, does not count. So parts are reused or discarded without reading their tokens.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np

from tokenstore.builder.documents.collect import Batch, SliceSummary, UnitBatches
from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.documents.encode import Encoded, encode_documents, has_masks
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.checksums import hashes_bytes
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit, slice_bytes
from tokenstore.builder.split import HASH_WORDS
from tokenstore.errors import BuildError, CorruptionError, TokenStoreError
from tokenstore.format.manifest import canonical_json
from tokenstore.store.files import read_bytes
from tokenstore.store.writing import create_again, sync, write_atomically
from tokenstore.tokenizer import EngineMismatch, Tokenizer, reference_of
from tokenstore.tokenizer.checks import Checks

_BLOCK_DOCUMENTS, _BLOCK_TOKENS = 1 << 16, 1 << 22  # parts are read in blocks that exceed neither
# A document in a part: tokens, record number within its slice, slice within the unit, bytes of its id, hash of its content
ROW = np.dtype(
    [("length", "<i8"), ("record", "<i8"), ("slice", "<i4"), ("name_bytes", "<i4"), ("content", "<u8", HASH_WORDS)]
)
_SUMMARY_BYTES, _SLICE_BYTES = (
    1 << 16,
    1 << 10,
)  # a summary is below the first plus the second per slice, without hashes
_CONTENT = (".tokens", ".mask", ".names")
_ENDINGS = (*_CONTENT, ".rows", ".bad")


@dataclass(frozen=True)
class Block:
    """Some documents of a part.

    Attributes:
        rows: ROW[n], one per document.
        tokens: uint16 or uint32[sum of lengths], the tokens of all documents, one after the other.
        mask: bool[sum of lengths], which tokens are in the loss; None in a store without masks.
        names: the id of each document; "" where it has none.
    """

    rows: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray | None
    names: list[str]

    def only(self, kept: np.ndarray) -> "Block":
        """The documents for which `kept`, bool[n], is true."""
        if kept.all():
            return self
        tokens_kept = np.repeat(kept, self.rows["length"])
        mask = None if self.mask is None else self.mask[tokens_kept]
        names = [name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep]
        return Block(self.rows[kept], self.tokens[tokens_kept], mask, names)


@dataclass(frozen=True)
class Part:
    """A finished part.

    Attributes:
        stem: path of its files without their ending.
        num_documents, num_tokens: of all its slices.
        sizes: bytes of each file, in the order of `_ENDINGS`.
        slices: a summary per slice of the unit that was read.
        note: why the part was tokenized a second time; "" if it was not.
    """

    stem: Path
    num_documents: int
    num_tokens: int
    sizes: tuple[int, ...]
    slices: tuple[SliceSummary, ...]
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
            tokens, mask, names = (stack.enter_context(open(_file(self.stem, e), "rb")) for e in _CONTENT)
            with_masks = self.sizes[_ENDINGS.index(".mask")] > 0
            for block in (block for rows in self.rows() for block in _cut(rows)):
                count = int(block["length"].sum())
                found = np.fromfile(tokens, dtype, count)
                if found.size != count:
                    raise self._damaged(".tokens")
                yield Block(
                    block,
                    found,
                    np.fromfile(mask, np.bool_, count) if with_masks else None,
                    [names.read(size).decode() if size else "" for size in block["name_bytes"].tolist()],
                )

    def rows(self) -> Iterator[np.ndarray]:
        """The rows of all documents in order, in blocks of ROW[n]; raises CorruptionError for impossible values."""
        with open(_file(self.stem, ".rows"), "rb") as rows:
            while (block := np.fromfile(rows, ROW, _BLOCK_DOCUMENTS)).size:
                least = min(block["length"].min() - 1, block["name_bytes"].min(), block["slice"].min())
                if least < 0 or block["slice"].max() >= len(self.slices):
                    raise self._damaged(".rows")
                yield block

    def bad(self) -> Iterator[tuple[int, int, str, str]]:
        """(slice, record number in it, reason, start of the record) of every bad record, in order."""
        with open(_file(self.stem, ".bad"), encoding="utf-8") as lines:
            try:
                for place, number, reason, start in map(json.loads, lines):
                    if not (0 <= place < len(self.slices) and isinstance(number, int)):
                        raise ValueError
                    yield place, number, reason, start
            except (ValueError, TypeError, RecursionError) as error:
                raise self._damaged(".bad") from error

    def _damaged(self, ending: str) -> CorruptionError:
        """The error for contents that do not fit the summary: something else wrote to the file after the build did."""
        path = _file(self.stem, ending)
        return CorruptionError(
            f"part: {path} was changed after the build wrote it; remove {path.parent.parent} and run the same command again"
        )


def _cut(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Cut `rows` into blocks of at most _BLOCK_TOKENS tokens. A longer document is a block of its own."""
    ends = np.cumsum(rows["length"])
    first = 0
    while first < rows.size:
        done = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield rows[first:stop]
        first = stop


def part_key(unit: Unit, files: Sequence[InputFile], recipe: dict[str, Any], time_of_work: int) -> str:
    """Hash of everything that decides a part's bytes: the recipe, and the name, size and modification time of each input.

    `time_of_work` is that of `resume.time_of_work`. It cannot be known in advance, so nobody can prepare a part with this key.
    """
    slices = [
        [(file := files[part.file_number]).name, file.num_bytes, file.modified_ns, part.start, part.stop]
        for part in unit
    ]
    return hashlib.sha256(canonical_json([recipe, slices, time_of_work]).encode()).hexdigest()


def load_part(stem: Path, key: str, unit: Unit, files: Sequence[InputFile]) -> Part | None:
    """The finished part at `stem`; None if its key is not `key`, or a file is missing, has another size or is a link."""
    num_bytes = sum(slice_bytes(part, files[part.file_number]) for part in unit)
    most = _SUMMARY_BYTES + len(unit) * _SLICE_BYTES + 2 * hashes_bytes(num_bytes)  # in hex
    try:
        summary = json.loads(read_bytes(_file(stem, ".json"), most))
        found = [_file(stem, ending).lstat() for ending in _ENDINGS]
        sizes = tuple(each.st_size for each in found)
        if summary.pop("key", None) != key or tuple(summary.pop("sizes")) != sizes:
            return None
        slices = tuple(SliceSummary(*part) for part in summary.pop("slices"))
        part = Part(stem, slices=slices, sizes=sizes, **summary)
    except (TokenStoreError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return part if all(S_ISREG(each.st_mode) for each in found) else None


def make_part(
    stem: Path,
    key: str,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    reader: DocumentReader,
    report: Callable[[int, int, int], None],
) -> Part:
    """Tokenize `unit` into the files of a part.

    If the fast engine and the reference tokenizer differ on any sample, the whole unit is tokenized again with the reference.
    If the unit alone has more bad records than allowed, this stops early and writes no summary: the part then holds the bad
    records, so that they can be reported, but is not reused.

    Args:
        stem: path of the part's files without ending.
        key: from `part_key`.
        unit: the slices to read.
        files: the inputs of the unit, by number.
        tokenizer: see `Tokenizer`.
        reader: makes documents of records.
        report: called with (bytes, documents, tokens) done since the last call; negative to take them back.

    Raises:
        BuildError: an input changed or is damaged, or a token is outside the vocabulary.
        OSError: the disk is full or fails.
    """
    reported = np.zeros(3, np.int64)

    def report_and_add(*amounts: int) -> None:
        reported[:] += amounts
        report(*amounts)

    try:
        part = _make(stem, unit, files, tokenizer, reader, report_and_add, "")
    except EngineMismatch as error:
        report(*(-reported).tolist())
        note = f"{tokenizer.engine} was not used for a part of {_names(unit, files)}: {error}"
        part = _make(stem, unit, files, reference_of(tokenizer), reader, report, note)
    if part.num_bad <= reader.options.max_bad:
        summary = {"key": key, **vars(part), "slices": [list(vars(done).values()) for done in part.slices]}
        del summary["stem"]
        write_atomically(_file(stem, ".json"), json.dumps(summary).encode())
    return part


def _names(unit: Unit, files: Mapping[int, InputFile]) -> str:
    return files[unit[0].file_number].name + (f" and {len(unit) - 1} more inputs" if len(unit) > 1 else "")


def _make(
    stem: Path,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    reader: DocumentReader,
    report: Callable[[int, int, int], None],
    note: str,
) -> Part:
    num_tokens = 0
    checks: Checks | None = getattr(tokenizer, "checks", None)  # of the fast engine
    with contextlib.ExitStack() as stack:
        if checks:
            stack.enter_context(checks.aside())
        out = {ending: stack.enter_context(create_again(_file(stem, ending))) for ending in _ENDINGS}
        batches = UnitBatches(unit, files, reader, out[".bad"], _check_unchanged)
        for batch in batches:
            if batch.starts_source:
                getattr(tokenizer, "start_source", lambda: None)()
            encoded = encode_documents(batch.documents, tokenizer, reader.options)
            _write(out, encoded, batch)
            batches.count(batch, encoded)
            num_tokens += encoded.tokens.size
            report(batch.num_bytes, encoded.lengths.size, encoded.tokens.size)
        if checks:
            checks.start()
        sizes = tuple(file.tell() for file in out.values())
        for file, size in zip(out.values(), sizes, strict=True):
            if size:  # a part whose empty file is lost with the power does not count, and is made again
                sync(file)
        if checks:
            checks.settle()
    slices = batches.summaries()
    num_documents = sum(part.num_documents for part in slices)
    return Part(stem, num_documents, num_tokens, sizes, slices, note)


def _write(out: Mapping[str, BinaryIO], encoded: Encoded, batch: Batch) -> None:
    """Append a batch to a part's files.

    Not with `ndarray.tofile`: on a full disk it can lose the last few kilobytes without an error.
    """
    kept = [batch.documents[i] for i in encoded.kept.tolist()]
    names = [document.name.encode() for document in kept]
    rows = np.zeros(encoded.lengths.size, ROW)
    rows["length"] = encoded.lengths
    rows["record"] = np.asarray(batch.records, np.int64)[encoded.kept]
    rows["slice"] = np.asarray(batch.slices, np.int32)[encoded.kept]
    rows["name_bytes"] = [len(name) for name in names]
    rows["content"] = np.array([document.content for document in kept], np.uint64).reshape(-1, HASH_WORDS)
    out[".tokens"].write(encoded.tokens.data)
    out[".rows"].write(rows.data)
    out[".names"].write(b"".join(names))
    if encoded.mask is not None:
        out[".mask"].write(encoded.mask.data)


def _check_unchanged(file: InputFile) -> None:
    """BuildError if `file` changed since the build began: what was read may be neither its old nor its new content."""
    try:
        now = file.path.stat()
    except OSError as error:
        raise BuildError(
            f"input: {file.path} became unreadable during the build ({error.strerror}); restore it and run the same command again"
        ) from error
    if (now.st_size, now.st_mtime_ns) != (file.num_bytes, file.modified_ns):
        raise BuildError(
            f"input: {file.path} changed during the build; run the same command again when the file is complete"
        )


def _file(stem: Path, ending: str) -> Path:
    return stem.with_suffix(ending)


def part_bytes(num_documents: int, num_tokens: int, dtype: np.dtype, options: BuildOptions) -> int:
    """Bytes that parts with this many documents and tokens take on disk, without the documents' ids."""
    return num_tokens * (dtype.itemsize + has_masks(options)) + num_documents * ROW.itemsize
