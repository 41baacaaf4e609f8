"""Checks all contents of a store (P9). It reports all findings and does not stop at the first."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    INPUTS_NAME,
    LENGTH_INDEX_NAME,
    LOOKUP_STRIDE,
    METADATA_NAME,
    ORIGINS_NAME,
    lookup_entries,
    mask_bytes,
    mask_of,
)
from tokenstore.store.find_manifest import read_manifest, versions
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.index_files import RemoteFiles
from tokenstore.store.remote.location import Location, is_url
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.verify_documents import (
    Finding,
    check_document_inputs,
    check_ids,
    check_length_index,
    check_metadata,
    check_origins,
)
from tokenstore.store.verify_files import check_files

_BLOCK = 1 << 22  # items checked at once: limits memory to some tens of megabytes


def verify(
    path: str | Path,
    progress: Callable[[int], None] = lambda num_bytes: None,
    version: int | None = None,
    allow_links: str | Path | None = None,
    remote: RemoteOptions | None = None,
) -> list[Finding]:
    """Check a store: sizes, checksums, boundaries, lookup table, token ids, end-of-text tokens, and all optional files.

    Args:
        path: the store's directory or URL. All of a store at a URL is downloaded; only its index files are kept, in the cache.
        progress: called with the number of bytes just checked.
        version: version of a store that has grown. Default: the newest.
        allow_links, remote: as in `open_store`.

    Returns:
        All findings, in the order of the files; [] if the store is sound. A store that cannot be opened is one finding.
    """
    try:
        store = open_store(path, "lazy", version, allow_links, remote)
    except TokenStoreError as error:
        return [Finding(str(path), "open", "a store", str(error))]
    with store:
        findings = list(check_files(store, progress))
        broken = {finding.file for finding in findings}

        def sound(name: str) -> bool:
            return store.has_file(name) and store.file(name).name not in broken

        if sound(BOUNDARIES_NAME):
            wrong = list(_check_boundaries(store))
            findings += wrong
            if sound(LENGTH_INDEX_NAME) and not wrong:
                findings += check_length_index(store)
        if sound(ORIGINS_NAME):
            findings += check_origins(store, sound(INPUTS_NAME))
        if sound(IDS_NAME):
            findings += check_ids(store)
        if sound(METADATA_NAME):
            findings += check_metadata(store)
        if sound(DOCUMENT_INPUTS_NAME) and sound(INPUTS_NAME):
            findings += check_document_inputs(store)
        for number in range(len(store.shards()) if store.manifest.has_masks else 0):
            if mask_of(store.shards()[number].file) not in broken:
                findings += _check_mask(store, number)
        return findings


def unlisted_files(
    path: str | Path, allow_links: str | Path | None = None, remote: RemoteOptions | None = None
) -> list[str]:
    """Names of the files in the directory of the store at `path` that no version of the store lists, sorted.

    They are not part of the store, and no reader opens them. An interrupted append leaves such files, and the next append replaces
    them; any others were put there by someone else. `allow_links` and `remote` are as in `open_store`.

    Raises:
        TokenStoreError: there is no store, or one of its versions cannot be read.
    """
    if is_url(path):
        files = RemoteFiles(Location.of(str(path)), None, "lazy", remote)
        return sorted(set(files.listed or ()) - files.names_of_all_versions())
    path = Path(path).absolute()
    listed: set[str] = set()
    links = None if allow_links is None else Path(allow_links).absolute()
    for version in versions(path, links):
        file, manifest = read_manifest(path, version, links)
        listed |= {file.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    return sorted({entry.name for entry in path.iterdir()} - listed)


def _check_boundaries(store: Store) -> Iterator[Finding]:
    name = store.file(BOUNDARIES_NAME).name
    starts, lookup = np.split(store.boundaries(), [len(store) + 1])
    for first in range(0, len(store), _BLOCK):
        stop = min(first + _BLOCK, len(store))
        ends = starts[first + 1 : stop + 1]
        wrong = np.flatnonzero((ends <= starts[first:stop]) | (ends > store.num_tokens))
        if wrong.size:
            i = first + int(wrong[0])
            rule = f"an end in {int(starts[i]) + 1}..{store.num_tokens}"
            yield Finding(name, f"document {i}", rule, f"{starts[i + 1]}")
            return
        expected = lookup_entries(starts[first:stop], int(starts[first]), int(starts[stop]), first)
        at = -(-int(starts[first]) // LOOKUP_STRIDE)
        wrong = np.flatnonzero(lookup[at : at + expected.size] != expected)
        if wrong.size:
            j = int(wrong[0])
            yield Finding(name, f"lookup entry {at + j}", f"{expected[j]}", f"{lookup[at + j]}")
    for shard in store.shards():
        if starts[shard.first_document] != shard.first_token:
            place = f"document {shard.first_document}"
            yield Finding(
                name,
                place,
                f"to begin shard {shard.file} at {shard.first_token}",
                f"{starts[shard.first_document]}",
            )


def _check_mask(store: Store, number: int) -> Iterator[Finding]:
    """The bits after the last token must be 0."""
    tokens = store.shards()[number].num_tokens
    last = int(store.part(store.mask_number(number))[mask_bytes(tokens) - 1 :][0])
    if tokens % 8 and last >> tokens % 8:
        yield Finding(
            mask_of(store.shards()[number].file), f"byte {tokens // 8}", f"0 in bits {tokens % 8} to 7", f"{last:08b}"
        )
