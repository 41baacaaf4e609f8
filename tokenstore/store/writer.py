"""Write a store's files into a working directory (FMT-2, FMT-3, FMT-10..13): all streams out, nothing is kept."""

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
    BOUNDARIES_NAME,
    IDS_NAME,
    INPUTS_NAME,
    MANIFEST_NAME,
    MAX_ID_BYTES,
    MAX_VERSION,
    ORIGINS_NAME,
    id_starts_bytes,
    lookup_entries,
    mask_name,
    shard_name,
    token_dtype,
    version_of,
    versioned,
)
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.output import Output, StartsOutput, copy_parts, read_checked
from tokenstore.store.reader import Store
from tokenstore.store.writing import write_atomically


class GivenFields(TypedDict, total=False):
    """Fields of a manifest that do not follow from the documents."""

    ends_with_eos: bool
    tokenizer: TokenizerEntry
    options: dict[str, Any]
    counts: dict[str, int]
    library_versions: dict[str, str]


class StoreWriter:
    """Appends documents to a new store in `folder`. Nothing there is a store before `finish` has written the manifest.

    Memory does not grow with the store. An id outside the vocabulary is refused, never wrapped.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        shard_bytes: int,
        masks: bool = False,
        origins: bool = False,
        ids: bool = False,
        base: Store | None = None,
    ):
        """Open the first files.

        Args:
            folder: an empty directory.
            vocab_size: one more than the largest token id allowed.
            shard_bytes: target size of a shard.
            masks, origins, ids: whether documents come with a loss mask, the number of their record, an id.
            base: the store to make longer; `extending` sets it.
        """
        self.folder = folder
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self._base = base
        self._shard_tokens = max(1, shard_bytes // self.dtype.itemsize)
        self._shards: list[ShardEntry] = list(base.shards()) if base else []
        self._files = {} if base is None else _shared_files(base.manifest)
        self._inputs = b""  # those of the base
        self.num_tokens = base.num_tokens if base else 0
        self.num_documents = len(base) if base else 0
        self._num_id_bytes = 0
        self._bits = np.empty(0, np.bool_)  # of the open shard, those that do not fill a byte yet
        self._shard_start = (self.num_tokens, self.num_documents)  # at which the open shard begins
        with contextlib.ExitStack() as opened:
            self._tokens = opened.enter_context(Output(folder / shard_name(len(self._shards))))
            self._mask = opened.enter_context(Output(folder / mask_name(len(self._shards)))) if masks else None
            self._boundaries = opened.enter_context(StartsOutput(folder / self._name(BOUNDARIES_NAME)))
            self._origins = opened.enter_context(Output(folder / self._name(ORIGINS_NAME))) if origins else None
            self._ids = opened.enter_context(StartsOutput(folder / self._name(IDS_NAME))) if ids else None
            if base:
                self._take_over(base)
            opened.pop_all()

    @classmethod
    def extending(cls, base: Store, folder: Path, shard_bytes: int) -> "StoreWriter":
        """A writer of what makes `base` longer, as its next version (FMT-13); `commit_append` is the last step.

        It begins behind the documents of `base`, in a new shard. Documents come with masks, origins and ids where those
        of `base` have them, and only there.

        Raises: CorruptionError: a file of `base` that is gone on with is damaged. BuildError: it has the last version.
        """
        if base.version >= MAX_VERSION:
            raise BuildError(
                f"version: expected one below {MAX_VERSION} to go on from, found {base.version} ({base.path})"
            )
        has = base.manifest
        return cls(folder, base.vocab_size, shard_bytes, has.has_masks, has.has_origins, has.has_ids, base)

    def _name(self, name: str) -> str:
        return versioned(name, self._base.version + 1 if self._base else 1)

    def _take_over(self, base: Store) -> None:
        """What depends on all documents begins as it was."""
        if base.has_file(INPUTS_NAME):
            self._inputs = read_checked(base.file(INPUTS_NAME), base.entry(INPUTS_NAME))
        self._boundaries.go_on_from(base.file(BOUNDARIES_NAME), base.entry(BOUNDARIES_NAME), len(base))
        if self._origins is not None:
            copy_parts(base.file(ORIGINS_NAME), base.entry(ORIGINS_NAME), [(self._origins, 8 * len(base))])
        if self._ids is not None:
            self._ids.go_on_from(base.file(IDS_NAME), base.entry(IDS_NAME), len(base))
            self._num_id_bytes = base.entry(IDS_NAME).num_bytes - id_starts_bytes(len(base))

    def append(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        mask: np.ndarray | None = None,
        origins: np.ndarray | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        """Append documents. Nothing of them is kept where one is refused.

        Args:
            tokens: unsigned integers[sum of lengths], the documents one after the other.
            lengths: int64[n], tokens of each, each >= 1.
            mask: bool[sum of lengths], which tokens are in the loss; in a store with masks, and only there.
            origins: int64[n], the number of each document's record in its input file, from 1; the same.
            ids: n strings of at most 65,535 bytes of UTF-8; the same.

        Raises: BuildError: a token id outside the vocabulary, or an id too long or with no UTF-8.
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
        _check_origins(origins, lengths.size, self._origins is not None)
        texts = _encoded(ids, lengths.size, self._ids is not None)
        if int(tokens.max()) >= self.vocab_size:
            raise BuildError(
                f"token id: expected ids below {self.vocab_size}, found {tokens.max()};"
                " the tokenizer and its vocabulary disagree"
            )
        if self._origins is not None and origins is not None:
            self._origins.write(origins.astype("<i8"))
        if self._ids is not None:
            self._append_ids(self._ids, texts)
        self._append_tokens(tokens.astype(self.dtype, copy=False), lengths, mask)

    def _append_ids(self, output: StartsOutput, texts: Sequence[bytes]) -> None:
        ends = self._num_id_bytes + np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        output.starts.write(np.append(self._num_id_bytes, ends[:-1]).astype("<i8"))
        output.rest.write(b"".join(texts))
        self._num_id_bytes = int(ends[-1])

    def _append_tokens(self, tokens: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None) -> None:
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
            if self._mask is not None and mask is not None:
                self._append_mask(self._mask, mask[first : int(ends[fit - 1])])
            self._append_run(tokens[first : int(ends[fit - 1])], lengths[done:fit])
            done = fit

    def _append_run(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        starts = self.num_tokens + np.cumsum(lengths) - lengths
        stop = self.num_tokens + tokens.size
        self._tokens.write(tokens)
        self._boundaries.starts.write(starts.astype("<i8"))
        lookup = lookup_entries(starts, self.num_tokens, stop, self.num_documents)
        self._boundaries.rest.write(lookup.astype("<i8"))
        self.num_tokens = stop
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
        self._mask = Output(self.folder / mask_name(len(self._shards) + 1))

    def _seal_shard(self) -> None:
        first_token, first_document = self._shard_start
        if self._mask is not None:
            self._seal_mask(self._mask)
        entry = self._tokens.close()
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
        self._tokens = Output(self.folder / shard_name(len(self._shards)))

    def add_file(self, name: str, data: bytes) -> None:
        """Add a side file; ValueError for one that the store to make longer has already."""
        if name in self._files:
            raise ValueError(f"file: expected a name that is not taken, found {name!r}")
        with Output(self.folder / name) as output:
            output.write(data)
            self._files[name] = output.close()

    def finish(self, inputs: bytes, **fields: Unpack[GivenFields]) -> Manifest:
        """Seal what is open, sync every file and write the manifest.

        Args:
            inputs: the bytes of inputs.jsonl; of a store made longer, only those of the new documents.
            fields: the manifest's remaining fields: ends_with_eos, tokenizer, options, counts, library_versions. A store made
                longer keeps those of its base that are left out; its tokenizer and ends_with_eos cannot change.

        Raises:
            BuildError: no document was appended.
            CorruptionError: there are origins, and the documents that `inputs` counts are not those appended.
        """
        if self.num_documents == (len(self._base) if self._base else 0):
            raise BuildError("documents: expected at least one, found none; nothing was written")
        if self._base is not None:
            fields = _going_on(self._base.manifest, fields)
        inputs = self._inputs + inputs
        if self._origins is not None:
            for _ in decode_rows(BytesIO(inputs), self.num_documents, self._name(INPUTS_NAME)):
                pass  # every row is checked, and their sum at the end
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
        self._files[self._name(BOUNDARIES_NAME)] = self._boundaries.close(self.num_tokens)
        if self._origins is not None:
            self._files[self._name(ORIGINS_NAME)] = self._origins.close()
        if self._ids is not None:
            self._files[self._name(IDS_NAME)] = self._ids.close(self._num_id_bytes)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for output in (self._tokens, self._boundaries, self._mask, self._origins, self._ids):
            if output is not None:
                output.abandon()


def _check_origins(origins: np.ndarray | None, count: int, wanted: bool) -> None:
    of_numbers = origins is not None and origins.shape == (count,) and origins.dtype.kind in "iu"
    fits = of_numbers if wanted else origins is None
    if not fits:
        rule = f"int64[{count}]" if wanted else "none, as this store has no origins"
        found = None if origins is None else f"{origins.dtype}{list(origins.shape)}"
        raise ValueError(f"origins: expected {rule}, found {found}")
    if origins is not None and not 1 <= int(origins.min()) <= int(origins.max()) < 1 << 63:
        raise ValueError(f"origins: expected numbers of records, from 1, found {origins.min()}..{origins.max()}")


def _encoded(ids: Sequence[str] | None, count: int, wanted: bool) -> list[bytes]:
    """UTF-8 of ids; [] where there are to be none."""
    fits = not wanted if ids is None else wanted and not isinstance(ids, str) and len(ids) == count
    if not fits:
        rule = f"{count} strings" if wanted else "none, as this store has no ids"
        raise ValueError(f"ids: expected {rule}, found {None if ids is None else len(ids)}")
    try:
        texts = [text.encode() for text in ids or ()]
    except UnicodeEncodeError as error:
        raise BuildError(f"id: expected text that has UTF-8, found {ascii(error.object)[:120]}; give another") from None
    if texts and len(longest := max(texts, key=len)) > MAX_ID_BYTES:
        raise BuildError(
            f"id: expected at most {MAX_ID_BYTES} bytes, found {len(longest)}"
            f" ({longest[:60].decode(errors='ignore')!a}...); give another"
        )
    return texts


def _shared_files(base: Manifest) -> dict[str, FileEntry]:
    """Files that a version shares with the one before it: masks, the tokenizer's."""
    return {name: entry for name, entry in base.files.items() if version_of(name) is None}


def _going_on(base: Manifest, fields: GivenFields) -> GivenFields:
    """The fields of a store made longer; ValueError for another tokenizer or other ends of documents."""
    tokenizer = fields.get("tokenizer", base.tokenizer)
    for name in ("kind", "file", "sha256", "eos_id", "bos_id", "pad_id"):
        if getattr(tokenizer, name) != getattr(base.tokenizer, name):
            found, rule = getattr(tokenizer, name), getattr(base.tokenizer, name)
            raise ValueError(f"tokenizer.{name}: expected {rule!r}, as the store made longer, found {found!r}")
    if fields.get("ends_with_eos", base.ends_with_eos) != base.ends_with_eos:
        raise ValueError(f"ends_with_eos: expected {base.ends_with_eos}, as the store made longer")
    kept: GivenFields = {
        "ends_with_eos": base.ends_with_eos,
        "tokenizer": base.tokenizer,
        "options": base.options,
        "counts": base.counts,
        "library_versions": base.library_versions,
    }
    kept.update(fields)
    return kept
