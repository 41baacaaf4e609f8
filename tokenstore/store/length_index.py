"""Adds a length index to a store (FMT-9). Packing whole documents needs it; it follows from the boundaries alone.

The builder adds it before the store exists. Kernels are imported where they are used, so that the
builder's command line and workers start without numba.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.errors import CorruptionError
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    LENGTH_INDEX_NAME,
    length_index_dtype,
    length_index_numbers_bytes,
)
from tokenstore.format.manifest import FileEntry
from tokenstore.paths import resolved
from tokenstore.store.added_files import add_file, lock_to_add
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.location import refuse_url
from tokenstore.store.writing import new_mapped_file

_BLOCK = 1 << 22  # documents at once: some tens of milliseconds
_FEW_DOCUMENTS = 1 << 20  # of a store that numpy sorts at once: .1 s, 24 MB
_Sorted = tuple[Callable[[np.ndarray], None], np.ndarray]  # what writes the numbers into an array, and the runs


def add_length_index(
    path: str | Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    version: int | None = None,
) -> bool:
    """Write `length_index.bin` into the store at `path`, and list it in the manifest.

    Args:
        path: the store's directory. It must be writable, and so must its parent directory (for the lock).
        progress: called with (documents processed, total); each document is processed twice.
        version: version of a store that has grown. Default: the newest.

    Returns:
        True if the index was added, False if the store had one.

    Raises:
        CorruptionError: the boundaries are damaged.
        StoreBusyError: another process is writing this store.
        TokenStoreError: there is no store, or it cannot be written.
    """
    refuse_url(path, "index")
    path = resolved(path)  # the lock is next to the store, not next to a link to it
    with open_store(path, version=version) as store:  # first, so that an error leaves no work folder
        if store.has_length_index:
            return False
        options = store.manifest.options
    with lock_to_add(path, options, LENGTH_INDEX_NAME):
        return write_length_index(path, progress, version)


def write_length_index(
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    version: int | None = None,
) -> bool:
    """`add_length_index` for a caller that holds the store's lock, or whose store no other process can see."""
    with open_store(path, check="lazy", version=version) as store:
        if store.has_length_index:
            return False
        add_file(store, LENGTH_INDEX_NAME, partial(_write, store, progress))
        return True


def _write(store: Store, progress: Callable[[int, int], None], path: Path) -> FileEntry:
    num_documents, num_numbers_bytes = len(store), length_index_numbers_bytes(len(store))
    dtype = length_index_dtype(num_documents)
    if num_documents <= _FEW_DOCUMENTS:
        fill, runs = _sort(store, progress)
    else:
        fill, runs = _count_and_place(store, progress)
    with new_mapped_file(path, num_numbers_bytes + runs.nbytes) as data:
        numbers = data[: num_documents * dtype.itemsize].view(dtype)
        fill(numbers)
        data[num_numbers_bytes:].view("<i8")[:] = runs.reshape(-1)
        checksum = xxhash.xxh3_128()
        for first in range(0, data.size, _BLOCK):
            checksum.update(data[first : first + _BLOCK].data)
        del numbers
    return FileEntry(num_numbers_bytes + runs.nbytes, checksum.hexdigest())


def _sort(store: Store, progress: Callable[[int, int], None]) -> _Sorted:
    """Sort documents by length with numpy: slower per document than the kernels, but loading them takes half a second."""
    lengths = np.diff(store.boundaries()[: len(store) + 1])
    if lengths.min() < 1:
        raise _not_increasing(store)
    order = np.argsort(lengths, kind="stable")
    runs = np.stack(np.unique(lengths[order], return_index=True), axis=1)

    def fill(numbers: np.ndarray) -> None:
        numbers[:] = order
        progress(2 * len(store), 2 * len(store))

    return fill, runs


def _count_and_place(store: Store, progress: Callable[[int, int], None]) -> _Sorted:
    """Sort documents by length with kernels, in two passes over the boundaries and little memory."""
    from tokenstore.order.sorting import place_by_length

    counts, long_numbers, long_lengths = _count(store, progress)

    def fill(numbers: np.ndarray) -> None:
        places = np.cumsum(counts) - counts
        for first, starts in _blocks(store):
            place_by_length(starts, first, places, numbers)
            progress(len(store) + first + starts.size - 1, 2 * len(store))
        if long_numbers.size:  # so far these are sorted by number only
            numbers[-long_numbers.size :] = long_numbers

    return fill, _runs(counts, long_lengths)


def _not_increasing(store: Store) -> CorruptionError:
    return CorruptionError(
        f"{BOUNDARIES_NAME}: expected increasing starts, found others ({store.file(BOUNDARIES_NAME)});"
        f" run `tokenstore verify {store.path}`"
    )


def _blocks(store: Store) -> Iterator[tuple[int, np.ndarray]]:
    """(first document, starts of some documents and their end)."""
    for first in range(0, len(store), _BLOCK):
        yield first, store.boundaries()[first : min(first + _BLOCK, len(store)) + 1]


def _count(store: Store, progress: Callable[[int, int], None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count documents by length.

    Returns: int64[k + 1] counts, of which the last is that of all documents of k tokens or more; the numbers of those
    documents and their lengths, both sorted by length. k is LONG, or less for a small store: no document is longer than
    its store, and counts of a million lengths take longer than indexing a thousand documents.
    """
    from tokenstore.order.sorting import LONG, count_lengths

    longest = min(LONG, store.num_tokens + 1)
    counts = np.zeros(longest + 1, np.int64)
    numbers, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first, starts in _blocks(store):
        before = counts[longest]
        if not count_lengths(starts, counts):
            raise _not_increasing(store)
        if counts[longest] > before:
            sizes = np.diff(starts)
            numbers.append(first + np.flatnonzero(sizes >= longest))
            lengths.append(sizes[sizes >= longest])
        progress(first + starts.size - 1, 2 * len(store))
    by_length = np.argsort(np.concatenate(lengths), kind="stable")
    return counts, np.concatenate(numbers)[by_length], np.concatenate(lengths)[by_length]


def _runs(counts: np.ndarray, long_lengths: np.ndarray) -> np.ndarray:
    """int64[runs, 2]: each length that occurs, and the index of the first document with that length."""
    short = np.flatnonzero(counts[:-1])
    long, places = np.unique(long_lengths, return_index=True)
    starts = np.cumsum(counts) - counts
    return np.stack([np.append(short, long), np.append(starts[short], starts[-1] + places)], axis=1)
