"""Makes the part of a unit: reads, tokenizes and writes it in a private folder, and renames that into place.

    killed before the rename    the private folder is left; a later run on this machine removes it
    killed after it             the part is complete, also after a power failure, and is reused

Two processes may make the same part at once, on one machine or on several. Their bytes are equal, and the one that comes second
discards its own.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tokenstore.builder.documents.collect import Batch, UnitBatches
from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.documents.encode import Encoded, encode_documents
from tokenstore.builder.part import FILES, ROW, SUMMARY, Part, load_part
from tokenstore.builder.reading.checksums import new_hasher
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit
from tokenstore.builder.split import HASH_WORDS
from tokenstore.builder.stores import check_partitions
from tokenstore.errors import BuildError
from tokenstore.store.private import private_folder, publish
from tokenstore.store.writing import create, remove_tree, start_writing_back, sync, write_atomically
from tokenstore.tokenizer import EngineMismatch, Tokenizer, reference_of
from tokenstore.tokenizer.checks import Checks

_TRIES = 10  # to publish a part where another process published one that does not count


def make_part(
    folder: Path,
    key: str,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    reader: DocumentReader,
    report: Callable[[int, int, int], None],
) -> Part:
    """Tokenize `unit` into the part `folder`.

    If the fast engine and the reference tokenizer differ on any sample, the whole unit is tokenized again with the reference.
    If the unit alone has more bad records than allowed, this stops early and writes no summary: the part then holds the bad
    records, so that they can be reported, but is not reused.

    Args:
        folder: where the part will be.
        key: from `part_key`.
        unit: the slices to read.
        files: the inputs of the unit, by number.
        tokenizer: see `Tokenizer`.
        reader: makes documents of records.
        report: called with (bytes, documents, tokens) done since the last call; negative to take them back.

    Raises:
        BuildError: an input changed or is damaged, or a token is outside the vocabulary.
        OSError: the disk is full or fails, or the work folder was removed.
    """
    reported = np.zeros(3, np.int64)

    def report_and_add(*amounts: int) -> None:
        reported[:] += amounts
        report(*amounts)

    try:
        return _make(folder, key, unit, files, tokenizer, reader, report_and_add, "")
    except EngineMismatch as error:
        report(*(-reported).tolist())
        note = f"{tokenizer.engine} was not used for a part of {_names(unit, files)}: {error}"
        return _make(folder, key, unit, files, reference_of(tokenizer), reader, report, note)


def _make(
    folder: Path,
    key: str,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    reader: DocumentReader,
    report: Callable[[int, int, int], None],
    note: str,
) -> Part:
    with private_folder(folder) as private:
        made = _write_files(private, unit, files, tokenizer, reader, report, note)
        if made.num_bad <= reader.options.max_bad:
            summary = {"key": key, **vars(made), "slices": [list(vars(done).values()) for done in made.slices]}
            del summary["folder"]
            write_atomically(private / SUMMARY, json.dumps(summary).encode())
        for _ in range(_TRIES):
            if publish(private, folder):
                return replace(made, folder=folder)
            if same := load_part(folder, key, unit, files):
                return replace(same, note=note)
            remove_tree(folder)  # incomplete, or damaged since
    raise BuildError(
        f"part: {folder} is changed again and again by another process; end it and run the same command again"
    )


def _names(unit: Unit, files: Mapping[int, InputFile]) -> str:
    return files[unit[0].file_number].name + (f" and {len(unit) - 1} more inputs" if len(unit) > 1 else "")


def _write_files(
    folder: Path,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    reader: DocumentReader,
    report: Callable[[int, int, int], None],
    note: str,
) -> Part:
    num_tokens = 0
    partitions: dict[str, int] = {}
    checks: Checks | None = getattr(tokenizer, "checks", None)  # of the fast engine
    with contextlib.ExitStack() as stack:
        if checks:
            stack.enter_context(checks.aside())
        out = {name: HashedFile(stack.enter_context(create(folder / name))) for name in FILES}
        batches = UnitBatches(unit, files, reader, out["bad"].write, _check_unchanged)
        for batch in batches:
            if batch.starts_source:
                getattr(tokenizer, "start_source", lambda: None)()
            encoded = encode_documents(batch.documents, tokenizer, reader.options)
            _write(out, encoded, batch, partitions)
            check_partitions(reader.options, partitions)
            batches.count(batch, encoded)
            num_tokens += encoded.tokens.size
            report(batch.num_bytes, encoded.lengths.size, encoded.tokens.size)
        if checks:
            checks.start()
        for each in out.values():
            if each.num_bytes:  # a part whose empty file is lost with the power does not count, and is made again
                sync(each.file)
        if checks:
            checks.settle()
    slices = batches.summaries()
    num_documents = sum(part.num_documents for part in slices)
    sizes = tuple(each.num_bytes for each in out.values())
    checksums = tuple(each.hasher.hexdigest() for each in out.values())
    return Part(folder, num_documents, num_tokens, sizes, checksums, slices, tuple(partitions), note)


class HashedFile:
    """A file of a part that is being written.

    Attributes:
        file: the open file.
        num_bytes, hasher: of what was written so far.
    """

    def __init__(self, file: BinaryIO):
        self.file, self.num_bytes, self.hasher = file, 0, new_hasher()

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self.file.write(data)
        self.hasher.update(data)
        self.num_bytes += memoryview(data).nbytes


def _write(out: Mapping[str, HashedFile], encoded: Encoded, batch: Batch, partitions: dict[str, int]) -> None:
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
    rows["metadata_bytes"] = [len(document.metadata) for document in kept]
    rows["partition"] = [partitions.setdefault(document.partition, len(partitions)) for document in kept]
    rows["content"] = np.array([document.content for document in kept], np.uint64).reshape(-1, HASH_WORDS)
    start = out["tokens"].num_bytes
    out["tokens"].write(encoded.tokens.data)
    start_writing_back(out["tokens"].file, start)
    out["rows"].write(rows.data)
    out["names"].write(b"".join(names))
    out["metadata"].write(b"".join(document.metadata for document in kept))
    if encoded.mask is not None:
        out["mask"].write(encoded.mask.data)


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
