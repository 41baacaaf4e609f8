"""Parts in order -> stores: one per split, without duplicates if asked for, with counts for every input file."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenstore.builder.dedup import first_occurrences
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import Block, Part
from tokenstore.builder.reading.checksums import checksum_of_blocks
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit
from tokenstore.builder.split import Split, parse_split, split_numbers
from tokenstore.errors import BadRecordsError, BuildError
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.format.manifest import Manifest
from tokenstore.store.document_files import Columns
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import make_folders

DROPPED = ("empty", "filtered", "short", "long", "duplicates", "bad")  # why a record gives no document


def splits_of(options: BuildOptions) -> tuple[Split, ...]:
    """The splits of a build; () for a single store."""
    return parse_split(options.split) if options.split else ()


def store_folders(folder: Path, options: BuildOptions) -> list[Path]:
    """The folders of a build's stores below `folder`, its output or a working folder; `folder` itself without splits."""
    return [folder / split.name for split in splits_of(options)] or [folder]


class Tally:
    """Counts what the parts hold, by input file, and writes the list of bad records.

    Attributes:
        files: the inputs, in order.
        lines: int64[files], lines or rows.
        documents: int64[stores, files], documents written.
        dropped: int64[len(DROPPED), files], records without a document, by reason.
        checksums: of each input's bytes, in hex.
        num_bad: bad records so far.
        first_bad: the first bad record, as it is in the list; {} if there is none.
    """

    def __init__(self, files: Sequence[InputFile], num_stores: int, rejects: BinaryIO):
        self.files = files
        self.lines = np.zeros(len(files), np.int64)
        self.documents = np.zeros((num_stores, len(files)), np.int64)
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
            self._add_hashes(piece.file_number, bytes.fromhex(summary.hashes))
            for reason, number in {**summary.dropped, "bad": summary.num_bad}.items():
                self.dropped[DROPPED.index(reason), piece.file_number] += number
        self.num_bad += part.num_bad

    def _add_hashes(self, number: int, hashes: bytes) -> None:
        """Add checksums of a file's blocks. The slices of a file are consecutive, so one file's are held at a time."""
        if number != self._hashes[0]:
            self._hashes = number, bytearray()
        self._hashes[1].extend(hashes)
        self.checksums[number] = checksum_of_blocks(bytes(self._hashes[1]))

    def counts(self, store: int) -> dict[str, int]:
        """Totals for the manifest of a store. Records without a document are counted over all splits."""
        dropped = dict(zip(DROPPED, self.dropped.sum(axis=1).tolist(), strict=True))
        return {"input files": len(self.files), "documents": int(self.documents[store].sum()), **dropped}

    def inputs_file(self, store: int) -> Iterator[bytes]:
        """The lines of inputs.jsonl (FMT-4), one per input file."""
        for i, file in enumerate(self.files):
            dropped = dict(zip(DROPPED, self.dropped[:, i].tolist(), strict=True))
            row = InputRow(file.name, int(self.documents[store, i]), file.num_bytes, self.checksums[i])
            yield encode_row(row, {"lines": int(self.lines[i]), **dropped})


def assemble(
    parts: Iterable[Part],
    units: Sequence[Unit],
    tally: Tally,
    options: BuildOptions,
    writers: Sequence[FileWriter],
    scratch: Path | None,
    first: np.ndarray | None = None,
) -> None:
    """Append the documents of `parts`, in order, to `writers`.

    Args:
        parts: of all units, in order. They may be made while they are consumed.
        units: the unit of each part.
        tally: counts what the parts hold.
        options: of the build.
        writers: one per split.
        scratch: a folder for temporary files of the search for duplicates, which `options` may ask for.
        first: bool[documents], which documents are the first with their content; None for all.

    Raises:
        BadRecordsError: more bad records than allowed; the tally has them.
        CorruptionError: a part was changed after it was made.
    """
    with contextlib.ExitStack() as stack:
        if options.dedup == "exact" and scratch is not None:
            parts = _all(parts, options)
            first = stack.enter_context(first_occurrences(parts, scratch))
        splits = splits_of(options)
        done = 0
        for unit, part in zip(units, parts, strict=True):
            for block in part.blocks(writers[0].dtype):
                count = block.rows.size
                kept = np.ones(count, np.bool_) if first is None else first[done : done + count]
                done += count
                _count_duplicates(block, kept, unit, tally)
                numbers = split_numbers(block.rows["content"][:, 0], splits)
                for store, writer in enumerate(writers):
                    _append(writer, block.only(kept & (numbers == store)), unit, tally, store, options)
            tally.add(unit, part)
            if tally.num_bad > options.max_bad:
                raise BadRecordsError


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


def _append(writer: FileWriter, block: Block, unit: Unit, tally: Tally, store: int, options: BuildOptions) -> None:
    if block.rows.size == 0:
        return
    files = np.array([piece.file_number for piece in unit])[block.rows["slice"]]
    np.add.at(tally.documents[store], files, 1)
    writer.append(
        block.tokens,
        block.rows["length"].astype(np.int64),
        mask=block.mask,
        origins=tally.lines[files] + block.rows["record"] if options.origins else None,
        ids=block.names if options.id_field else None,
        metadata=block.metadata if options.keep else None,
    )


def new_writer(folder: Path, vocab_size: int, options: BuildOptions) -> FileWriter:
    """A writer for a new store in `folder`, which it makes."""
    make_folders(folder)
    return FileWriter(
        folder,
        vocab_size,
        options.shard_bytes,
        masks=has_masks(options),
        columns=Columns(options.origins, options.id_field is not None, options.keep),
        block_checksums=True,
    )


def finish(writer: FileWriter, tally: Tally, store: int, name: str | None, fields: dict[str, Any]) -> Manifest:
    """Write the rest of a store, its manifest last.

    Raises:
        BuildError: the store would have no documents.
    """
    counts = tally.counts(store)
    if writer.num_documents == 0:
        shown = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what == "documents")
        what = f"split {name}" if name else "documents"
        raise BuildError(f"{what}: expected at least one, found none ({shown}); no store was written")
    return writer.finish(inputs=b"".join(tally.inputs_file(store)), counts=counts, **fields)
