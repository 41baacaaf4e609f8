"""One unit -> one part: its documents' tokens and a row for each, and a summary written last, which makes the part count.

A part's key hashes all that decides its bytes, and when and where the work began, so a part found on disk can be trusted or
thrown away without looking inside. Parts are what a killed build resumes from.
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

_BLOCK_DOCUMENTS, _BLOCK_TOKENS = 1 << 16, 1 << 22  # of a part read at once, whichever is less
# What a part holds of a document: tokens, record number in the slice, slice of the unit, bytes of its id, hash of its content
ROW = np.dtype(
    [("length", "<i8"), ("record", "<i8"), ("slice", "<i4"), ("name_bytes", "<i4"), ("content", "<u8", HASH_WORDS)]
)
_SUMMARY_BYTES, _SLICE_BYTES = (
    1 << 16,
    1 << 10,
)  # a summary is shorter than this, and as much per slice, less its hashes
_CONTENT = (".tokens", ".mask", ".names")
_ENDINGS = (*_CONTENT, ".rows", ".bad")


@dataclass(frozen=True)
class Block:
    """Some documents of a part: `rows` (ROW[n]), `tokens` and `mask` (bool, None without) of all, names one by one."""

    rows: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray | None
    names: list[str]

    def only(self, kept: np.ndarray) -> "Block":
        """The documents where `kept`, bool[n], is true."""
        if kept.all():
            return self
        tokens_kept = np.repeat(kept, self.rows["length"])
        mask = None if self.mask is None else self.mask[tokens_kept]
        names = [name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep]
        return Block(self.rows[kept], self.tokens[tokens_kept], mask, names)


@dataclass(frozen=True)
class Part:
    """A finished part: where its files are, their sizes, and its summary. `note` says why its tokens were made twice."""

    stem: Path
    num_documents: int
    num_tokens: int
    sizes: tuple[int, ...]
    slices: tuple[SliceSummary, ...]
    note: str = ""

    @property
    def num_bad(self) -> int:
        return sum(part.num_bad for part in self.slices)

    def blocks(self, dtype: np.dtype) -> Iterator[Block]:
        """All documents in order, in blocks of bounded size."""
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
        """What is held of all documents in order, ROW[n], in blocks."""
        with open(_file(self.stem, ".rows"), "rb") as rows:
            while (block := np.fromfile(rows, ROW, _BLOCK_DOCUMENTS)).size:
                least = min(block["length"].min() - 1, block["name_bytes"].min(), block["slice"].min())
                if least < 0 or block["slice"].max() >= len(self.slices):
                    raise self._damaged(".rows")
                yield block

    def bad(self) -> Iterator[tuple[int, int, str, str]]:
        """(slice, number in it, reason, how it begins) of every bad record."""
        with open(_file(self.stem, ".bad"), encoding="utf-8") as lines:
            try:
                for place, number, reason, start in map(json.loads, lines):
                    if not (0 <= place < len(self.slices) and isinstance(number, int)):
                        raise ValueError
                    yield place, number, reason, start
            except (ValueError, TypeError, RecursionError) as error:
                raise self._damaged(".bad") from error

    def _damaged(self, ending: str) -> CorruptionError:
        """What only a change from outside can cause: the summary fits."""
        path = _file(self.stem, ending)
        return CorruptionError(
            f"part: expected what a build wrote, found something else ({path}); remove {path.parent.parent} and run the"
            " same command again"
        )


def _cut(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Cut rows where their tokens become too many; a document alone may be more."""
    ends = np.cumsum(rows["length"])
    first = 0
    while first < rows.size:
        done = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield rows[first:stop]
        first = stop


def part_key(unit: Unit, files: Sequence[InputFile], recipe: dict[str, Any], time_of_work: int) -> str:
    """Hash of what decides a part's bytes: the recipe, and name, size and time of change of each input.

    `time_of_work` is as in `resume`: nobody knows it beforehand, so nobody else can have made a part with this key.
    """
    slices = [
        [(file := files[part.file_number]).name, file.num_bytes, file.modified_ns, part.start, part.stop]
        for part in unit
    ]
    return hashlib.sha256(canonical_json([recipe, slices, time_of_work]).encode()).hexdigest()


def load_part(stem: Path, key: str, unit: Unit, files: Sequence[InputFile]) -> Part | None:
    """The finished part of `unit` at `stem`, if there is one made from the same (`key`), and none of its files was cut since."""
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
    """Tokenize `unit` into a part; `report` hears of (bytes, documents, tokens) as they are done.

    Stops early, without a part that counts, as soon as the unit alone has more bad records than allowed. Where a fast
    engine and its reference differ, all of the unit is done again by the reference.
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
    with contextlib.ExitStack() as stack:
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
        for file in out.values():
            sync(file)
        sizes = tuple(file.tell() for file in out.values())
    slices = batches.summaries()
    num_documents = sum(part.num_documents for part in slices)
    return Part(stem, num_documents, num_tokens, sizes, slices, note)


def _write(out: Mapping[str, BinaryIO], encoded: Encoded, batch: Batch) -> None:
    """Append a batch to a part's files; never by tofile, which does not notice when its last few kilobytes are lost."""
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
    """A file that is written to while it is read gives neither its old nor its new documents."""
    try:
        now = file.path.stat()
    except OSError as error:
        raise BuildError(
            f"input: expected it to stay, found {error.strerror} ({file.path}); put it back and run the same command again"
        ) from error
    if (now.st_size, now.st_mtime_ns) != (file.num_bytes, file.modified_ns):
        raise BuildError(
            f"input: expected it to stay as it was, found it changed during the build ({file.path});"
            " run the same command again when it is finished"
        )


def _file(stem: Path, ending: str) -> Path:
    return stem.with_suffix(ending)


def part_bytes(num_documents: int, num_tokens: int, dtype: np.dtype, options: BuildOptions) -> int:
    """Size of the files of parts that hold so much, names apart."""
    return num_tokens * (dtype.itemsize + has_masks(options)) + num_documents * ROW.itemsize
