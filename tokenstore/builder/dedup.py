"""Finds the first of equal documents. Documents with the same hash of their content (xxh3-128) count as equal.

Hashes are distributed to files by their highest bits and sorted file by file, so memory does not grow with the number of
documents.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tokenstore.builder.part import Part
from tokenstore.store.writing import create, new_folder, new_mapped_file, remove, remove_tree

_BUCKET_DOCUMENTS = 1 << 21  # per file: 48 MB of hashes and document numbers
_MOST_BUCKETS = 256  # files open at once; with more than 5 * 10^8 documents the files become larger
_ENTRY = np.dtype([("content", "<u8", 2), ("document", "<i8")])


@contextlib.contextmanager
def first_occurrences(parts: Sequence[Part], folder: Path) -> Iterator[np.ndarray]:
    """Which documents are the first with their content: bool[documents of all parts].

    The array is a file in `folder`, which is created for it and removed at the end.
    """
    remove_tree(folder)
    new_folder(folder)
    total = sum(part.num_documents for part in parts)
    bits = min(_MOST_BUCKETS - 1, total // _BUCKET_DOCUMENTS).bit_length()
    with new_mapped_file(folder / "first", max(total, 1)) as first:
        first[:] = 1
        for path in _spread(parts, folder, bits):
            entries = np.fromfile(path, _ENTRY)
            order = np.lexsort((entries["document"], entries["content"][:, 0], entries["content"][:, 1]))
            same = (np.diff(entries["content"][order].astype(np.uint64), axis=0) == 0).all(axis=1)
            first[entries["document"][order[1:][same]]] = 0
            remove(path)
        yield first[:total].view(np.bool_)
    remove_tree(folder)


def _spread(parts: Sequence[Part], folder: Path, bits: int) -> list[Path]:
    """Write an _ENTRY per document to one of 2**bits files, by the highest `bits` bits of its hash; return their paths."""
    paths = [folder / f"{number:03d}" for number in range(1 << bits)]
    document = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(create(path)) for path in paths]
        for part in parts:
            for rows in part.rows():
                entries = np.zeros(rows.size, _ENTRY)
                entries["content"] = rows["content"]
                entries["document"] = np.arange(document, document + rows.size)
                document += rows.size
                numbers = (rows["content"][:, 1] >> np.uint64(64 - bits)) if bits else np.zeros(rows.size, np.uint64)
                for number in np.unique(numbers):
                    files[number].write(entries[numbers == number].data)
    return paths
