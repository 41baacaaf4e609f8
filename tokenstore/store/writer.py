"""Write a store's files into a working directory (FMT-2, FMT-3): shards and boundaries stream out, nothing is kept."""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import xxhash

from tokenstore.errors import BuildError
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    INPUTS_NAME,
    MANIFEST_NAME,
    lookup_entries,
    mask_name,
    shard_name,
    token_dtype,
)
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, encode_manifest
from tokenstore.store.files import append_file, make_read_only, sync, write_atomically

_LOOKUP_PART = "lookup.part"


class StoreWriter:
    """Appends documents to a new store in `folder`. Nothing there is a store before `finish` has written the manifest.

    Memory does not grow with the store. An id outside the vocabulary is refused, never wrapped.
    """

    def __init__(self, folder: Path, vocab_size: int, shard_bytes: int, masks: bool = False):
        self.folder = folder
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self._shard_tokens = max(1, shard_bytes // self.dtype.itemsize)
        self._shards: list[ShardEntry] = []
        self._files: dict[str, FileEntry] = {}
        with contextlib.ExitStack() as opened:
            self._tokens, self._boundaries, self._lookup = (
                opened.enter_context(_Output(folder / name)) for name in (shard_name(0), BOUNDARIES_NAME, _LOOKUP_PART)
            )
            self._mask = opened.enter_context(_Output(folder / mask_name(0))) if masks else None
            opened.pop_all()
        self._bits = np.empty(0, np.bool_)  # of the open shard, those that do not fill a byte yet
        self._shard_start = (0, 0)  # stream position and document at which the open shard begins
        self.num_tokens = 0
        self.num_documents = 0

    def append(self, tokens: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Append documents.

        Args:
            tokens: unsigned integers[sum of lengths], the documents one after the other.
            lengths: int64[n], tokens of each, each >= 1.
            mask: bool[sum of lengths], which tokens are to be learned; in a store with masks, and only there.
        """
        if lengths.size == 0:
            return
        if tokens.dtype.kind != "u":  # a negative id would wrap to a valid one
            raise TypeError(f"tokens: expected unsigned integers, found {tokens.dtype}")
        if tokens.size != int(lengths.sum()) or int(lengths.min()) < 1:
            raise ValueError(
                f"lengths: expected {tokens.size} tokens in documents of at least 1, found {int(lengths.sum())}"
            )
        if (mask is None) != (self._mask is None) or (mask is not None and mask.shape != tokens.shape):
            rule = "none, as this store has no masks" if self._mask is None else f"bool[{tokens.size}]"
            raise ValueError(f"mask: expected {rule}, found {None if mask is None else mask.shape}")
        if int(tokens.max()) >= self.vocab_size:
            raise BuildError(
                f"token id: expected ids below {self.vocab_size}, found {tokens.max()}; the tokenizer and its vocabulary disagree"
            )
        tokens = tokens.astype(self.dtype, copy=False)
        ends = np.cumsum(lengths)
        done = 0
        while done < lengths.size:  # one turn a shard
            first = int(ends[done - 1]) if done else 0
            room = self._shard_start[0] + self._shard_tokens - self.num_tokens
            fit = int(np.searchsorted(ends, first + room, side="right"))
            if fit <= done and self.num_tokens > self._shard_start[0]:
                self._seal_shard()
                continue
            fit = max(fit, done + 1)
            if mask is not None:
                self._append_mask(mask[first : int(ends[fit - 1])])
            self._append_run(tokens[first : int(ends[fit - 1])], lengths[done:fit])
            done = fit

    def _append_run(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        starts = self.num_tokens + np.cumsum(lengths) - lengths
        stop = self.num_tokens + tokens.size
        self._tokens.write(tokens)
        self._boundaries.write(starts.astype("<i8"))
        self._lookup.write(lookup_entries(starts, self.num_tokens, stop, self.num_documents).astype("<i8"))
        self.num_tokens = stop
        self.num_documents += lengths.size

    def _append_mask(self, mask: np.ndarray) -> None:
        bits = np.append(self._bits, mask.astype(np.bool_, copy=False))
        whole = bits.size // 8 * 8
        self._mask.write(np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]

    def _seal_mask(self) -> None:
        self._mask.write(np.packbits(self._bits, bitorder="little"))
        self._bits = self._bits[:0]
        self._files[self._mask.path.name] = FileEntry(*self._mask.close())
        self._mask = _Output(self.folder / mask_name(len(self._shards) + 1))

    def _seal_shard(self) -> None:
        first_token, first_document = self._shard_start
        if self._mask is not None:
            self._seal_mask()
        num_bytes, checksum = self._tokens.close()
        self._shards.append(
            ShardEntry(
                file=self._tokens.path.name,
                num_bytes=num_bytes,
                num_tokens=self.num_tokens - first_token,
                first_token=first_token,
                num_documents=self.num_documents - first_document,
                first_document=first_document,
                checksum=checksum,
            )
        )
        self._shard_start = (self.num_tokens, self.num_documents)
        self._tokens = _Output(self.folder / shard_name(len(self._shards)))

    def add_file(self, name: str, data: bytes) -> None:
        """Add a side file."""
        with _Output(self.folder / name) as output:
            output.write(np.frombuffer(data, np.uint8))
            self._files[name] = FileEntry(*output.close())

    def finish(self, inputs: bytes, **fields: object) -> Manifest:
        """Seal what is open, sync every file and write the manifest.

        Args:
            inputs: the bytes of inputs.jsonl.
            fields: the manifest's remaining fields: ends_with_eos, tokenizer, options, counts, versions.
        """
        if self.num_documents == 0:
            raise BuildError("documents: expected at least one, found none; nothing was written")
        self._seal_shard()
        self._tokens.discard()
        if self._mask is not None:
            self._mask.discard()
        self._boundaries.write(np.array([self.num_tokens], "<i8"))
        self._lookup.close()
        self._boundaries.append(self._lookup.path)
        self._lookup.path.unlink()
        self._files[BOUNDARIES_NAME] = FileEntry(*self._boundaries.close())
        self.add_file(INPUTS_NAME, inputs)
        manifest = Manifest(
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            shards=tuple(self._shards),
            files=dict(sorted(self._files.items())),
            **fields,
        )
        write_atomically(self.folder / MANIFEST_NAME, encode_manifest(manifest))
        make_read_only(self.folder / MANIFEST_NAME)
        return manifest

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for output in (self._tokens, self._boundaries, self._lookup, self._mask):
            if output is not None:
                output.abandon()


class _Output:
    """A new file with its running size and checksum."""

    def __init__(self, path: Path):
        self.path = path
        self._file: BinaryIO = open(path, "wb", buffering=1 << 20)  # noqa: SIM115  # closed by close()
        self._checksum = xxhash.xxh3_128()
        self._num_bytes = 0

    def write(self, array: np.ndarray) -> None:
        data = memoryview(np.ascontiguousarray(array)).cast("B")
        self._update(data)
        self._file.write(data)

    def append(self, source: Path) -> None:
        append_file(source, self._file, self._update)

    def _update(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._num_bytes += len(data)

    def close(self) -> tuple[int, str]:
        """Sync, make read-only; return size in bytes and checksum."""
        sync(self._file)
        self._file.close()
        make_read_only(self.path)
        return self._num_bytes, self._checksum.hexdigest()

    def __enter__(self) -> "_Output":
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the error that brought us here matters, not this one
            self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink()
