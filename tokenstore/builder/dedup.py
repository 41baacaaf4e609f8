"""Finds the first of equal documents. Documents with the same hash of their content (xxh3-128) count as equal.

Hashes are distributed to files by ranges of their highest word and sorted file by file, so memory does not grow with the number of
documents. Ranges can be searched by different processes: `Duplicates` keeps what each of them found.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tokenstore.builder.part import Part
from tokenstore.paths import is_file
from tokenstore.store.private import private_folder
from tokenstore.store.writing import create, new_folder, new_mapped_file, own_folder, remove, remove_tree, write_shared

_RANGE_DOCUMENTS = 1 << 21  # per file: 48 MB of hashes and document numbers
_MOST_RANGES = 256  # files open at once; with more than 5 * 10^8 documents the files become larger
_BLOCK = 1 << 16  # documents
_ENTRY = np.dtype([("content", "<u8", 2), ("document", "<i8")])


@contextlib.contextmanager
def first_occurrences(parts: Sequence[Part], folder: Path, before: Sequence[np.ndarray] = ()) -> Iterator[np.ndarray]:
    """Which documents are the first with their content: bool[documents of all parts].

    A document that equals one of those with the hashes `before`, uint64[n, 2] each, is not the first.

    The array is a file in `folder`, which is created for it and removed at the end.
    """
    remove_tree(folder)
    new_folder(folder)
    total = sum(part.num_documents for part in parts)
    with new_mapped_file(folder / "first", max(total, 1)) as first:
        first[:] = 1
        count = _num_ranges(total + sum(map(len, before)))
        for path in _spread(parts, folder, count, range(count), before):
            found = _repeated(path)
            first[found[found >= 0]] = 0
            remove(path)
        yield first[:total].view(np.bool_)
    remove_tree(folder)


class Duplicates:
    """The documents that equal an earlier one, found range by range, in files that all processes of a build share.

    Args:
        folder: of the files; named by what is searched, so that other parts have another folder.
        num_documents: of all parts.

    Attributes:
        count: number of ranges.
    """

    def __init__(self, folder: Path, num_documents: int):
        self._folder, self.count = folder, _num_ranges(num_documents)

    def missing(self) -> list[int]:
        """The ranges that were not searched yet."""
        return [number for number in range(self.count) if not is_file(self._file(number))]

    def search(self, parts: Sequence[Part], ranges: Sequence[int]) -> None:
        """Search some ranges in all documents of a build. Nothing happens for an empty list."""
        if not ranges:
            return
        own_folder(self._folder.parent)
        own_folder(self._folder)
        with private_folder(self._folder / "search") as scratch:
            for number, path in zip(ranges, _spread(parts, scratch, self.count, ranges), strict=True):
                write_shared(self._file(number), np.sort(_repeated(path)).astype("<i8").tobytes())
                remove(path)

    def first_in(self, start: int, stop: int) -> np.ndarray:
        """Which of the documents [start, stop) are the first with their content: bool[stop - start]. All ranges are searched."""
        first = np.ones(stop - start, np.bool_)
        for number in range(self.count):
            found = np.fromfile(self._file(number), "<i8")
            low, high = np.searchsorted(found, (start, stop))
            first[found[low:high] - start] = False
        return first

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:03d}"


def _num_ranges(num_documents: int) -> int:
    return 1 << min(_MOST_RANGES - 1, num_documents // _RANGE_DOCUMENTS).bit_length()


def _repeated(path: Path) -> np.ndarray:
    """int64[n], the documents in a file of entries that equal an earlier one in it."""
    entries = np.fromfile(path, _ENTRY)
    order = np.lexsort((entries["document"], entries["content"][:, 0], entries["content"][:, 1]))
    same = (np.diff(entries["content"][order].astype(np.uint64), axis=0) == 0).all(axis=1)
    return np.asarray(entries["document"][order[1:][same]])


def _spread(
    parts: Sequence[Part], folder: Path, count: int, ranges: Sequence[int], before: Sequence[np.ndarray] = ()
) -> list[Path]:
    """Write an _ENTRY per document whose hash is in one of `ranges`, of `count` equal ones, to the file of its range.

    The documents of all parts are numbered from 0, those with the hashes `before` with negative numbers.
    """
    paths = [folder / f"{number:03d}" for number in ranges]
    shift = np.uint64(65 - count.bit_length())
    document = -sum(map(len, before))
    with contextlib.ExitStack() as stack:
        files = {number: stack.enter_context(create(path)) for number, path in zip(ranges, paths, strict=True)}
        for contents in _contents(parts, before):
            entries = np.zeros(len(contents), _ENTRY)
            entries["content"] = contents
            entries["document"] = np.arange(document, document + len(contents))
            document += len(contents)
            numbers = contents[:, 1] >> shift if count > 1 else np.zeros(len(contents), np.uint64)
            for number in np.unique(numbers).tolist():
                if number in files:
                    files[number].write(entries[numbers == number].data)
    return paths


def _contents(parts: Sequence[Part], before: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The hashes of all documents in blocks of uint64[n, 2]: first those before the parts."""
    for hashes in before:
        for start in range(0, len(hashes), _BLOCK):
            yield np.array(hashes[start : start + _BLOCK])
    for part in parts:
        for rows in part.rows():
            yield rows["content"]
