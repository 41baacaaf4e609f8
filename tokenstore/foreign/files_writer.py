"""Writes the files of an adopted store: shards that are links or copies, and the files with an entry per document."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.errors import BuildError
from tokenstore.foreign.cuts import Cut
from tokenstore.foreign.reading import ForeignReader, TokenFile
from tokenstore.foreign.scan import Scan
from tokenstore.format.layout import (
    BLOCK_CHECKSUMS_NAME,
    BOUNDARIES_NAME,
    IDS_NAME,
    MAX_ID_BYTES,
    ORIGINS_NAME,
    lookup_entries,
    mask_name,
    shard_name,
)
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.output import Output, StartsOutput
from tokenstore.store.writing import sync

Count = Callable[[int], None]  # called with the number of bytes just read


class AdoptedWriter:
    """The files of a store but its manifest. A context manager: the files are closed if an error leaves it.

    Attributes:
        shards: entries of the shards so far.
        files: entries of all other files so far.
        num_tokens, num_documents: so far.
    """

    def __init__(self, folder: Path, dtype: np.dtype, has_ids: bool):
        """Create the first files in `folder`, an empty directory."""
        self.folder, self.dtype = folder, dtype
        self.shards: list[ShardEntry] = []
        self.files: dict[str, FileEntry] = {}
        self.num_tokens = self.num_documents = 0
        self._shard_start = (0, 0)
        self._scan_start = self._document_start = 0
        self._num_id_bytes = 0
        with contextlib.ExitStack() as opened:
            self._boundaries = opened.enter_context(StartsOutput(folder / BOUNDARIES_NAME))
            self._origins = opened.enter_context(Output(folder / ORIGINS_NAME))
            self._ids = opened.enter_context(StartsOutput(folder / IDS_NAME)) if has_ids else None
            self._blocks = opened.enter_context(Output(folder / BLOCK_CHECKSUMS_NAME))
            self._opened = opened.pop_all()

    @property
    def next_shard(self) -> Path:
        """Path of the shard that is written next."""
        return self.folder / shard_name(len(self.shards))

    @property
    def shard_tokens(self) -> int:
        """Tokens of the shard that is being written."""
        return self.num_tokens - self._shard_start[0]

    def start(self) -> None:
        """Begin the shards of another scan, whose positions begin at 0."""
        self._scan_start = self.num_tokens

    def add_linked(self, linked: TokenFile, scan: Scan, count: Count) -> None:
        """Read the token file that was linked to `next_shard` once, for its checksum and its documents.

        Args:
            linked: the file; if it has grown since, what was added is not read.
            scan: finds the documents.
            count: called with the number of bytes just read.
        """
        checksum, blocks = xxhash.xxh3_128(), BlockHasher()
        with ForeignReader(self.next_shard) as file:

            def hashed(block: np.ndarray) -> None:
                checksum.update(block.data)
                blocks.update(block.data)

            if linked.first_byte:
                hashed(file.read(0, linked.first_byte))
            for block in file.blocks(linked.first_byte, linked.num_bytes, hashed):
                self.add(scan.see(block.view(self.dtype)), block.size // self.dtype.itemsize)
                count(block.size)
            scan.end_of_file()
            sync(file.raw)
            self._seal(FileEntry(linked.num_bytes, checksum.hexdigest()), blocks, linked.first_byte)

    def new_shard(self) -> Output:
        """Create the file of the next shard, to be given to `add_written` and `seal`."""
        return Output(self.next_shard, blocks=BlockHasher())

    def add_written(self, output: Output, blocks: Iterator[np.ndarray], scan: Scan, count: Count) -> None:
        """Write blocks of tokens, of any integer dtype, to a shard.

        Raises:
            BuildError: an id is negative, or does not fit the store's dtype.
        """
        for block in blocks:
            tokens = self.converted(block)
            output.write(tokens)
            self.add(scan.see(tokens), tokens.size)
            count(block.nbytes)

    def converted(self, block: np.ndarray) -> np.ndarray:
        """Token ids in the store's dtype. BuildError if one does not fit."""
        low, high = int(block.min()), int(block.max())
        if low < 0 or high > np.iinfo(self.dtype).max:
            raise BuildError(
                f"token id: expected 0..{np.iinfo(self.dtype).max}, found {low if low < 0 else high}; is --dtype right, and the"
                " vocabulary large enough?"
            )
        return block.astype(self.dtype, copy=False)

    def add(self, cut: Cut, num_tokens: int) -> None:
        """Add the documents that end in the next tokens of the shard."""
        if cut.ends.size:
            ends = self._scan_start + cut.ends
            starts = np.append(self._document_start, ends[:-1])
            self._boundaries.starts.write(starts.astype("<i8"))
            lookup = lookup_entries(starts, self._document_start, int(ends[-1]), self.num_documents)
            self._boundaries.rest.write(lookup.astype("<i8"))
            self._origins.write(cut.records.astype("<i8"))
            if self._ids is not None:
                self._add_ids(self._ids, cut.ids or [""] * ends.size)
            self._document_start = int(ends[-1])
            self.num_documents += ends.size
        self.num_tokens += num_tokens

    def _add_ids(self, output: StartsOutput, ids: Sequence[str]) -> None:
        texts = [text.encode(errors="replace")[:MAX_ID_BYTES] for text in ids]
        texts = [text.decode(errors="ignore").encode() for text in texts]  # an id that was cut inside a character
        ends = self._num_id_bytes + np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        output.starts.write(np.append(self._num_id_bytes, ends[:-1]).astype("<i8"))
        output.rest.write(b"".join(texts))
        self._num_id_bytes = int(ends[-1])

    def seal(self, output: Output) -> None:
        """End a shard that was written. Its last document must have ended."""
        self._seal(output.close(), output.blocks, 0)

    def _seal(self, entry: FileEntry, blocks: BlockHasher | None, first_byte: int) -> None:
        first_token, first_document = self._shard_start
        self.shards.append(
            ShardEntry(
                file=self.next_shard.name,
                num_bytes=entry.num_bytes,
                num_tokens=self.num_tokens - first_token,
                first_token=first_token,
                num_documents=self.num_documents - first_document,
                first_document=first_document,
                checksum=entry.checksum,
                first_byte=first_byte,
            )
        )
        self._shard_start = (self.num_tokens, self.num_documents)
        self._write_blocks(blocks)

    def _write_blocks(self, blocks: BlockHasher | None) -> None:
        """Write the block checksums of a shard, or of the mask that belongs to it (FMT-15)."""
        if blocks is not None:
            self._blocks.write(blocks.digests())

    def add_mask(self, loss: Path) -> None:
        """Write the loss mask of the last shard from a file with one byte per token. BuildError if one is not 0 or 1."""
        name = mask_name(len(self.shards) - 1)
        with ForeignReader(loss) as file, Output(self.folder / name, blocks=BlockHasher()) as output:
            at = 0
            for block in file.blocks(
                0, file.num_bytes
            ):  # whole bytes of the mask: the size of a block is a multiple of 8
                if wrong := np.flatnonzero(block > 1)[:1].tolist():
                    raise BuildError(
                        f"loss of token {at + wrong[0]}: expected 0 or 1, found {block[wrong[0]]} ({loss})"
                    )
                output.write(np.packbits(block, bitorder="little"))
                at += block.size
            self.files[name] = output.close()
            self._write_blocks(output.blocks)

    def add_file(self, name: str, data: bytes) -> None:
        """Write another file."""
        with Output(self.folder / name) as output:
            output.write(data)
            self.files[name] = output.close()

    def finish(self) -> None:
        """Close the files with an entry per document."""
        self.files[BOUNDARIES_NAME] = self._boundaries.close(self.num_tokens)
        self.files[ORIGINS_NAME] = self._origins.close()
        self.files[BLOCK_CHECKSUMS_NAME] = self._blocks.close()
        if self._ids is not None:
            self.files[IDS_NAME] = self._ids.close(self._num_id_bytes)

    def __enter__(self) -> "AdoptedWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()


def entry_of(path: Path) -> FileEntry:
    """Size and checksum of a file."""
    checksum = xxhash.xxh3_128()
    with ForeignReader(path) as file:
        for block in file.blocks(0, file.num_bytes):
            checksum.update(block.data)
        return FileEntry(file.num_bytes, checksum.hexdigest())
