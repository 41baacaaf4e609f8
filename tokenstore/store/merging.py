"""Joins finished stores into one: the shards are hard links, only the files with an entry per document are written (FMT-2..15)."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.format.layout import (
    BLOCK_CHECKSUMS_NAME,
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    INPUTS_NAME,
    METADATA_NAME,
    ORIGINS_NAME,
    mask_name,
    mask_of,
    shard_name,
)
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.paths import resolved
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.document_files import Columns, DocumentFiles, Documents
from tokenstore.store.files import identity_of
from tokenstore.store.input_list import checked_rows
from tokenstore.store.metadata import encode_metadata
from tokenstore.store.output import Output, copy_parts, read_checked
from tokenstore.store.reader import Store
from tokenstore.store.writing import link_file

_BLOCK = 1 << 16  # documents at once
_ONES = np.full(1 << 20, 255, np.uint8)
_READ_AGAIN = (
    BLOCK_CHECKSUMS_NAME,
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    METADATA_NAME,
    ORIGINS_NAME,
)


def merged_columns(stores: Sequence[Store]) -> Columns:
    """What the documents of the merged store have: origins if all stores have them, ids and metadata if one has them."""
    each = [Columns.of(store) for store in stores]
    names = tuple(dict.fromkeys(name for columns in each for name in columns.metadata))
    origins = all(columns.origins for columns in each)
    contents = all(columns.contents for columns in each)
    return Columns(origins, any(c.ids for c in each), names, origins and any(c.shuffled for c in each), contents)


class Merger:
    """Writes the files of a merged store into a folder, store by store.

    Args:
        folder: an empty directory on the file system of the new store.
        columns: what its documents have.
        masks: whether it has loss masks. All tokens of a store without masks are in the loss.
        block_checksums: whether it has block checksums, because all stores have them.
        note: called once if a file had to be copied, because the stores are on several file systems.

    Attributes:
        shards, files: entries of the files written so far.
        inputs: the lines of inputs.jsonl.
    """

    def __init__(self, folder: Path, columns: Columns, masks: bool, block_checksums: bool, note: Callable[[str], None]):
        self.folder, self._columns, self._masks, self._note = folder, columns, masks, note
        self.shards: list[ShardEntry] = []
        self.files: dict[str, FileEntry] = {}
        self.inputs: list[bytes] = []
        with contextlib.ExitStack() as opened:
            self._documents = opened.enter_context(DocumentFiles(folder, columns))
            blocks = folder / BLOCK_CHECKSUMS_NAME
            self._blocks = opened.enter_context(Output(blocks)) if block_checksums else None
            self._held = opened.pop_all()
        self._has_copied = False

    def add(self, store: Store) -> None:
        """Add the documents of a store.

        Raises:
            CorruptionError: a file of the store is damaged.
            OSError: the disk is full.
        """
        check_document_files(store)
        token, document = self._documents.num_tokens, self._documents.num_documents
        for number, shard in enumerate(store.shards()):
            index = len(self.shards)
            self._take(store, number, shard_name(index))
            self._add_blocks(store.block_checksums(number))
            if self._masks:
                self._add_mask(store, number, shard, mask_name(index))
            self.shards.append(
                replace(
                    shard,
                    file=shard_name(index),
                    first_token=token + shard.first_token,
                    first_document=document + shard.first_document,
                )
            )
        first_input = len(self.inputs)
        self.inputs += _input_lines(store)
        with forged_values(store):
            for documents in self._of(store, first_input):
                self._documents.append(documents)

    def _add_blocks(self, checksums: np.ndarray | None) -> None:
        if self._blocks is not None and checksums is not None:
            self._blocks.write(checksums)

    def _take(self, store: Store, number: int, name: str) -> None:
        """Link a file of a store, or copy it from another file system."""
        source, entry = store.file_of(number)
        if not link_file(resolved(source), self.folder / name):
            if not self._has_copied:
                self._note(f"{store.path} cannot be linked from here: its files are copied")
            self._has_copied = True
            with Output(self.folder / name) as output:
                copy_parts(source, entry, [(output, entry.num_bytes)])
                output.close()
        store.check_files([number])  # it may have been replaced while it was linked
        found = identity_of(self.folder / name).num_bytes
        if found != entry.num_bytes:
            raise CorruptionError(
                f"file size: expected {entry.num_bytes} bytes, found {found} ({source}); copy the store again"
            )

    def _add_mask(self, store: Store, number: int, shard: ShardEntry, name: str) -> None:
        if store.manifest.has_masks:
            self._take(store, store.mask_number(number), name)
            self._add_blocks(store.block_checksums(store.mask_number(number)))
            self.files[name] = store.manifest.files[mask_of(store.shards()[number].file)]
            return
        whole, rest = divmod(shard.num_tokens, 8)
        hasher = BlockHasher()
        with Output(self.folder / name, blocks=hasher) as output:
            for first in range(0, whole, _ONES.size):
                output.write(_ONES[: whole - first])
            output.write(bytes([(1 << rest) - 1]) if rest else b"")
            self.files[name] = output.close()
        self._add_blocks(hasher.digests())

    def _of(self, store: Store, first_input: int) -> Iterator[Documents]:
        """The documents of a store in blocks, with the columns of the merged store."""
        starts, has = store.boundaries(), self._columns
        names, rows = Columns.of(store).metadata, _rows(store)
        for first in range(0, len(store), _BLOCK):
            stop = min(first + _BLOCK, len(store))
            lengths = np.diff(starts[first : stop + 1])
            if int(lengths.min()) < 1:
                raise CorruptionError(
                    f"boundaries: expected documents of at least 1 token ({store.path}); run `tokenstore verify`"
                )
            values = [dict(zip(names, next(rows), strict=True)) for _ in range(first, stop)] if has.metadata else None
            yield Documents(
                lengths,
                origins=np.array(store.origins()[first:stop]) if has.origins else None,
                ids=_ids(store, first, stop) if has.ids else None,
                metadata=None
                if values is None
                else [encode_metadata([each.get(name) for name in has.metadata]) for each in values],
                inputs=first_input + _inputs_of(store, first, stop) if has.shuffled else None,
                contents=np.array(store.content_hashes()[first:stop]) if has.contents else None,
            )

    def close(self) -> None:
        """Finish the files with an entry per document, and list all files in `files`."""
        self.files |= self._documents.close()
        if self._blocks is not None:
            self.files[BLOCK_CHECKSUMS_NAME] = self._blocks.close()
        with Output(self.folder / INPUTS_NAME) as output:
            output.write(b"".join(self.inputs))
            self.files[INPUTS_NAME] = output.close()

    def add_file(self, store: Store, name: str) -> None:
        """Copy a small file of a store, such as its tokenizer. CorruptionError if it is damaged."""
        self.add_data(name, read_checked(store.path / name, store.manifest.files[name]))

    def add_data(self, name: str, data: bytes) -> None:
        """Add a small file."""
        with Output(self.folder / name) as output:
            output.write(data)
            self.files[name] = output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()


def check_document_files(store: Store) -> None:
    """Read the files that are written again for another store, with an entry per document or block, and compare their checksums.

    Raises:
        CorruptionError: one is damaged; damage must not get a new, matching checksum.
    """
    for name in _READ_AGAIN:
        if store.has_file(name):
            entry = store.entry(name)
            copy_parts(store.file(name), entry, [(None, entry.num_bytes)])


@contextlib.contextmanager
def forged_values(store: Store) -> Iterator[None]:
    """CorruptionError if values of a store are refused by the writer of another one."""
    try:
        yield
    except ValueError as error:
        raise CorruptionError(f"{error} ({store.path}); run `tokenstore verify`, and build the store again") from error


def _ids(store: Store, first: int, stop: int) -> list[str]:
    """The ids of documents [first, stop); empty ones if the store has none."""
    return store.ids_between(first, stop) if store.has_ids else [""] * (stop - first)


def _rows(store: Store) -> Iterator[list[object]]:
    """The metadata of each document; without metadata, rows without values."""
    if store.has_metadata:
        for rows in store.metadata_rows():
            yield from rows
    else:
        for _ in range(len(store)):
            yield []


def _input_lines(store: Store) -> list[bytes]:
    """The lines of the inputs of a store; one line that names the store if it has none."""
    if store.has_file(INPUTS_NAME) and store.entry(INPUTS_NAME).num_bytes:
        path, entry = store.file(INPUTS_NAME), store.entry(INPUTS_NAME)
        for _ in checked_rows(path, entry, len(store), store.allow_links):
            pass  # checks every line, the checksum and the sum of documents
        return read_checked(path, entry).splitlines(keepends=True)
    return [encode_row(InputRow(store.path.name, len(store)), {})]


def _inputs_of(store: Store, first: int, stop: int) -> np.ndarray:
    """int64[stop - first], the line of each document's input, from 0."""
    if store.manifest.has_document_inputs:
        found = np.array(store.document_inputs()[first:stop])
        if not 0 <= int(found.min()) <= int(found.max()) < len(store.inputs()):
            raise CorruptionError(
                f"document inputs: expected lines of inputs.jsonl ({store.path}); run `tokenstore verify`"
            )
        return found
    return np.searchsorted(store.inputs().ends, np.arange(first, stop), side="right")


def check_alike(stores: Sequence[Store]) -> None:
    """ConfigError unless the stores were written by tokenstore and have one tokenizer, one vocabulary and the same ends of documents."""
    first = _alike(stores[0])
    for store in stores:
        if store.manifest.is_adopted:
            raise ConfigError(
                f"merge: {store.path} was adopted from files of another tool, which may still change; adopt all files in one"
                " command, or name both stores in the plan"
            )
    for store in stores[1:]:
        for name, value in _alike(store).items():
            if value != first[name]:
                raise ConfigError(
                    f"merge: expected stores with the same {name}, found {first[name]!r} in {stores[0].path} and {value!r} in"
                    f" {store.path}; build them with the same tokenizer and options"
                )


def _alike(store: Store) -> dict[str, object]:
    has = store.manifest
    tokenizer = {
        f"tokenizer {name}": getattr(has.tokenizer, name) for name in ("kind", "sha256", "eos_id", "bos_id", "pad_id")
    }
    return {**tokenizer, "vocabulary": has.vocab_size, "dtype": has.dtype, "end of documents": has.ends_with_eos}
