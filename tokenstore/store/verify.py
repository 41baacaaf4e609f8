"""Every check of a store's content (P9): lists all findings, stops at none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import BOUNDARIES_NAME, LOOKUP_STRIDE, ORDER_NAME, lookup_entries, mask_name
from tokenstore.format.manifest import ShardEntry
from tokenstore.store.files import regular_size
from tokenstore.store.reader import Store, open_store

_BLOCK = 1 << 22  # items checked at once: bounds memory to some tens of megabytes


@dataclass(frozen=True)
class Finding:
    """One thing wrong: the file, the place inside it, what was expected there and what was found."""

    file: str
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: expected {self.expected}, found {self.found}"


def verify(path: str | Path, progress: Callable[[int], None] = lambda num_bytes: None) -> list[Finding]:
    """Check sizes, checksums, boundaries, lookup, ids, end-of-text tokens, order and masks of the store at `path`.

    Args:
        path: the store's directory.
        progress: called with the number of bytes just checked.
    Returns: all findings, in the order of the files; [] when the store is sound. A store that cannot be opened at all is
        one finding.
    """
    try:
        store = open_store(path, check="lazy")
    except TokenStoreError as error:
        return [Finding(str(path), "open", "a store", str(error))]
    with store:
        findings = list(_check_files(store, progress))
        broken = {finding.file for finding in findings}
        if BOUNDARIES_NAME not in broken:
            wrong = list(_check_boundaries(store))
            findings += wrong
            if store.has_order and ORDER_NAME not in broken and not wrong:
                findings += _check_order(store)
        for number, shard in enumerate(store.shards()):
            if shard.file not in broken:
                findings += _check_tokens(store, number, shard, BOUNDARIES_NAME not in broken)
            if store.manifest.has_masks and mask_name(number) not in broken:
                findings += _check_mask(store, number)
        return findings


def _check_files(store: Store, progress: Callable[[int], None]) -> Iterator[Finding]:
    entries = {**store.manifest.files, **{shard.file: shard for shard in store.shards()}}
    for name, entry in sorted(entries.items()):
        checksum = xxhash.xxh3_128()
        size = 0
        try:
            regular_size(store.path / name)  # a pipe or a device would be read for ever
            with open(store.path / name, "rb") as file:
                while block := file.read(_BLOCK):
                    checksum.update(block)
                    size += len(block)
                    progress(len(block))
        except (OSError, TokenStoreError) as error:
            yield Finding(name, "file", "a readable file", str(error))
            continue
        if size != entry.num_bytes:
            yield Finding(name, "size", f"{entry.num_bytes} bytes", f"{size}")
        elif checksum.hexdigest() != entry.checksum:
            yield Finding(name, f"bytes 0..{size}", f"checksum {entry.checksum}", checksum.hexdigest())


def _check_boundaries(store: Store) -> Iterator[Finding]:
    starts, lookup = np.split(store.boundaries(), [len(store) + 1])
    for first in range(0, len(store), _BLOCK):
        stop = min(first + _BLOCK, len(store))
        ends = starts[first + 1 : stop + 1]
        wrong = np.flatnonzero((ends <= starts[first:stop]) | (ends > store.num_tokens))
        if wrong.size:
            i = first + int(wrong[0])
            rule = f"an end in {int(starts[i]) + 1}..{store.num_tokens}"
            yield Finding(BOUNDARIES_NAME, f"document {i}", rule, f"{starts[i + 1]}")
            return
        expected = lookup_entries(starts[first:stop], int(starts[first]), int(starts[stop]), first)
        at = -(-int(starts[first]) // LOOKUP_STRIDE)
        wrong = np.flatnonzero(lookup[at : at + expected.size] != expected)
        if wrong.size:
            j = int(wrong[0])
            yield Finding(BOUNDARIES_NAME, f"lookup entry {at + j}", f"{expected[j]}", f"{lookup[at + j]}")
    for shard in store.shards():
        if starts[shard.first_document] != shard.first_token:
            place = f"document {shard.first_document}"
            yield Finding(
                BOUNDARIES_NAME,
                place,
                f"to begin shard {shard.file} at {shard.first_token}",
                f"{starts[shard.first_document]}",
            )


def _check_mask(store: Store, number: int) -> Iterator[Finding]:
    """No bit is set behind the last token."""
    tokens = store.shards()[number].num_tokens
    last = int(store.mask(number)[-1])
    if tokens % 8 and last >> tokens % 8:
        yield Finding(mask_name(number), f"byte {tokens // 8}", f"bits from {tokens % 8} on to be 0", f"{last:08b}")


def _check_order(store: Store) -> Iterator[Finding]:
    """Rising numbers of documents of the run's length, in every run: so each document stands there once."""
    try:
        lengths, firsts = store.runs().T
    except TokenStoreError as error:
        yield Finding(ORDER_NAME, "runs", "every length once", str(error))
        return
    starts, order = store.boundaries(), store.order()
    for first in range(0, len(store), _BLOCK):
        ids = order[first : first + _BLOCK].astype(np.int64)
        places = np.arange(first, first + ids.size)
        runs = np.searchsorted(firsts, places, side="right") - 1
        known = (ids >= 0) & (ids < len(store))
        ids = np.where(known, ids, 0)
        previous = order[max(first - 1, 0)] if first else -1
        after = np.append(previous, ids[:-1]) < ids
        wrong = np.flatnonzero(
            ~known | (starts[ids + 1] - starts[ids] != lengths[runs]) | ~(after | (places == firsts[runs]))
        )
        if wrong.size:
            i = int(wrong[0])
            rule = f"a document of {lengths[runs[i]]} tokens, after those before it"
            yield Finding(ORDER_NAME, f"place {first + i}", rule, f"{order[first + i]}")
            return


def _check_tokens(store: Store, number: int, shard: ShardEntry, ends_known: bool) -> Iterator[Finding]:
    tokens = store.shard(number)
    for first in range(0, tokens.size, _BLOCK):
        block = tokens[first : first + _BLOCK]
        wrong = np.flatnonzero(block >= store.vocab_size)
        if wrong.size:
            place = f"token {first + int(wrong[0])} (and {wrong.size - 1} more near it)"
            yield Finding(shard.file, place, f"an id below {store.vocab_size}", f"{block[wrong[0]]}")
    if store.manifest.ends_with_eos and ends_known:
        last = shard.first_document + shard.num_documents
        ends = store.boundaries()[shard.first_document + 1 : last + 1] - shard.first_token - 1
        inside = ends[(ends >= 0) & (ends < tokens.size)]
        wrong = np.flatnonzero(tokens[inside] != store.manifest.tokenizer.eos_id)
        if wrong.size:
            place = f"token {int(inside[wrong[0]])} (and {wrong.size - 1} more)"
            yield Finding(
                shard.file,
                place,
                f"the end-of-text id {store.manifest.tokenizer.eos_id}",
                f"{tokens[inside[wrong[0]]]}",
            )
