"""Writes the files of a store into a working directory (FMT-2, FMT-3, FMT-10..15), streaming: nothing is kept in memory."""

import contextlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

import numpy as np

from tokenstore.errors import BuildError
from tokenstore.format.input_lines import decode_rows
from tokenstore.format.layout import (
    BLOCK_CHECKSUMS_NAME,
    INPUTS_NAME,
    MANIFEST_NAME,
    MAX_VERSION,
    mask_of,
    shard_name,
    token_dtype,
    version_of,
    versioned,
)
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.document_files import Columns, DocumentFiles, Documents
from tokenstore.store.find_manifest import names_in_use
from tokenstore.store.output import Output, copy_parts, read_checked
from tokenstore.store.reader import Store
from tokenstore.store.writing import write_atomically


class GivenFields(TypedDict, total=False):
    """The fields of a manifest that do not follow from the documents."""

    ends_with_eos: bool
    tokenizer: TokenizerEntry
    options: dict[str, Any]
    counts: dict[str, int]
    package_versions: dict[str, str]


class FileWriter:
    """Writes documents to a new store in `folder`. It is not a store until `finish` has written the manifest.

    Memory does not grow with the store. A token id outside the vocabulary is rejected, never wrapped.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        shard_bytes: int,
        masks: bool = False,
        columns: Columns = Columns(),  # noqa: B008  # immutable
        block_checksums: bool = False,
        base: Store | None = None,
        buffer_bytes: int = 1 << 20,
    ):
        """Create the first files.

        Args:
            folder: an empty directory.
            vocab_size: size of the vocabulary; every token id must be smaller.
            shard_bytes: target size of a shard in bytes.
            masks: whether documents come with a loss mask.
            columns: what else documents come with.
            block_checksums: whether to write checksums of blocks (FMT-15).
            base: the store to extend; set by `extending`.
            buffer_bytes: size of the buffer of each file.
        """
        self.folder = folder
        self.vocab_size = vocab_size
        self.dtype = base.dtype if base else token_dtype(vocab_size)
        self._base = base
        self._has_origins = columns.origins
        self._buffer_bytes = buffer_bytes
        self._shard_tokens = max(1, shard_bytes // self.dtype.itemsize)
        self._shards: list[ShardEntry] = list(base.shards()) if base else []
        self._files = {} if base is None else _shared_files(base.manifest)
        self._inputs = b""  # inputs.jsonl of the base
        self.num_tokens = base.num_tokens if base else 0
        self.num_documents = len(base) if base else 0
        self._bits = np.empty(0, np.bool_)  # mask bits of the open shard that do not fill a byte yet
        self._shard_start = (self.num_tokens, self.num_documents)  # where the open shard begins
        self._taken = names_in_use(base.path) if base else frozenset()
        with contextlib.ExitStack() as opened:
            blocks = folder / self._name(BLOCK_CHECKSUMS_NAME)
            self._block_checksums = opened.enter_context(Output(blocks, buffer_bytes)) if block_checksums else None
            self._tokens = opened.enter_context(self._output(self._shard_name(len(self._shards))))
            self._mask = (
                opened.enter_context(self._output(mask_of(self._shard_name(len(self._shards))))) if masks else None
            )
            version = base.version + 1 if base else 1
            self._columns = opened.enter_context(DocumentFiles(folder, columns, version, buffer_bytes))
            if base and self._block_checksums is not None:
                entry = base.entry(BLOCK_CHECKSUMS_NAME)
                copy_parts(base.file(BLOCK_CHECKSUMS_NAME), entry, [(self._block_checksums, entry.num_bytes)])
            if base:
                if base.has_file(INPUTS_NAME):
                    self._inputs = read_checked(base.file(INPUTS_NAME), base.entry(INPUTS_NAME))
                self._columns.continue_from(base)
            opened.pop_all()

    @classmethod
    def extending(cls, base: Store, folder: Path, shard_bytes: int) -> "FileWriter":
        """A writer for the next version of `base` (FMT-13). `commit_append` then moves it into the store.

        New documents begin in a new shard after those of `base`. They come with masks, origins and ids exactly if those of `base` do.

        Raises:
            CorruptionError: a file of `base` that has to be copied is damaged.
            BuildError: `base` already has the largest version number.
        """
        if base.version >= MAX_VERSION:
            raise BuildError(f"version: expected one below {MAX_VERSION}, found {base.version} ({base.path})")
        parts = (base.manifest.has_masks, Columns.of(base), base.has_block_checksums)
        return cls(folder, base.vocab_size, shard_bytes, *parts, base)

    def _output(self, name: str) -> Output:
        """A new shard or mask."""
        return Output(self.folder / name, self._buffer_bytes, None if self._block_checksums is None else BlockHasher())

    def _write_blocks(self, output: Output) -> None:
        """Write the checksums of the blocks of a shard or mask that is complete."""
        if self._block_checksums is not None and output.blocks is not None:
            self._block_checksums.write(output.blocks.digests())

    def _shard_name(self, index: int) -> str:
        """A name that no version has: numbers are free again after documents were dropped (FMT-19)."""
        name = shard_name(index)
        return self._name(name) if name in self._taken else name

    def _name(self, name: str) -> str:
        return versioned(name, self._base.version + 1 if self._base else 1)

    def append(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        mask: np.ndarray | None = None,
        origins: np.ndarray | None = None,
        ids: Sequence[str] | None = None,
        metadata: Sequence[bytes] | None = None,
        inputs: np.ndarray | None = None,
        contents: np.ndarray | None = None,
    ) -> None:
        """Append documents. If one is rejected, none of them is written.

        Args:
            tokens: unsigned integers[sum of lengths], the token ids of all documents, concatenated.
            lengths: int64[n], number of tokens of each document, each >= 1.
            mask: bool[sum of lengths], which tokens are in the loss; given if and only if the store has masks.
            origins, ids, metadata, inputs, contents: as in `Documents`; likewise.

        Raises:
            BuildError: a token id is outside the vocabulary, or an id is too long or cannot be encoded as UTF-8.
            TypeError, ValueError: the arrays do not have these dtypes and sizes.
        """
        if lengths.size == 0:
            return
        if tokens.dtype.kind != "u":  # a negative id would wrap to a valid id
            raise TypeError(f"tokens: expected unsigned integers, found {tokens.dtype}")
        if tokens.size != int(lengths.sum()) or int(lengths.min()) < 1:
            raise ValueError(
                f"lengths: expected {tokens.size} tokens in documents of at least 1, found {int(lengths.sum())}"
            )
        if (mask is None) != (self._mask is None) or (mask is not None and mask.shape != tokens.shape):
            rule = "none, because this store has no masks" if self._mask is None else f"bool[{tokens.size}]"
            raise ValueError(f"mask: expected {rule}, found {None if mask is None else mask.shape}")
        documents = Documents(lengths, origins, ids, metadata, inputs, contents)
        self._columns.check(documents)
        if int(tokens.max()) >= self.vocab_size:
            raise BuildError(
                f"token id: expected token ids below {self.vocab_size}, found {tokens.max()};"
                " the tokenizer and vocab_size do not match"
            )
        self._columns.append(documents)
        self._append_tokens(tokens.astype(self.dtype, copy=False), lengths, mask)

    def _append_tokens(self, tokens: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None) -> None:
        ends = np.cumsum(lengths)
        done = 0
        while done < lengths.size:  # one iteration per shard
            first = int(ends[done - 1]) if done else 0
            room = self._shard_start[0] + self._shard_tokens - self.num_tokens
            fit = int(np.searchsorted(ends, first + room, side="right"))
            if fit <= done and self.num_tokens > self._shard_start[0]:
                self._seal_shard()
                continue
            fit = max(fit, done + 1)
            if self._mask is not None and mask is not None:
                self._append_mask(self._mask, mask[first : int(ends[fit - 1])])
            self._append_run(tokens[first : int(ends[fit - 1])], lengths[done:fit])
            done = fit

    def _append_run(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        self._tokens.write(tokens)
        self.num_tokens += tokens.size
        self.num_documents += lengths.size

    def _append_mask(self, output: Output, mask: np.ndarray) -> None:
        bits = np.append(self._bits, mask.astype(np.bool_, copy=False))
        whole = bits.size // 8 * 8
        output.write(np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]

    def _seal_mask(self, output: Output) -> None:
        output.write(np.packbits(self._bits, bitorder="little"))
        self._bits = self._bits[:0]
        self._files[output.path.name] = output.close()
        self._write_blocks(output)
        self._mask = self._output(mask_of(self._shard_name(len(self._shards) + 1)))

    def _seal_shard(self) -> None:
        first_token, first_document = self._shard_start
        entry = self._tokens.close()
        self._write_blocks(self._tokens)
        if self._mask is not None:
            self._seal_mask(self._mask)
        self._shards.append(
            ShardEntry(
                file=self._tokens.path.name,
                num_bytes=entry.num_bytes,
                num_tokens=self.num_tokens - first_token,
                first_token=first_token,
                num_documents=self.num_documents - first_document,
                first_document=first_document,
                checksum=entry.checksum,
            )
        )
        self._shard_start = (self.num_tokens, self.num_documents)
        self._tokens = self._output(self._shard_name(len(self._shards)))

    def empty_columns(self) -> list[str]:
        """The columns of metadata in which no document has a value."""
        return self._columns.empty_columns()

    def add_file(self, name: str, data: bytes) -> None:
        """Add a side file. ValueError if the store already has a file of that name."""
        if name in self._files:
            raise ValueError(f"file: the store already has a file {name!r}")
        with Output(self.folder / name) as output:
            output.write(data)
            self._files[name] = output.close()

    def finish(self, inputs: bytes, **fields: Unpack[GivenFields]) -> Manifest:
        """Close the open shard, sync every file and write the manifest.

        Args:
            inputs: the bytes of inputs.jsonl; when extending a store, only the lines of the new documents.
            fields: the remaining fields of the manifest: ends_with_eos, tokenizer, options, counts, package_versions. When extending
                a store, omitted fields keep their values; tokenizer and ends_with_eos cannot change.

        Returns:
            The manifest.

        Raises:
            BuildError: no document was appended.
            CorruptionError: the store has origins, and `inputs` does not count the documents that were appended.
        """
        if self.num_documents == (len(self._base) if self._base else 0):
            raise BuildError("documents: there are none to write; no store was written")
        if self._base is not None:
            fields = _continued(self._base.manifest, fields)
        inputs = self._inputs + inputs
        if self._has_origins:
            for _ in decode_rows(BytesIO(inputs), self.num_documents, self._name(INPUTS_NAME)):
                pass  # checks every row, and at the end their sum
        self._seal_all()
        self.add_file(self._name(INPUTS_NAME), inputs)
        manifest = Manifest(
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            shards=tuple(self._shards),
            files=dict(sorted(self._files.items())),
            **fields,
        )
        write_atomically(self.folder / MANIFEST_NAME, encode_manifest(manifest), read_only=True)
        return manifest

    def _seal_all(self) -> None:
        self._seal_shard()
        self._tokens.discard()
        if self._mask is not None:
            self._mask.discard()
        self._files.update(self._columns.close())
        if self._block_checksums is not None:
            self._files[self._name(BLOCK_CHECKSUMS_NAME)] = self._block_checksums.close()

    def __enter__(self) -> "FileWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for output in (self._tokens, self._mask, self._columns, self._block_checksums):
            if output is not None:
                output.abandon()


def _shared_files(base: Manifest) -> dict[str, FileEntry]:
    """Files that a version shares with the version before it: masks and the tokenizer's files."""
    return {name: entry for name, entry in base.files.items() if version_of(name) is None}


def _continued(base: Manifest, fields: GivenFields) -> GivenFields:
    """The fields of the next version of `base`. ValueError for another tokenizer or other document endings."""
    tokenizer = fields.get("tokenizer", base.tokenizer)
    for name in ("kind", "file", "sha256", "eos_id", "bos_id", "pad_id"):
        if getattr(tokenizer, name) != getattr(base.tokenizer, name):
            found, rule = getattr(tokenizer, name), getattr(base.tokenizer, name)
            raise ValueError(f"tokenizer.{name}: expected {rule!r} as in the extended store, found {found!r}")
    if fields.get("ends_with_eos", base.ends_with_eos) != base.ends_with_eos:
        raise ValueError(f"ends_with_eos: expected {base.ends_with_eos} as in the extended store")
    kept: GivenFields = {
        "ends_with_eos": base.ends_with_eos,
        "tokenizer": base.tokenizer,
        "options": base.options,
        "counts": base.counts,
        "package_versions": base.package_versions,
    }
    kept.update(fields)
    return kept
