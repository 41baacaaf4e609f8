"""Reads the list of input files of a store, inputs.jsonl (FMT-4, FMT-11). Names stay on disk, however many there are."""

from array import array
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.format.input_lines import InputRow, decode_row, decode_rows
from tokenstore.format.manifest import FileEntry
from tokenstore.outside import MAX_INPUT_ROW_BYTES
from tokenstore.store.files import check_checksum, check_size, open_to_read


class Inputs:
    """The input files of a store, in order.

    Attributes:
        ends: int64[number of files]: ends[n] is the number of documents in files 0..n.
        checksum: checksum of the file that was read (FMT-5).
    """

    def __init__(
        self,
        path: Path,
        num_documents: int,
        allow_links: Path | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        """Read inputs.jsonl once.

        Args:
            path: the file.
            num_documents: documents of the store.
            allow_links: as in `open_store`.
            check: called after each later read of a name; it raises if the file was replaced.

        Raises:
            CorruptionError: the file is damaged, or its documents do not add up.
        """
        self._path, self._allow_links, self._num_documents, self._check = path, allow_links, num_documents, check
        ends, offsets, offset, checksum = array("q"), array("q"), 0, xxhash.xxh3_128()

        def lines() -> Iterator[bytes]:
            nonlocal offset
            for line in _lines(path, allow_links):
                offsets.append(offset)
                offset += len(line)
                checksum.update(line)
                yield line

        for before, row in decode_rows(lines(), num_documents, str(path)):
            ends.append(min(before + row.documents, num_documents))  # a larger sum is an error at the next row
        self.ends, self._offsets = np.frombuffer(ends, np.int64), np.frombuffer(offsets, np.int64)
        self.checksum = checksum.hexdigest()
        self._last: tuple[int, str] | None = None

    def __len__(self) -> int:
        return self.ends.size

    def name(self, number: int) -> str:
        """The name of input file `number`, from 0."""
        if self._last is None or self._last[0] != number:  # usually many documents of one file are read in a row
            with open_to_read(self._path, self._allow_links) as raw, BufferedReader(raw) as file:
                file.seek(int(self._offsets[number]))
                line = file.readline(MAX_INPUT_ROW_BYTES + 1)
            self._check()
            self._last = number, decode_row(line, number + 1, self._num_documents, str(self._path)).file
        return self._last[1]

    def file_of(self, document: int) -> str:
        """The input file that a document came from, 0 <= document < ends[-1]."""
        return self.name(int(np.searchsorted(self.ends, document, side="right")))


def checked_rows(
    path: Path, entry: FileEntry, num_documents: int, allow_links: Path | None = None
) -> Iterator[tuple[int, InputRow]]:
    """Yield (documents before it, row) for each line of inputs.jsonl; its size and checksum must be those of `entry`.

    Raises:
        CorruptionError: the file is damaged. A wrong checksum or sum of documents is raised after the last row.
    """
    check_size(path, entry.num_bytes, allow_links)
    checksum = xxhash.xxh3_128()

    def lines() -> Iterator[bytes]:
        for line in _lines(path, allow_links):
            checksum.update(line)
            yield line

    yield from decode_rows(lines(), num_documents, str(path))
    check_checksum(path, entry, checksum.hexdigest())


def _lines(path: Path, allow_links: Path | None) -> Iterator[bytes]:
    """The lines of a file. A longer line is cut after MAX_INPUT_ROW_BYTES + 1 bytes, and `decode_row` rejects it."""
    with open_to_read(path, allow_links) as raw, BufferedReader(raw) as file:
        while line := file.readline(MAX_INPUT_ROW_BYTES + 1):
            yield line
