"""The next version of a store without some of its documents (FMT-19). Shards that hold none of these are shared with it."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from tokenstore.errors import BuildError, CorruptionError
from tokenstore.format.layout import (
    BLOCK_CHECKSUMS_NAME,
    INPUTS_NAME,
    MANIFEST_NAME,
    MASK_PREFIX,
    MAX_VERSION,
    mask_of,
    shard_name,
    version_of,
    versioned,
)
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, canonical_json
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.paths import resolved
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.document_files import Columns, DocumentFiles, Documents
from tokenstore.store.merging import check_document_files, forged_values
from tokenstore.store.metadata import encode_metadata
from tokenstore.store.output import Output, copy_parts, read_checked
from tokenstore.store.reader import Store
from tokenstore.store.writing import link_file, write_atomically

_BLOCK = 1 << 16  # documents at once
_BLOCK_TOKENS = 1 << 22


class Dropper:
    """Writes the version of `base` that has only the documents `kept`, bool[D], into an empty folder on its file system."""

    def __init__(self, base: Store, kept: np.ndarray, folder: Path):
        if base.version >= MAX_VERSION:
            raise BuildError(f"version: expected one below {MAX_VERSION}, found {base.version} ({base.path})")
        self.base, self.kept, self.folder, self.version = base, kept, folder, base.version + 1
        self._shards: list[ShardEntry] = []
        self._files: dict[str, FileEntry] = {
            name: entry
            for name, entry in base.manifest.files.items()
            if version_of(name) is None and not name.startswith(MASK_PREFIX)
        }
        with contextlib.ExitStack() as opened:
            self._documents = opened.enter_context(DocumentFiles(folder, Columns.of(base), self.version))
            blocks = folder / versioned(BLOCK_CHECKSUMS_NAME, self.version)
            self._blocks = opened.enter_context(Output(blocks)) if base.has_block_checksums else None
            self._held = opened.pop_all()

    def write(self) -> Manifest:
        """Write all new files, the manifest last.

        Raises:
            CorruptionError: a file of the store is damaged.
            OSError: the disk is full.
        """
        with self._held:
            check_document_files(self.base)
            token = document = 0
            for number in range(len(self.base.shards())):
                if (entry := self._shard(number)) is not None:
                    self._shards.append(replace(entry, first_token=token, first_document=document))
                    token, document = token + entry.num_tokens, document + entry.num_documents
            with forged_values(self.base):
                for documents in self._of():
                    self._documents.append(documents)
            self._files |= self._documents.close()
            if self._blocks is not None:
                self._files[self._blocks.path.name] = self._blocks.close()
        if self.base.has_file(INPUTS_NAME):
            self._inputs()
        manifest = self.base.manifest
        counts = {**manifest.counts, "documents": document}
        counts["removed"] = manifest.counts.get("removed", 0) + len(self.base) - document
        new = replace(
            manifest,
            num_tokens=token,
            num_documents=document,
            shards=tuple(self._shards),
            files=dict(sorted(self._files.items())),
            counts=counts,
        )
        write_atomically(self.folder / MANIFEST_NAME, encode_manifest(new), read_only=True)
        return new

    def _shard(self, number: int) -> ShardEntry | None:
        """The entry of a shard without the dropped documents, whose file is written if it is not that of the base."""
        shard, index = self.base.shards()[number], len(self._shards)
        kept = self.kept[shard.first_document : shard.first_document + shard.num_documents]
        if not kept.any():
            return None
        if kept.all():
            return self._same(number, index)
        name = versioned(shard_name(index), self.version)
        starts = self.base.boundaries()[shard.first_document : shard.first_document + shard.num_documents + 1]
        if (
            int(np.diff(starts).min()) < 1
            or starts[0] != shard.first_token
            or starts[-1] != shard.first_token + shard.num_tokens
        ):
            raise CorruptionError(
                f"boundaries: expected those of shard {shard.file} ({self.base.path}); run `tokenstore verify`"
            )
        runs = [*_runs(kept, starts - shard.first_token)]
        entry = self._copy_tokens(number, name, runs)
        if self.base.manifest.has_masks:
            self._copy_mask(number, mask_of(name), runs)
        tokens = sum(stop - start for start, stop in runs)
        return replace(
            shard,
            file=name,
            num_bytes=entry.num_bytes,
            checksum=entry.checksum,
            num_tokens=tokens,
            num_documents=int(kept.sum()),
        )

    def _same(self, number: int, index: int) -> ShardEntry:
        """A shard that stays as it is. It needs another name if shards before it are gone, because names have numbers."""
        shard, masks = self.base.shards()[number], self.base.manifest.has_masks
        name = shard.file if number == index else versioned(shard_name(index), self.version)
        if name != shard.file:
            self._link(number, name)
        self._add_blocks(self.base.block_checksums(number))
        if masks:
            if name != shard.file:
                self._link(self.base.mask_number(number), mask_of(name))
            self._files[mask_of(name)] = self.base.manifest.files[mask_of(shard.file)]
            self._add_blocks(self.base.block_checksums(self.base.mask_number(number)))
        return replace(shard, file=name)

    def _link(self, number: int, name: str) -> None:
        source, entry = self.base.file_of(number)
        if not link_file(resolved(source), self.folder / name):
            with Output(self.folder / name) as output:
                copy_parts(source, entry, [(output, entry.num_bytes)])
                output.close()
        self.base.check_files([number])

    def _add_blocks(self, checksums: np.ndarray | None) -> None:
        if self._blocks is not None and checksums is not None:
            self._blocks.write(checksums)

    def _copy_tokens(self, number: int, name: str, runs: list[tuple[int, int]]) -> FileEntry:
        self.base.check_content(number)  # damage must not get a new, matching checksum
        tokens, hasher = self.base.shard(number), BlockHasher()
        with Output(self.folder / name, blocks=hasher) as output:
            for first, stop in runs:
                for start in range(first, stop, _BLOCK_TOKENS):
                    output.write(tokens[start : min(start + _BLOCK_TOKENS, stop)])
            entry = output.close()
        self._add_blocks(hasher.digests())
        return entry

    def _copy_mask(self, number: int, name: str, runs: list[tuple[int, int]]) -> None:
        self.base.check_content(self.base.mask_number(number))
        mask, hasher, rest = self.base.mask(number), BlockHasher(), np.empty(0, np.uint8)
        with Output(self.folder / name, blocks=hasher) as output:
            for first, stop in runs:
                for start in range(first, stop, _BLOCK_TOKENS):
                    end = min(start + _BLOCK_TOKENS, stop)
                    bits = np.unpackbits(mask[start // 8 : -(-end // 8)], bitorder="little")[start % 8 :][: end - start]
                    bits = np.append(rest, bits)
                    whole = bits.size // 8 * 8
                    output.write(np.packbits(bits[:whole], bitorder="little"))
                    rest = bits[whole:]
            output.write(np.packbits(rest, bitorder="little"))
            self._files[name] = output.close()
        self._add_blocks(hasher.digests())

    def _of(self) -> Iterator[Documents]:
        """The documents that stay, in blocks."""
        base, has = self.base, Columns.of(self.base)
        starts, rows = (
            base.boundaries(),
            (row for block in base.metadata_rows() for row in block) if has.metadata else None,
        )
        for first in range(0, len(base), _BLOCK):
            stop = min(first + _BLOCK, len(base))
            kept = self.kept[first:stop]
            values = None if rows is None else [next(rows) for _ in range(first, stop)]
            if kept.any():
                numbers = np.flatnonzero(kept)
                yield Documents(
                    np.diff(starts[first : stop + 1])[kept],
                    origins=base.origins()[first:stop][kept] if has.origins else None,
                    ids=list(compress(base.ids_between(first, stop), kept)) if has.ids else None,
                    metadata=None if values is None else [encode_metadata(values[i]) for i in numbers.tolist()],
                    inputs=base.document_inputs()[first:stop][kept] if has.shuffled else None,
                    contents=base.content_hashes()[first:stop][kept] if has.contents else None,
                )

    def _inputs(self) -> None:
        """inputs.jsonl with the numbers of documents that stay, and of those removed."""
        base = self.base
        data = read_checked(base.file(INPUTS_NAME), base.entry(INPUTS_NAME))
        inputs = base.inputs()
        if base.manifest.has_document_inputs:
            left = np.bincount(base.document_inputs()[self.kept], minlength=len(inputs))
        else:
            total = np.append(0, np.cumsum(self.kept))
            left = total[inputs.ends] - total[np.append(0, inputs.ends[:-1])]
        lines = []
        for line, number in zip(data.splitlines(), left.tolist(), strict=True):
            row = json.loads(line)
            row["removed"] = row["documents"] - number + (row["removed"] if type(row.get("removed")) is int else 0)
            lines.append(canonical_json({**row, "documents": number}).encode() + b"\n")
        name = versioned(INPUTS_NAME, self.version)
        with Output(self.folder / name) as output:
            output.write(b"".join(lines))
            self._files[name] = output.close()


def _runs(kept: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, stop) in tokens of each run of documents that stay; `starts` has the end too."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], kept.astype(np.int8), [0]])))
    for first, stop in edges.reshape(-1, 2).tolist():
        yield int(starts[first]), int(starts[stop])
