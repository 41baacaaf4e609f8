"""Adds block checksums to a store (FMT-15): they name a damaged place, and verify a block that is read by itself."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.format.block_checksums import checksummed_files
from tokenstore.format.layout import BLOCK_CHECKSUMS_NAME
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.paths import resolved
from tokenstore.store.added_files import add_file, lock_to_add
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.files import check_checksum, read_blocks
from tokenstore.store.output import Output
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.location import refuse_url

Progress = Callable[[int, int], None]


def add_block_checksums(
    path: str | Path, progress: Progress = lambda done, total: None, version: int | None = None
) -> bool:
    """Write `block_checksums.bin` into the store at `path`, and list it in the manifest. All tokens are read and verified.

    Args:
        path: the store's directory. It must be writable, and so must its parent directory (for the lock).
        progress: called with (bytes processed, total).
        version: version of a store that has grown. Default: the newest.

    Returns:
        True if the checksums were added, False if the store had them.

    Raises:
        CorruptionError: a shard or a mask is damaged.
        StoreBusyError: another process is writing this store.
        TokenStoreError: there is no store, or it cannot be written.
    """
    refuse_url(path, "index")
    path = resolved(path)  # the lock is next to the store, not next to a link to it
    with open_store(path, version=version) as store:  # first, so that an error leaves no work folder
        if store.has_block_checksums:
            return False
        options = store.manifest.options
    with lock_to_add(path, options, BLOCK_CHECKSUMS_NAME), open_store(path, check="lazy", version=version) as store:
        if store.has_block_checksums:
            return False
        add_file(store, BLOCK_CHECKSUMS_NAME, partial(_write, store, progress))
        return True


def _write(store: Store, progress: Progress, path: Path) -> FileEntry:
    entries: dict[str, FileEntry | ShardEntry] = {shard.file: shard for shard in store.shards()}
    entries |= store.manifest.files
    files = [(name, entries[name]) for name, _ in checksummed_files(store.manifest)]
    total, done = sum(entry.num_bytes for _, entry in files), 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    with Output(path) as output:
        for name, entry in files:
            output.write(_digests_of(store, name, entry, report))
        return output.close()


def _digests_of(store: Store, name: str, entry: FileEntry | ShardEntry, report: Callable[[int], None]) -> np.ndarray:
    """The checksums of a file's blocks. CorruptionError if the file is damaged: damage must not get matching checksums."""
    checksum, blocks = xxhash.xxh3_128(), BlockHasher()

    def update(data: bytes) -> None:
        checksum.update(data)
        blocks.update(data)
        report(len(data))

    read_blocks(store.path / name, entry.num_bytes, update, store.allow_links)
    check_checksum(store.path / name, entry, checksum.hexdigest())
    return blocks.digests()
