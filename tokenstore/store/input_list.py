"""The input files of a store (FMT-11), read line by line: their names stay on disk, however many there are."""

from array import array
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.errors import CorruptionError
from tokenstore.format.input_lines import InputRow, decode_row, decode_rows
from tokenstore.format.manifest import FileEntry
from tokenstore.outside import MAX_INPUT_ROW_BYTES
from tokenstore.store.files import check_size, open_to_read


class Inputs:
    """The input files in order.

    Attributes:
        ends: int64[number of files], the documents of files 0..n.
        checksum: of the file that was read (FMT-5).
    """

    def __init__(
        self,
        path: Path,
        num_documents: int,
        allow_links: Path | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        """Read inputs.jsonl once. `check` is called each time that a name was read, and refuses a file that was replaced.

        Raises: CorruptionError: it is damaged, or its documents do not add up.
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
            ends.append(min(before + row.documents, num_documents))  # more is refused with the next row
        self.ends, self._offsets = np.frombuffer(ends, np.int64), np.frombuffer(offsets, np.int64)
        self.checksum = checksum.hexdigest()
        self._last: tuple[int, str] | None = None

    def __len__(self) -> int:
        return self.ends.size

    def name(self, number: int) -> str:
        """The name of input file `number`, from 0."""
        if self._last is None or self._last[0] != number:  # documents of one file are asked for one after the other
            with open_to_read(self._path, self._allow_links) as raw, BufferedReader(raw) as file:
                file.seek(int(self._offsets[number]))
                line = file.readline(MAX_INPUT_ROW_BYTES + 1)
            self._check()
            self._last = number, decode_row(line, number + 1, self._num_documents, str(self._path)).file
        return self._last[1]

    def file_of(self, document: int) -> str:
        """The input file of a document, 0 <= document < ends[-1]."""
        return self.name(int(np.searchsorted(self.ends, document, side="right")))


def checked_rows(
    path: Path, entry: FileEntry, num_documents: int, allow_links: Path | None = None
) -> Iterator[tuple[int, InputRow]]:
    """(documents before it, row) of every line of inputs.jsonl, whose size and checksum must be those of `entry`.

    Raises: CorruptionError: it is damaged; for the checksum and the sum of documents after the last row.
    """
    check_size(path, entry.num_bytes, allow_links)
    checksum = xxhash.xxh3_128()

    def lines() -> Iterator[bytes]:
        for line in _lines(path, allow_links):
            checksum.update(line)
            yield line

    yield from decode_rows(lines(), num_documents, str(path))
    if checksum.hexdigest() != entry.checksum:
        raise CorruptionError(
            f"file: expected the checksum {entry.checksum}, found {checksum.hexdigest()} ({path});"
            f" run `tokenstore verify {path.parent}`, and copy or build the store again"
        )


def _lines(path: Path, allow_links: Path | None) -> Iterator[bytes]:
    """The lines of a file; one that is too long ends after MAX_INPUT_ROW_BYTES + 1 bytes, which `decode_row` refuses."""
    with open_to_read(path, allow_links) as raw, BufferedReader(raw) as file:
        while line := file.readline(MAX_INPUT_ROW_BYTES + 1):
            yield line
