"""Dolma and OLMo: `x.npy` holds the tokens, without a header in spite of its name; `x.csv.gz` has a row per document.

The rows are start, end, id, source, place, without a title, in tokens; some tools write start and end only. A `.npy` that numpy
wrote has a header, which is read and skipped. Where there is no .csv.gz, the end-of-text token is all there is.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tokenstore.foreign.parts import Part
from tokenstore.foreign.reading import (
    Documents,
    ForeignReader,
    TokenFile,
    most_documents,
    near,
    refuse,
    size_of,
    whole_tokens,
)
from tokenstore.outside import open_file
from tokenstore.paths import is_file

_BLOCK, _BLOCK_OF_IDS = 1 << 14, 1 << 20  # rows, and characters of their ids, at once
# Ids of a megabyte of tokens are in memory at once, and compressed rows may hold a thousand times as many as real ones
_ID_CHARACTERS, _ID_CHARACTERS_PER_TOKEN = 1 << 24, 64
_MAX_ROW = 1 << 16  # characters; a row is several lines if a line end is quoted
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 16
_SHAPE = re.compile(r"'shape': \(([0-9]{1,19})L?,\)")  # Python 2 wrote the L
_DTYPES = ("u1", "<u2", "<u4", "<u8", "<i2", "<i4", "<i8")
INDEX_ENDINGS = (".csv.gz",)


def describe(path: Path, dtype: str | None) -> TokenFile:
    """What is known of the token file at `path` (`x.npy`). BuildError if its size does not fit its header, the rows or the dtype."""
    first_byte, found, count = _numpy_header(path)
    if found is not None and dtype is not None and np.dtype(dtype).itemsize != found.itemsize:
        raise refuse("dtype", f"{found.name}, as the header says", dtype, path, "omit --dtype")
    rows = near(path, ".csv.gz")
    index = (rows,) if is_file(rows) else ()
    if found is None and dtype is None:
        num_bytes = size_of(path)
        found = _dtype_from_rows(path, rows, num_bytes) if index else np.dtype("<u2")
    chosen = np.dtype(dtype or found).newbyteorder("<") if found is None or dtype else found
    num_tokens = whole_tokens(path, first_byte, chosen.itemsize)
    if count not in (None, num_tokens):
        raise refuse("numpy header", f"the {num_tokens} tokens of the file", count, path, "is the file complete?")
    notes = () if index else (f"{path.name} has no {rows.name}: its documents are found by the end-of-text token",)
    return TokenFile(path, index, chosen, first_byte, num_tokens, size_of(path), notes=notes)


def documents(index: tuple[Path, ...], most: int) -> Iterator[Documents]:
    """The documents of a .csv.gz, in blocks, with ids if its rows have them.

    Raises:
        BuildError: a row is not numbers, or too long; or there are more than `most`, or their ids are long for their tokens, as
            compressed data may expand to any size.
    """
    starts: list[int] = []
    ends: list[int] = []
    ids: list[str] = []
    id_characters, spare = 0, _ID_CHARACTERS
    for number, row in _rows(index[0]):
        if number > most:
            raise refuse("rows", f"at most {most} for its token file", "more", index[0])
        try:
            start, end = int(row[0]), int(row[1])
        except (ValueError, IndexError):
            raise refuse(f"row {number}", "start,end,...", ",".join(row), index[0]) from None
        if not 0 <= start <= end <= 1 << 60:
            raise refuse(f"row {number}", "0 <= start <= end", f"{start},{end}", index[0])
        starts.append(start)
        ends.append(end)
        ids.append(row[2] if len(row) > 2 else "")
        id_characters += len(ids[-1])
        if end > start:
            spare = min(spare + _ID_CHARACTERS_PER_TOKEN * (end - start), _ID_CHARACTERS) - len(ids[-1])
        if spare < 0:
            rule = f"ids of about {_ID_CHARACTERS_PER_TOKEN} characters per token at most"
            raise refuse(f"row {number}", rule, "more in this row and those before", index[0], "shorten the ids")
        if len(starts) == _BLOCK or id_characters >= _BLOCK_OF_IDS:
            yield _block(starts, ends, ids)
            starts, ends, ids, id_characters = [], [], [], 0
    if starts:
        yield _block(starts, ends, ids)


def _block(starts: list[int], ends: list[int], ids: list[str]) -> Documents:
    first = np.array(starts, np.int64)
    return Documents(first, np.array(ends, np.int64) - first, ids)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number from 1, fields) of each row, decompressed as it is read."""
    try:
        with open_file(path) as raw, gzip.GzipFile(fileobj=raw) as data:
            with TextIOWrapper(data, "utf-8", errors="replace", newline="") as text:
                lines = _Lines(text, path)
                for number, row in enumerate(csv.reader(lines), 1):
                    lines.row_size = 0
                    yield number, row
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise refuse("rows", "readable gzip of csv", str(error), path) from error


class _Lines:
    """The lines of a text, for `csv.reader`, which reads on without limit while a quote is open.

    Attributes:
        row_size: characters of the present row so far; set to 0 when a row ends.
    """

    def __init__(self, text: TextIOWrapper, path: Path):
        self._text, self._path = text, path
        self._number = self.row_size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_MAX_ROW)
        if not line:
            raise StopIteration
        self._number += 1
        self.row_size += len(line)
        if self.row_size >= _MAX_ROW:
            raise refuse(f"line {self._number}", f"at most {_MAX_ROW} characters in a row", "more", self._path)
        return line


def _dtype_from_rows(path: Path, rows: Path, num_bytes: int) -> np.dtype:
    """The dtype that makes the file as long as the last row says; uint16, Dolma's default, if the rows do not cover the file."""
    end = max(
        (int((block.starts + block.lengths).max()) for block in documents((rows,), most_documents(num_bytes))),
        default=0,
    )
    if end == 0:
        todo = "an interrupted job leaves such a pair: omit it"
        raise refuse("rows", "at least one document with tokens", "none", rows, todo)
    for dtype in (np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"), np.dtype("u1")):
        if end * dtype.itemsize == num_bytes:
            return dtype
    raise refuse(
        "file size",
        f"1, 2, 4 or 8 bytes for each of {end} tokens, the end of the last row of {rows.name}",
        f"{num_bytes} bytes",
        path,
        "if the rows do not cover the file, name the type of the tokens: --dtype uint16",
    )


def _numpy_header(path: Path) -> tuple[int, np.dtype | None, int | None]:
    """Bytes of numpy's header, its dtype and number of tokens; (0, None, None) for a file without one, as Dolma writes them."""
    with ForeignReader(path) as file:
        start = file.read(0, min(12, file.num_bytes)).tobytes()
        if not start.startswith(_MAGIC):
            return 0, None, None
        size = int.from_bytes(start[8:10] if start[6] == 1 else start[8:12], "little")
        begin = 10 if start[6] == 1 else 12
        if start[6] not in (1, 2, 3) or not 0 < size <= min(_MAX_HEADER, file.num_bytes - begin):
            raise refuse("numpy header", f"version 1 to 3 and at most {_MAX_HEADER} bytes", f"{size} bytes", path)
        return begin + size, *_dtype_and_count(file.read(begin, size).tobytes(), path)


def _dtype_and_count(header: bytes, path: Path) -> tuple[np.dtype, int]:
    """What a header such as {'descr': '<u2', 'fortran_order': False, 'shape': (5,), } says. It is compared, not evaluated."""
    text = header.decode("latin-1").replace('"', "'")
    for name in _DTYPES:
        known = np.dtype(name)
        shape = _SHAPE.search(text)
        if shape and f"'descr': '{known.str}'" in text and "'fortran_order': False" in text:
            return known, int(shape[1])
    raise refuse("numpy header", "one dimension of little-endian integers", text.strip()[:100], path)


def write_rows(file: BinaryIO, part: Part) -> None:
    """Write the .csv.gz of a part: start, end, id, source and place of every document."""
    with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as data:
        with TextIOWrapper(data, "utf-8", newline="") as text:
            rows = csv.writer(text)
            for first, bounds in part.bounds():
                ends = bounds.tolist()
                rows.writerows(
                    (start, end, *_labels(part, document))
                    for document, (start, end) in enumerate(pairwise(ends), first)
                )


def _labels(part: Part, document: int) -> tuple[str, str, int]:
    """Id, source and place of a document."""
    origin = part.store.origin(document)
    text = part.store.id(document) or ""
    return (text, "", 0) if origin is None else (text, origin.file, origin.record)
