"""The checks of `verify` that read whole files: sizes and checksums, and which blocks of a damaged file are wrong (FMT-15)."""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import xxhash

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import BLOCK_CHECKSUMS_NAME, BOUNDARIES_NAME, CHECKSUM_BLOCK, mask_of
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.store.block_hasher import BlockHasher
from tokenstore.store.files import open_to_read
from tokenstore.store.reader import Store
from tokenstore.store.verify_documents import Finding
from tokenstore.store.verify_tokens import TokenCheck

_BLOCK = 1 << 22  # bytes read at once
_MOST_PLACES = 20  # damaged places reported per file


def check_files(store: Store, progress: Callable[[int], None]) -> Iterator[Finding]:
    """Read every file of a store and compare size and checksum. `progress` gets the number of bytes just read."""
    shards = {shard.file: number for number, shard in enumerate(store.shards())}
    masks = {mask_of(name): store.mask_number(number) for name, number in shards.items()}
    broken: set[str] = set()
    # By name, so that block checksums and boundaries come before the shards, whose damage they describe
    for name in sorted({*store.manifest.files, *shards}):
        number = shards.get(name, masks.get(name))
        blocks = None
        if number is not None and store.file(BLOCK_CHECKSUMS_NAME).name not in broken:
            blocks = store.block_checksums(number)
        for finding in _check_file(store, name, blocks, store.file(BOUNDARIES_NAME).name not in broken, progress):
            broken.add(finding.file)
            yield finding


def _check_file(
    store: Store, name: str, expected: np.ndarray | None, ends_known: bool, progress: Callable[[int], None]
) -> Iterator[Finding]:
    entry: FileEntry | ShardEntry = store.manifest.files.get(name) or next(
        shard for shard in store.shards() if shard.file == name
    )
    checksum, sha256, blocks = xxhash.xxh3_128(), hashlib.sha256(), BlockHasher()
    is_tokenizer = name == store.manifest.tokenizer.file
    tokens = TokenCheck(store, entry, ends_known) if isinstance(entry, ShardEntry) else None
    size = 0
    try:
        for block in _blocks(store, name, entry.num_bytes):
            checksum.update(block)
            if is_tokenizer:
                sha256.update(block)
            if expected is not None:
                blocks.update(block)
            if tokens is not None:
                tokens.update(block)
            size += len(block)
            progress(len(block))
    except (OSError, TokenStoreError) as error:
        yield Finding(name, "file", "a readable file", str(error))
        return
    found = checksum.hexdigest()
    wrong = expected is not None and size == entry.num_bytes and (blocks.digests() != expected).any()
    if size != entry.num_bytes:
        more = "more" if size > entry.num_bytes else f"{size}"
        yield Finding(name, "size", f"{entry.num_bytes} bytes", more)
    elif found == entry.checksum and wrong:
        yield Finding(store.file(BLOCK_CHECKSUMS_NAME).name, f"checksums of {name}", "those of its blocks", "others")
    elif found != entry.checksum and wrong and expected is not None:
        yield from _damaged_blocks(store, name, entry, np.flatnonzero(blocks.digests() != expected), ends_known)
    elif found != entry.checksum:
        yield Finding(name, f"bytes 0..{size}", f"checksum {entry.checksum}", found)
    elif is_tokenizer and sha256.hexdigest() != store.manifest.tokenizer.sha256:
        yield Finding(name, "tokenizer", f"the sha256 {store.manifest.tokenizer.sha256}", sha256.hexdigest())
    if found == entry.checksum and size == entry.num_bytes and tokens is not None:
        yield from tokens.findings()


def _blocks(store: Store, name: str, num_bytes: int) -> Iterator[bytes]:
    """The bytes of a file, at most one more than `num_bytes`: reading a sparse file of an exabyte would take years."""
    if store.remote is not None:
        yield from store.remote.blocks(name)
        return
    with open_to_read(store.path / name, store.allow_links) as file:
        while num_bytes >= 0 and (block := file.read(min(_BLOCK, num_bytes + 1))):
            yield block
            num_bytes -= len(block)


def _damaged_blocks(
    store: Store, name: str, entry: FileEntry | ShardEntry, wrong: np.ndarray, ends_known: bool
) -> Iterator[Finding]:
    """A finding for each run of damaged blocks of a shard or mask, with its tokens and documents."""
    runs = np.split(wrong, np.flatnonzero(np.diff(wrong) > 1) + 1)
    for number, run in enumerate(runs):
        start = int(run[0]) * CHECKSUM_BLOCK
        stop = min((int(run[-1]) + 1) * CHECKSUM_BLOCK, entry.num_bytes)
        place = f"bytes {start}..{stop} ({_contents(store, name, start, stop, ends_known)})"
        count = f"1 block of {CHECKSUM_BLOCK}" if run.size == 1 else f"{run.size} blocks of {CHECKSUM_BLOCK}"
        if number == _MOST_PLACES:
            rest = sum(each.size for each in runs[number:])
            yield Finding(name, f"bytes {start}..{entry.num_bytes}", "undamaged blocks", f"{rest} more damaged ones")
            return
        yield Finding(name, place, f"the checksum of {count} bytes", "another")


def _contents(store: Store, name: str, start: int, stop: int, ends_known: bool) -> str:
    """The tokens and documents in a range of bytes of a shard or mask."""
    for shard in store.shards():
        if name == shard.file:
            # In an adopted store the tokens begin after a header
            places = np.maximum(np.array([start, stop - 1]) - shard.first_byte, 0) // store.dtype.itemsize
            first, last = int(places[0]), int(places[1]) + 1
        elif name == mask_of(shard.file):
            first, last = 8 * start, min(8 * stop, shard.num_tokens)
        else:
            continue
        text = f"tokens {first}..{last} of the shard"
        if ends_known:
            starts = store.boundaries()[: len(store)]
            tokens = shard.first_token + np.array([first, last - 1])
            documents = np.searchsorted(starts, tokens, side="right") - 1
            text += f", documents {documents[0]}..{documents[1] + 1}"
        return text
    raise AssertionError(name)
