"""Megatron core: `x.bin` holds the tokens, `x.idx` the sequences and documents.

    .idx: "MMIDIDX\\0\\0", uint64 version 1, uint8 code of the dtype, uint64 S sequences, uint64 D + 1,
          int32[S] lengths, int64[S] pointers (bytes), int64[D + 1] the first sequence of each document, and the end,
          int8[S] modes, only of multimodal data: no field says whether they are there, the size of the file does

The arrays begin at byte 34, so they are not aligned. A document may be several sequences (`--split-sentences`).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenstore.foreign.parts import Part
from tokenstore.foreign.reading import Documents, ForeignReader, TokenFile, near, refuse, size_of

MAGIC, OLD_MAGIC = b"MMIDIDX\0\0", b"TNTIDX\0\0"
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
HEADER_BYTES = 34
_HEADER = struct.Struct("<9sQBQQ")
_BLOCK = 1 << 16  # documents, or sequences, at once
INDEX_ENDINGS = (".idx",)


@dataclass(frozen=True)
class _Index:
    dtype: np.dtype
    num_sequences: int
    num_documents: int
    has_modes: bool

    @property
    def pointers(self) -> int:
        """First byte of the pointers; the lengths begin after the header."""
        return HEADER_BYTES + 4 * self.num_sequences

    @property
    def documents(self) -> int:
        """First byte of the document indices."""
        return HEADER_BYTES + 12 * self.num_sequences

    @property
    def modes(self) -> int:
        """First byte of the modes."""
        return self.documents + 8 * (self.num_documents + 1)


def describe(path: Path, dtype: str | None) -> TokenFile:
    """What the index says about the token file at `path` (`x.bin`). BuildError if the index is damaged or is of another format."""
    idx = near(path, ".idx")
    with ForeignReader(idx) as file:
        index = _read_header(file)
    num_bytes = size_of(path)
    if num_bytes % index.dtype.itemsize:
        rule = f"a whole number of tokens of {index.dtype.itemsize} bytes"
        raise refuse("file size", rule, f"{num_bytes} bytes", path, "is it the file that belongs to the .idx?")
    if dtype is not None and np.dtype(dtype).itemsize != index.dtype.itemsize:
        raise refuse("dtype", f"{index.dtype.name}, as the .idx says", dtype, idx, "omit --dtype")
    notes = ("all sequences have mode 0 (text); the modes are ignored",) if index.has_modes else ()
    return TokenFile(path, (idx,), index.dtype, 0, num_bytes // index.dtype.itemsize, num_bytes, notes=notes)


def documents(index: tuple[Path, ...], most: int) -> Iterator[Documents]:
    """The documents of an .idx, in blocks.

    Args:
        index: the .idx.
        most: documents allowed; the size of the file limits them too.

    Raises:
        BuildError: a length, pointer or document index is impossible, or a sequence is not text.
    """
    with ForeignReader(index[0]) as file:
        found = _read_header(file)
        _check_modes(file, found)
        _check_order(file, found)
        for first in range(0, found.num_documents, _BLOCK):
            count = min(_BLOCK, found.num_documents - first)
            yield _documents(file, found, file.array("<i8", found.documents + 8 * first, count + 1))


def _read_header(file: ForeignReader) -> _Index:
    if file.num_bytes < HEADER_BYTES:
        raise refuse("index", f"at least {HEADER_BYTES} bytes", f"{file.num_bytes}", file.path)
    magic, version, code, num_sequences, num_indices = _HEADER.unpack(file.read(0, HEADER_BYTES).tobytes())
    if magic.startswith(OLD_MAGIC):
        todo = "it is in the old format of fairseq: convert it with Megatron's tools"
        raise refuse("index", "the first bytes MMIDIDX", "TNTIDX", file.path, todo)
    if magic != MAGIC or version != 1:
        rule = "the first bytes MMIDIDX and version 1"
        raise refuse("index", rule, f"{magic[:7]!r} and version {version}", file.path)
    if code not in DTYPES:
        raise refuse("index, byte 17", "the code of an integer dtype", _FLOATS.get(code, code), file.path)
    if num_sequences < 1 or num_indices < 2:
        rule = "at least 1 sequence and 2 document indices"
        raise refuse(
            "index", rule, f"{num_sequences} and {num_indices}", file.path, "there is nothing to adopt: omit it"
        )
    size = HEADER_BYTES + 12 * num_sequences + 8 * num_indices
    if file.num_bytes not in (size, size + num_sequences):
        shown = f"{num_sequences} sequences and {num_indices} document indices"
        rule = f"{size} bytes, or {size + num_sequences} with modes, for {shown}"
        raise refuse("index size", rule, f"{file.num_bytes} bytes", file.path)
    return _Index(np.dtype(DTYPES[code]), num_sequences, num_indices - 1, file.num_bytes != size)


def _check_modes(file: ForeignReader, index: _Index) -> None:
    """BuildError if a sequence of multimodal data is not text."""
    if not index.has_modes:
        return
    at = index.modes
    for block in file.blocks(index.modes, index.modes + index.num_sequences):
        if wrong := np.flatnonzero(block)[:1].tolist():
            place = f"mode of sequence {at - index.modes + wrong[0]}"
            todo = "a store holds text tokens only: write a data set of the text alone"
            raise refuse(place, "0, which is text", block.view(np.int8)[wrong[0]], file.path, todo)
        at += block.size


def _check_order(file: ForeignReader, index: _Index) -> None:
    """BuildError unless the document indices rise from 0 to the number of sequences."""
    previous = 0
    for first in range(0, index.num_documents + 1, _BLOCK):
        count = min(_BLOCK, index.num_documents + 1 - first)
        found = file.array("<i8", index.documents + 8 * first, count)
        lows = np.append(previous, found[:-1])
        wrong = np.flatnonzero((found < lows) | (found > index.num_sequences))[:1].tolist()
        if first == 0 and found[0] != 0:
            raise refuse("document index 0", 0, found[0], file.path)
        if wrong:
            rule = f"{lows[wrong[0]]}..{index.num_sequences}"
            raise refuse(f"document index {first + wrong[0]}", rule, found[wrong[0]], file.path)
        previous = int(found[-1])
    if previous != index.num_sequences:
        raise refuse(f"document index {index.num_documents}", index.num_sequences, previous, file.path)


def _documents(file: ForeignReader, index: _Index, borders: np.ndarray) -> Documents:
    """Documents from their sequences [borders[i], borders[i + 1]), which must be contiguous in the token file.

    The sequences are read in blocks too: one document may have very many.
    """
    count, itemsize = borders.size - 1, index.dtype.itemsize
    starts, lengths = np.zeros(count, np.int64), np.zeros(count, np.int64)
    last_end = -1  # of the sequence before, in bytes
    for at in range(int(borders[0]), int(borders[-1]), _BLOCK):
        number = min(_BLOCK, int(borders[-1]) - at)
        sizes = file.array("<i4", HEADER_BYTES + 4 * at, number).astype(np.int64)
        pointers = file.array("<i8", index.pointers + 8 * at, number)
        _check_sequences(file, at, sizes, pointers, itemsize)
        ends = pointers + sizes * itemsize
        owners = np.searchsorted(borders, np.arange(at, at + number), side="right") - 1
        begins = np.arange(at, at + number) == borders[owners]
        wrong = np.flatnonzero(~begins & (pointers != np.append(last_end, ends[:-1])))[:1].tolist()
        if wrong:
            place, rule = f"pointer of sequence {at + wrong[0]}", "the end of the sequence before, in the same document"
            raise refuse(place, rule, pointers[wrong[0]], file.path)
        starts[owners[begins]] = pointers[begins] // itemsize
        np.add.at(lengths, owners, sizes)
        last_end = int(ends[-1])
    empty = np.flatnonzero(borders[1:] == borders[:-1])  # documents without sequences are nowhere
    starts[empty] = -1
    return Documents(starts, lengths)


def _check_sequences(file: ForeignReader, at: int, sizes: np.ndarray, pointers: np.ndarray, itemsize: int) -> None:
    if wrong := np.flatnonzero(sizes < 0)[:1].tolist():
        raise refuse(f"length of sequence {at + wrong[0]}", "0 or more", sizes[wrong[0]], file.path)
    if wrong := np.flatnonzero((pointers < 0) | (pointers % itemsize != 0) | (pointers > 1 << 62))[:1].tolist():
        rule = f"a multiple of {itemsize} from 0"
        raise refuse(f"pointer of sequence {at + wrong[0]}", rule, pointers[wrong[0]], file.path)


def index_of(part: Part) -> Iterator[np.ndarray]:
    """The contents of the .idx of a part: every document is one sequence."""
    size, count = part.store.dtype.itemsize, len(part.documents)
    code = 8 if size == 2 else 4  # uint16, or int32, which has the same bits below 2**31
    yield np.frombuffer(_HEADER.pack(MAGIC, 1, code, count, count + 1), np.uint8)
    for _, bounds in part.bounds():
        yield np.diff(bounds).astype("<i4")
    for _, bounds in part.bounds():
        yield (bounds[:-1] * size).astype("<i8")
    for first in range(0, count + 1, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, count + 1), dtype="<i8")
