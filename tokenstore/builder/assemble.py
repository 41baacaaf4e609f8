"""Parts in order -> stores: one per split, without duplicates if asked for, with counts for every input file."""

import contextlib
import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenstore.builder.dedup import first_occurrences
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import Block, Part
from tokenstore.builder.placed import PLACED, Placed
from tokenstore.builder.reading.checksums import checksum_of_blocks
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Slice, Unit
from tokenstore.builder.shuffle import Shuffler, keys_of
from tokenstore.builder.split import split_numbers
from tokenstore.builder.stores import PARTITION_BUFFER_BYTES, Place, Writers, splits_of
from tokenstore.errors import BadRecordsError, BuildError
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.format.manifest import Manifest
from tokenstore.store.document_files import Columns
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import make_folders

# Why a record gives no document
DROPPED = ("empty", "filtered", "not sampled", "short", "long", "duplicates", "bad")


class Tally:
    """Counts what the parts hold, by input file, and writes the list of bad records.

    Attributes:
        files: the inputs, in order.
        lines: int64[files], lines or rows.
        documents: for each store int64[files], documents written.
        dropped: int64[len(DROPPED), files], records without a document, by reason.
        checksums: of each input's bytes, in hex; "" for one that was not read to its end.
        num_bad: bad records so far.
        first_bad: the first bad record, as it is in the list; {} if there is none.
    """

    def __init__(self, files: Sequence[InputFile], rejects: BinaryIO):
        self.files = files
        self.lines = np.zeros(len(files), np.int64)
        self.documents: dict[int, np.ndarray] = {}
        self.dropped = np.zeros((len(DROPPED), len(files)), np.int64)
        self.checksums = [""] * len(files)
        self._hashes: tuple[int, bytearray] = (
            0,
            bytearray(),
        )  # the current file's number and its blocks' checksums so far
        self.num_bad = 0
        self.first_bad: dict[str, Any] = {}
        self._rejects = rejects

    def add(self, unit: Unit, part: Part) -> None:
        """Count a part. Called after its documents are written, as `lines` must say until then how many precede it."""
        for place, number, reason, start in part.bad():
            file = unit[place].file_number
            bad = {
                "file": self.files[file].name,
                "record": int(self.lines[file]) + number,
                "reason": reason,
                "start": start,
            }
            self.first_bad = self.first_bad or bad
            self._rejects.write(json.dumps(bad).encode() + b"\n")
        for piece, summary in zip(unit, part.slices, strict=False):  # a part that stopped early has fewer slices
            self.lines[piece.file_number] += summary.num_lines
            self._add_hashes(piece, bytes.fromhex(summary.hashes))
            for reason, number in {**summary.dropped, "bad": summary.num_bad}.items():
                self.dropped[DROPPED.index(reason), piece.file_number] += number
        self.num_bad += part.num_bad

    def _add_hashes(self, piece: Slice, hashes: bytes) -> None:
        """Add checksums of a file's blocks. The slices of a file are consecutive, so one file's are held at a time."""
        number = piece.file_number
        if number != self._hashes[0]:
            self._hashes = number, bytearray()
        self._hashes[1].extend(hashes)
        if piece.stop is None or piece.stop >= self.files[number].num_bytes:
            self.checksums[number] = checksum_of_blocks(bytes(self._hashes[1]))

    def count(self, store: int, files: np.ndarray) -> None:
        """Count documents written to a store: `files`, int64[n], are their inputs."""
        np.add.at(self.of(store), files, 1)

    def of(self, store: int) -> np.ndarray:
        """int64[files], documents written to a store."""
        if store not in self.documents:
            self.documents[store] = np.zeros(len(self.files), np.int64)
        return self.documents[store]

    def counts(self, store: int) -> dict[str, int]:
        """Totals for the manifest of a store. Records without a document are counted over all splits."""
        dropped = dict(zip(DROPPED, self.dropped.sum(axis=1).tolist(), strict=True))
        return {"input files": len(self.files), "documents": int(self.of(store).sum()), **dropped}

    def inputs_file(self, store: int) -> Iterator[bytes]:
        """The lines of inputs.jsonl (FMT-4), one per input file."""
        documents = self.of(store)
        for i, file in enumerate(self.files):
            dropped = dict(zip(DROPPED, self.dropped[:, i].tolist(), strict=True))
            row = InputRow(file.name, int(documents[i]), file.num_bytes, self.checksums[i] or None)
            yield encode_row(row, {"lines": int(self.lines[i]), **dropped})


def assemble(
    parts: Iterable[Part],
    units: Sequence[Unit],
    tally: Tally,
    writers: Writers,
    dtype: np.dtype,
    scratch: Path | None,
    first: np.ndarray | None = None,
    before: Sequence[np.ndarray] = (),
) -> None:
    """Write the documents of `parts` to their stores: in the order of the inputs, or shuffled.

    Args:
        parts: of all units, in order. They may be made while they are consumed.
        units: the unit of each part.
        tally: counts what the parts hold.
        writers: of the stores.
        dtype: of the tokens.
        scratch: an empty folder for temporary files; None if `options` need none, because `first` is known.
        first: bool[documents], which documents are the first with their content; None for all.
        before: uint64[n, 2] each, hashes of documents that the stores have already; equal ones are duplicates.

    Raises:
        BadRecordsError: more bad records than allowed; the tally has them.
        BuildError: there are too many partitions.
        CorruptionError: a part was changed after it was made.
    """
    options = writers.options
    with contextlib.ExitStack() as stack:
        if scratch is not None and (options.dedup == "exact" or options.shuffle_documents is not None):
            parts = made = _all(parts, options)
        if scratch is not None and options.dedup == "exact":
            first = stack.enter_context(first_occurrences(made, scratch / "dedup", before))
        documents = _documents(parts, units, tally, writers, dtype, first)
        if scratch is not None and options.shuffle_documents is not None:
            num_bytes = sum(sum(part.sizes) for part in made)
            shuffler = stack.enter_context(Shuffler(scratch / "shuffle", num_bytes, dtype))
            for each in documents:
                shuffler.add(each)
            documents = shuffler.blocks()
        with contextlib.closing(documents):
            for each in documents:
                if not writers.write(each, tally.count):
                    break
    if tally.num_bad > options.max_bad:
        raise BadRecordsError


def _documents(
    parts: Iterable[Part],
    units: Sequence[Unit],
    tally: Tally,
    writers: Writers,
    dtype: np.dtype,
    first: np.ndarray | None,
) -> Generator[Placed]:
    """The documents of all parts, without duplicates, in order. A part of which any are given on is counted, once."""
    options, splits = writers.options, splits_of(writers.options)
    done = 0
    for part, unit in zip(parts, units, strict=False):  # not all parts are there if one has too many bad records
        partitions = np.array([writers.partition(name) if name else 0 for name in part.partitions], np.int64)
        try:
            for block in part.blocks(dtype):
                count = block.rows.size
                kept = np.ones(count, np.bool_) if first is None else first[done : done + count]
                _count_duplicates(block, kept, unit, tally)
                stores = partitions[block.rows["partition"]] * writers.num_splits
                stores += split_numbers(block.rows["content"][:, 0], splits)
                keys = None if options.shuffle_documents is None else keys_of(options.shuffle_documents, done, count)
                yield _placed(block, unit, tally.lines, stores, keys).only(kept)
                done += count
        finally:  # also if no more documents are wanted
            tally.add(unit, part)
        if tally.num_bad > options.max_bad:
            raise BadRecordsError


def _placed(block: Block, unit: Unit, lines: np.ndarray, stores: np.ndarray, keys: np.ndarray | None) -> Placed:
    """A block of a part; `lines` are those of the inputs before the part."""
    rows = np.zeros(block.rows.size, PLACED)
    rows["file"] = np.array([piece.file_number for piece in unit])[block.rows["slice"]]
    rows["record"] = lines[rows["file"]] + block.rows["record"]
    rows["store"] = stores
    for name in ("length", "name_bytes", "metadata_bytes", "content"):
        rows[name] = block.rows[name]
    if keys is not None:
        rows["key"] = keys
    return Placed(rows, block.tokens, block.mask, block.names, block.metadata)


def _all(parts: Iterable[Part], options: BuildOptions) -> list[Part]:
    """All parts, or those up to the one that exceeds the bad records allowed."""
    made, num_bad = [], 0
    for part in parts:
        made.append(part)
        num_bad += part.num_bad
        if num_bad > options.max_bad:
            break
    return made


def _count_duplicates(block: Block, kept: np.ndarray, unit: Unit, tally: Tally) -> None:
    for place, number in Counter(block.rows["slice"][~kept].tolist()).items():
        tally.dropped[DROPPED.index("duplicates"), unit[place].file_number] += number


def new_writer(folder: Path, vocab_size: int, options: BuildOptions) -> FileWriter:
    """A writer for a new store in `folder`, which it makes."""
    make_folders(folder)
    return FileWriter(
        folder,
        vocab_size,
        options.shard_bytes,
        masks=has_masks(options),
        columns=columns_of(options),
        block_checksums=True,
        buffer_bytes=PARTITION_BUFFER_BYTES if options.partition_by is not None else 1 << 20,
    )


def columns_of(options: BuildOptions) -> Columns:
    """What the documents of a build have."""
    shuffled = options.origins and options.shuffle_documents is not None
    return Columns(options.origins, options.id_field is not None, options.keep, shuffled, options.dedup != "none")


def finish(
    writer: FileWriter, tally: Tally, store: int, place: Place, fields: dict[str, Any], full_note: str
) -> Manifest:
    """Write the rest of a store, its manifest last. `full_note` is `Writers.full_note`.

    Raises:
        BuildError: the store would have no documents.
    """
    counts = tally.counts(store)
    if writer.num_documents == 0:
        shown = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what == "documents")
        what = f"split {place}" if str(place) else "documents"
        raise BuildError(f"{what}: expected at least one, found none ({shown}){full_note}; no store was written")
    return writer.finish(inputs=b"".join(tally.inputs_file(store)), counts=counts, **fields)
