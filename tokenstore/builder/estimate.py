"""Estimates the number of documents and tokens in inputs of one format, from a sample that is spread over all of them.

There are three ways, depending on the inputs:

- few or small pieces (files, or row groups of .parquet): all are read, and windows spread over each are tokenized;
- many pieces: some are drawn, with probability proportional to their size, and sampled in the same way;
- large .jsonl without compression: windows of bytes are drawn. A line counts with the fraction of its bytes inside the window,
  so that long and short lines have the right weight.

Everything is deterministic: positions are drawn from a low-discrepancy sequence, which is evenly spread at any length.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from tokenstore.builder.documents.convert import Document, DocumentReader, reading
from tokenstore.builder.documents.encode import encode_documents, special_ids
from tokenstore.builder.reading.columnar import group_slices
from tokenstore.builder.reading.inputs import TABLES, InputFile
from tokenstore.builder.reading.records import Bad, SliceReader, line_start
from tokenstore.builder.reading.remote_inputs import InputPath
from tokenstore.builder.reading.units import Slice
from tokenstore.tokenizer import EngineMismatch, Tokenizer, reference_of

_SAMPLE = 4 << 20  # characters to tokenize, of all pieces together if all are read
_READ = 1 << 30  # characters to read, of all pieces together
_ALL_PIECES = 64  # up to this number all pieces are read; also the number of draws before their error is known
_MOST_DRAWS = 256
_GOOD_ENOUGH = 0.025  # relative standard error at which drawing stops
_WINDOW, _LINES_WINDOW = 8 << 10, 32 << 10  # characters of a piece; bytes of .jsonl
_FEWEST_WINDOWS = 16
_EXCERPT, _EXCERPTS = 16 << 10, 4  # a long text is represented by 4 excerpts of 16 Ki characters
_MOST_FILES = 512  # with more .parquet files, whole files are the pieces and not their row groups
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio


@dataclass(frozen=True)
class Estimate:
    """The estimate for some inputs.

    Attributes:
        documents: expected number.
        tokens: expected number, special tokens included.
        is_exact: whether everything was read and tokenized.
        error: two standard errors of `tokens`, relative; 0 if exact.
        read_in_part: number of inputs of which only the beginning was read, as they are too large.
        num_records, num_bad: records and bad records in the sample.
        first_bad: position and reason of the first bad record; "" if there is none.
    """

    documents: float
    tokens: float
    is_exact: bool
    error: float
    read_in_part: int
    num_records: int
    num_bad: int
    first_bad: str


@dataclass(frozen=True)
class _Piece:
    """An input, or a row group of one, that is read from its beginning. `weight`: bytes of a file, rows of a row group."""

    file: InputFile
    part: Slice
    weight: int


@dataclass
class _Found:
    """The estimate for a piece: `values`, float64[2], documents and tokens without special ones; `variance`, float64[2]."""

    values: np.ndarray
    variance: np.ndarray


@dataclass
class _Window:
    """Consecutive records: their number, their size in characters, and their documents until they are encoded.

    `scales`: weight of each document; `longer`: its length divided by that of its excerpt; `values`: as in `_Found`.
    """

    num_records: int = 0
    size: int = 0
    documents: list[Document] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    longer: list[float] = field(default_factory=list)
    values: np.ndarray = field(default_factory=lambda: np.zeros(2))


class Estimator:
    """Estimates inputs of one format and compression, with the options of a build."""

    def __init__(self, tokenizer: Tokenizer, reader: DocumentReader):
        self.tokenizer, self.reader = tokenizer, reader
        self.options = reader.options
        self.num_special = sum(number is not None for number in special_ids(tokenizer, self.options))
        self._begin()

    def _begin(self) -> None:
        self.is_exact = True
        self.num_records = self.num_bad = 0
        self.first_bad = ""
        self.in_part: set[InputPath] = set()

    def estimate(self, files: Sequence[InputFile]) -> Estimate:
        """Estimate the documents and tokens in `files`, all of one format and compression."""
        self._begin()
        total = sum(file.num_bytes for file in files)
        plain = not files[0].compression and files[0].format not in TABLES
        if plain and files[0].format == ".jsonl" and total > _ALL_PIECES * _LINES_WINDOW:
            return self._result(
                *_drawn(total, partial(self._lines, _Places([file.num_bytes for file in files]), files))
            )
        pieces = _pieces(files)
        weight = sum(piece.weight for piece in pieces)
        if len(pieces) <= _ALL_PIECES or (plain and total <= _SAMPLE) or not weight:
            weight = max(weight, 1)
            return self._result(
                *_summed(self._read(piece, _SAMPLE * piece.weight // weight, _READ // len(pieces)) for piece in pieces)
            )
        known: dict[int, _Found] = {}
        by_size = _Places([piece.weight for piece in pieces])
        values, errors = _drawn(by_size.total, partial(self._piece, by_size, pieces, known, True))
        if files[0].format == ".txt":  # a file is a document: draw files with equal probability to count documents
            by_number = _Places([1] * len(pieces))
            same, other = _drawn(len(pieces), partial(self._piece, by_number, pieces, known, False))
            values[0], errors[0] = same[0], other[0]
        return self._result(values, errors)

    def _result(self, values: np.ndarray, errors: np.ndarray) -> Estimate:
        documents, tokens = values.tolist()
        relative = 2 * float(errors[1]) / max(tokens, 1)
        tokens += documents * self.num_special
        bad = self.num_records, self.num_bad, self.first_bad
        return Estimate(documents, tokens, self.is_exact, relative, len(self.in_part), *bad)

    def _piece(
        self, places: "_Places", pieces: Sequence[_Piece], known: dict[int, _Found], per_weight: bool, place: int
    ) -> np.ndarray:
        """A draw: the values of the piece at `place`, per unit of weight or, if pieces are drawn equally, in total."""
        self.is_exact = False
        number, _ = places.at(place)
        if number not in known:
            known[number] = self._read(pieces[number], _SAMPLE // _ALL_PIECES, _READ // _ALL_PIECES)
        values = known[number].values
        return values / pieces[number].weight if per_weight else values

    def _lines(self, places: "_Places", files: Sequence[InputFile], place: int) -> np.ndarray:
        """A draw: the values per byte of .jsonl around `place`. A line counts with its fraction inside the window."""
        self.is_exact = False
        number, start = places.at(place)
        file = files[number]
        stop = min(start + _LINES_WINDOW, file.num_bytes)
        start = max(stop - _LINES_WINDOW, 0)
        records = SliceReader(
            file, Slice(0, line_start(file.path, start, self.options.max_record_bytes), stop), reading(self.options)
        )
        window = _Window()
        for _, row in records:
            first, last = records.line
            inside = min(last, stop) - max(first, start)
            if inside > 0:
                self._add(window, f"the line at byte {first:,}", row, file, inside / (last - first))
        self._encode(window)
        return window.values / (stop - start)

    def _read(self, piece: _Piece, limit: int, most: int) -> _Found:
        """Estimate a piece from evenly spread windows of `limit` characters in total, reading at most `most` characters.

        The length is not known in advance. So every `stride`-th window is kept, and when there are too many, every second one
        is dropped and the stride doubled.

        Compressed files are read ahead, by an amount that depends on the compression and on the version of Python. When more of
        the file is read, all records before came from what had been read until then: that is where a large piece is left.
        """
        records = SliceReader(piece.file, piece.part, reading(self.options))
        windows: list[_Window] = []
        window, number, stride = _Window(), 0, 1
        size = num_records = 0
        share = before = 1.0
        for record, row in records:
            if size >= most:
                done = _share_read(piece, records)
                if before < done or (size >= 2 * most and done < 1):
                    self.in_part.add(piece.file.path)
                    share = max(before, 1e-9)
                    break
                before = done
            row_size = _size(row) + 1
            size, num_records = size + row_size, num_records + 1
            window.size, window.num_records = window.size + row_size, window.num_records + 1
            if number % stride == 0:
                self._add(window, f"record {record}" if not piece.part.start else "a record", row, piece.file)
            if window.size >= _WINDOW:
                windows += [window] if number % stride == 0 else []
                window, number = _Window(), number + 1
                if len(windows) > max(limit // _WINDOW, _FEWEST_WINDOWS):
                    windows, stride = windows[::2], 2 * stride
        windows += [window] if window.num_records and number % stride == 0 else []
        return self._of_windows(windows, num_records, size, share)

    def _of_windows(self, windows: Sequence[_Window], num_records: int, size: int, share: float) -> _Found:
        """Scale the values of windows up to `num_records` and `size` characters, which are `share` of the piece."""
        for window in windows:
            self._encode(window)
        found = np.array([window.values for window in windows]).reshape(-1, 2)
        measure = np.array([(window.num_records, window.size) for window in windows], np.float64).reshape(-1, 2)
        whole = np.array([num_records, size], np.float64)
        rate = found.sum(axis=0) / np.maximum(measure.sum(axis=0), 1)
        is_all = measure[:, 0].sum() == num_records
        self.is_exact &= bool(is_all) and share == 1
        error = np.zeros(2) if is_all else _ratio_error(found, measure, rate) * whole
        return _Found(rate * whole / share, (error / share) ** 2)

    def _add(self, window: _Window, place: str, row: Any, file: InputFile, scale: float = 1.0) -> None:
        """Add a record to a window, a long text as excerpts."""
        self.num_records += 1
        found = row if isinstance(row, Bad) else self.reader.document(row, file.format in TABLES)
        if isinstance(found, Bad):
            self.num_bad += 1
            self.first_bad = self.first_bad or f"{place} of {file.path}: {found.reason}"
        elif not isinstance(found, str):
            excerpt, longer = self._excerpt(found)
            window.documents.append(excerpt)
            window.longer.append(longer)
            window.scales.append(scale)

    def _encode(self, window: _Window) -> None:
        """Count the documents and tokens of a window, and release its texts."""
        if not window.documents:
            return
        try:
            encoded = encode_documents(window.documents, self.tokenizer, self.options)
        except EngineMismatch:
            self.tokenizer = reference_of(self.tokenizer)
            encoded = encode_documents(window.documents, self.tokenizer, self.options)
        scales = np.array(window.scales)[encoded.kept]
        tokens = (encoded.lengths - self.num_special) * np.array(window.longer)[encoded.kept]
        window.values = np.array([scales.sum(), (tokens * scales).sum()])
        window.documents = []

    def _excerpt(self, document: Document) -> tuple[Document, float]:
        """The document, or excerpts of a long text, and the ratio of its length to that of the excerpts."""
        text, limited = document.text, self.options.max_tokens is not None or self.options.min_tokens > 0
        if self.options.records != "text" or limited or len(text) <= _EXCERPT * _EXCERPTS:
            return document, 1.0
        self.is_exact = False
        starts = [(len(text) - _EXCERPT) * i // (_EXCERPTS - 1) for i in range(_EXCERPTS)]
        excerpt = "".join(text[start : start + _EXCERPT] for start in starts)
        return replace(document, text=excerpt), len(text) / len(excerpt)


class _Places:
    """Finds the item that contains a position in [0, total), where items of the given sizes follow each other."""

    def __init__(self, sizes: Sequence[int]):
        self.ends = list(accumulate(sizes))
        self.sizes = sizes
        self.total = self.ends[-1]

    def at(self, place: int) -> tuple[int, int]:
        """(number of the item, offset in it)."""
        number = bisect_right(self.ends, place)
        return number, place - self.ends[number] + self.sizes[number]


def _pieces(files: Sequence[InputFile]) -> list[_Piece]:
    """Row groups of .parquet, weighted by rows, as repeated texts compress to few bytes; otherwise whole files."""
    if files[0].format != ".parquet" or len(files) > _MOST_FILES:
        return [_Piece(file, Slice(0), file.num_bytes) for file in files]
    groups = ((file, part, rows) for file in files for part, rows in group_slices(file.path))
    return [_Piece(file, part, rows) for file, part, rows in groups]


def _share_read(piece: _Piece, records: SliceReader) -> float:
    """The fraction of a piece that `records` has read."""
    if piece.part.stop is not None:
        return records.num_lines / max(piece.weight, 1)
    return records.num_bytes / max(piece.weight, 1)


def _summed(found: Iterable[_Found]) -> tuple[np.ndarray, np.ndarray]:
    """(values, standard errors), float64[2] each, of all pieces together."""
    values, variance = np.zeros(2), np.zeros(2)
    for each in found:
        values, variance = values + each.values, variance + each.variance
    return values, np.sqrt(variance)


def _drawn(total: int, draw: Callable[[int], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(values, standard errors), float64[2] each, for `total`: draws values per unit of it until they are good enough."""
    found: dict[int, np.ndarray] = {}
    count = 0
    while True:
        count += _ALL_PIECES
        # Multiples of the golden ratio modulo 1 are evenly spread, whatever their number
        places = sorted((k * _GOLDEN + _GOLDEN // 2) % (1 << 64) * total >> 64 for k in range(count))
        found |= {place: draw(place) for place in places if place not in found}
        values = np.array([found[place] for place in places])
        rate = values.mean(axis=0)
        error = _ratio_error(values, np.ones((count, 1)), rate)
        if count >= _MOST_DRAWS or (error <= _GOOD_ENOUGH * rate).all():
            return rate * total, error * total


def _ratio_error(values: np.ndarray, weights: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Standard error of `rate` = sum(values) / sum(weights), from differences of neighbours, as positions are evenly spread."""
    if len(values) < 2:
        return rate
    steps = np.diff(values - rate * weights, axis=0)
    of_mean = np.sqrt((steps**2).sum(axis=0) / 2 / (len(values) - 1) / len(values))
    error: np.ndarray = of_mean / np.maximum(weights.mean(axis=0), 1e-9)
    return error


def _size(value: Any) -> int:
    """Approximate length of a record: characters of its strings, plus the number of its numbers."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return len(value) if not value or isinstance(value[0], (int, float)) else sum(map(_size, value))
    return 1
