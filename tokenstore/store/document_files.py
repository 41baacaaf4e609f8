"""Writes the files with an entry per document: boundaries (FMT-3), origins, ids (FMT-11, 12) and those of FMT-16 to FMT-18."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenstore.errors import BuildError
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    MAX_ID_BYTES,
    METADATA_NAME,
    ORIGINS_NAME,
    id_starts_bytes,
    lookup_entries,
    versioned,
)
from tokenstore.format.manifest import FileEntry
from tokenstore.store.metadata import MetadataOutput, encode_metadata
from tokenstore.store.output import Output, StartsOutput, copy_parts
from tokenstore.store.reader import Store


class Columns(NamedTuple):
    """What a store has for each document, besides its tokens.

    Attributes:
        origins: the number of its record.
        ids: its id.
        metadata: names of the columns of metadata; () for none.
        shuffled: the number of its input, as documents are not in the order of the inputs.
        contents: a hash of its content.
    """

    origins: bool = False
    ids: bool = False
    metadata: tuple[str, ...] = ()
    shuffled: bool = False
    contents: bool = False

    @classmethod
    def of(cls, store: Store) -> "Columns":
        """The columns of an existing store."""
        has = store.manifest
        return cls(
            has.has_origins, has.has_ids, store.metadata_columns, has.has_document_inputs, has.has_content_hashes
        )


class Documents(NamedTuple):
    """Some documents without their tokens. What the store does not have is None.

    Attributes:
        lengths: int64[n], tokens of each, at least 1.
        origins: int64[n], number of each document's record in its input, from 1.
        ids: n strings of at most MAX_ID_BYTES bytes of UTF-8.
        metadata: n rows, each the JSON list of a document's values.
        inputs: int64[n], line of each document's input in inputs.jsonl, from 0.
        contents: uint64[n, 2], hash of each document's content.
    """

    lengths: np.ndarray
    origins: np.ndarray | None = None
    ids: Sequence[str] | None = None
    metadata: Sequence[bytes] | None = None
    inputs: np.ndarray | None = None
    contents: np.ndarray | None = None


class DocumentFiles:
    """Writes the files of `columns`, and the boundaries, for one version of a store. Memory does not grow with the documents.

    Attributes:
        num_documents, num_tokens: of the documents written so far.
    """

    def __init__(self, folder: Path, columns: Columns, version: int = 1, buffer_bytes: int = 1 << 20):
        def path(name: str) -> Path:
            return folder / versioned(name, version)

        self.num_tokens = self.num_documents = 0
        self._num_id_bytes = 0
        with contextlib.ExitStack() as opened:
            keep = opened.enter_context
            self._boundaries = keep(StartsOutput(path(BOUNDARIES_NAME), buffer_bytes))
            self._origins = keep(Output(path(ORIGINS_NAME), buffer_bytes)) if columns.origins else None
            self._inputs = keep(Output(path(DOCUMENT_INPUTS_NAME), buffer_bytes)) if columns.shuffled else None
            self._contents = keep(Output(path(CONTENT_HASHES_NAME), buffer_bytes)) if columns.contents else None
            self._ids = keep(StartsOutput(path(IDS_NAME), buffer_bytes)) if columns.ids else None
            columns_of = columns.metadata
            self._metadata = keep(MetadataOutput(path(METADATA_NAME), columns_of, buffer_bytes)) if columns_of else None
            self._held = opened.pop_all()

    def continue_from(self, base: Store) -> None:
        """Copy the entries of all documents of `base`. CorruptionError if one of its files is damaged."""
        self._boundaries.continue_from(base.file(BOUNDARIES_NAME), base.entry(BOUNDARIES_NAME), len(base))
        for name, output in ((ORIGINS_NAME, self._origins), (DOCUMENT_INPUTS_NAME, self._inputs)):
            if output is not None:
                copy_parts(base.file(name), base.entry(name), [(output, 8 * len(base))])
        if self._contents is not None:
            copy_parts(
                base.file(CONTENT_HASHES_NAME), base.entry(CONTENT_HASHES_NAME), [(self._contents, 16 * len(base))]
            )
        if self._metadata is not None:
            for rows in base.metadata_rows():
                self._metadata.write([encode_metadata(row) for row in rows])
        if self._ids is not None:
            self._ids.continue_from(base.file(IDS_NAME), base.entry(IDS_NAME), len(base))
            self._num_id_bytes = base.entry(IDS_NAME).num_bytes - id_starts_bytes(len(base))
        self.num_documents, self.num_tokens = len(base), base.num_tokens

    def check(self, documents: Documents) -> list[bytes]:
        """The ids as UTF-8. Raises the errors of `append`."""
        count = documents.lengths.size
        _check_numbers("origins", documents.origins, count, self._origins is not None, 1)
        _check_numbers("inputs", documents.inputs, count, self._inputs is not None, 0)
        if (documents.contents is None) != (self._contents is None):
            raise ValueError("contents: expected if and only if the store has hashes of contents")
        if (documents.metadata is None) != (self._metadata is None):
            raise ValueError("metadata: expected if and only if the store has columns of metadata")
        return _encoded(documents.ids, count, self._ids is not None)

    def append(self, documents: Documents) -> None:
        """Append documents. If one is rejected, none of them is written.

        Raises:
            BuildError: an id or a row of metadata is too long, or an id cannot be encoded as UTF-8.
            ValueError: something is missing that the store has, or given that it does not have, or of another size.
        """
        texts = self.check(documents)
        starts = self.num_tokens + np.cumsum(documents.lengths) - documents.lengths
        stop = self.num_tokens + int(documents.lengths.sum())
        if self._metadata is not None and documents.metadata is not None:
            self._metadata.write(documents.metadata)
        if self._origins is not None and documents.origins is not None:
            self._origins.write(documents.origins.astype("<i8"))
        if self._contents is not None and documents.contents is not None:
            self._contents.write(np.ascontiguousarray(documents.contents, "<u8"))
        if self._inputs is not None and documents.inputs is not None:
            self._inputs.write(documents.inputs.astype("<i8"))
        if self._ids is not None:
            self._append_ids(self._ids, texts)
        self._boundaries.starts.write(starts.astype("<i8"))
        lookup = lookup_entries(starts, self.num_tokens, stop, self.num_documents)
        self._boundaries.rest.write(lookup.astype("<i8"))
        self.num_tokens, self.num_documents = stop, self.num_documents + starts.size

    def _append_ids(self, output: StartsOutput, texts: Sequence[bytes]) -> None:
        ends = self._num_id_bytes + np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        output.starts.write(np.append(self._num_id_bytes, ends[:-1]).astype("<i8"))
        output.rest.write(b"".join(texts))
        self._num_id_bytes = int(ends[-1])

    def empty_columns(self) -> list[str]:
        """The columns of metadata in which no document has a value."""
        return [] if self._metadata is None else self._metadata.empty_columns()

    def close(self) -> dict[str, FileEntry]:
        """Finish and sync the files. Returns their entries by name."""
        found = {self._boundaries.path.name: self._boundaries.close(self.num_tokens)}
        for output in (self._origins, self._inputs, self._contents, self._metadata):
            if output is not None:
                found[output.path.name] = output.close()
        if self._ids is not None:
            found[self._ids.path.name] = self._ids.close(self._num_id_bytes)
        return found

    def abandon(self) -> None:
        """Close the files without raising."""
        self._held.close()

    def __enter__(self) -> "DocumentFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()


def _check_numbers(name: str, numbers: np.ndarray | None, count: int, wanted: bool, least: int) -> None:
    of_numbers = numbers is not None and numbers.shape == (count,) and numbers.dtype.kind in "iu"
    fits = of_numbers if wanted else numbers is None
    if not fits:
        rule = f"int64[{count}]" if wanted else f"none, because this store has no {name}"
        found = None if numbers is None else f"{numbers.dtype}{list(numbers.shape)}"
        raise ValueError(f"{name}: expected {rule}, found {found}")
    if numbers is not None and not least <= int(numbers.min()) <= int(numbers.max()) < 1 << 63:
        raise ValueError(f"{name}: expected record numbers from {least}, found {numbers.min()}..{numbers.max()}")


def _encoded(ids: Sequence[str] | None, count: int, wanted: bool) -> list[bytes]:
    """The ids as UTF-8; [] if the store has none."""
    fits = not wanted if ids is None else wanted and not isinstance(ids, str) and len(ids) == count
    if not fits:
        rule = f"{count} strings" if wanted else "none, because this store has no ids"
        raise ValueError(f"ids: expected {rule}, found {None if ids is None else len(ids)}")
    try:
        texts = [text.encode() for text in ids or ()]
    except UnicodeEncodeError as error:
        raise BuildError(f"id: cannot encode {ascii(error.object)[:120]} as UTF-8; change it") from None
    if texts and len(longest := max(texts, key=len)) > MAX_ID_BYTES:
        raise BuildError(
            f"id: expected at most {MAX_ID_BYTES} bytes, found {len(longest)}"
            f" ({longest[:60].decode(errors='ignore')!a}...); shorten it"
        )
    return texts
