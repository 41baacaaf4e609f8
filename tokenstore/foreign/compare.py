"""Compares an adopted store with the foreign index that it keeps, and with the times of the files it is linked to (FMT-14)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tokenstore.errors import BuildError, CorruptionError, TokenStoreError
from tokenstore.foreign.cuts import NOTHING
from tokenstore.foreign.formats import FORMATS, Format
from tokenstore.foreign.prepare import new_cutter
from tokenstore.foreign.reading import Documents, most_documents
from tokenstore.format.adopted import Adopted, AdoptedFile
from tokenstore.format.layout import BOUNDARIES_NAME
from tokenstore.format.manifest import ShardEntry
from tokenstore.store.adopted import changed_shards, read_adopted
from tokenstore.store.files import check_size, identity_of
from tokenstore.store.reader import Store, open_store
from tokenstore.store.verify_documents import Finding

_BLOCK = 1 << 22  # tokens at once
_EVERYTHING = 1 << 62


def verify_adopted(
    path: str | Path, version: int | None = None, allow_links: str | Path | None = None
) -> list[Finding]:
    """Check that the documents of an adopted store are those of the foreign index, and that no linked file was written to.

    Args:
        path: the store's directory. `tokenstore.verify` must have found no damage.
        version: as in `open_store`.
        allow_links: as in `open_store`.

    Returns:
        All findings; [] if there are none, or the store is not adopted.
    """
    with open_store(path, "lazy", version, allow_links) as store:
        if not store.manifest.is_adopted:
            return []
        try:
            adopted = read_adopted(store.path, store.manifest, store.allow_links)
        except TokenStoreError as error:
            return [Finding("adopted.json", "fields", "those of FMT-14", str(error))]
        return [*_changed(store, adopted), *_different(store, adopted)]


def _changed(store: Store, adopted: Adopted) -> Iterator[Finding]:
    found = [identity_of(store.path / shard.file, store.allow_links) for shard in store.shards()]
    for file, was, now in changed_shards(adopted, store.manifest, found):
        yield Finding(file, "modification time", f"{was} ns, as when it was adopted", f"{now} ns")


def _different(store: Store, adopted: Adopted) -> Iterator[Finding]:
    files = {file.shard: file for file in adopted.files}
    for number, shard in enumerate(store.shards()):
        if shard.file in files:
            try:
                yield from _compare(store, adopted, files[shard.file], number)
            except (BuildError, CorruptionError) as error:
                yield Finding(shard.file, "index", "readable files of the other tool", str(error))


def _compare(store: Store, adopted: Adopted, file: AdoptedFile, number: int) -> Iterator[Finding]:
    """The first document of a shard that does not end where the index, or the end-of-text token, says."""
    shard = store.shards()[number]
    cutter = new_cutter(
        adopted.cut,
        shard.num_tokens,
        adopted.eos_at == "start",
        partial(_documents, store, FORMATS[adopted.format], file, shard),
    )
    ends = store.boundaries()[shard.first_document + 1 : shard.first_document + shard.num_documents + 1]
    done = 0
    for first in range(0, shard.num_tokens, _BLOCK):
        stop = min(first + _BLOCK, shard.num_tokens)
        eos = NOTHING if adopted.cut in ("index", "file") else _eos(store, number, adopted.eos_id, first, stop)
        expected = cutter.take(first, stop, eos).ends
        found = ends[done : done + expected.size] - shard.first_token
        wrong = np.flatnonzero(found != expected[: found.size])[:1].tolist()
        if wrong or found.size < expected.size:
            at = wrong[0] if wrong else found.size
            here = int(found[at]) if wrong else "no such document"
            yield _finding(store, shard, done + at, int(expected[at]), here)
            return
        done += expected.size
    more = cutter.take(shard.num_tokens, _EVERYTHING, NOTHING).ends if adopted.cut == "index" else NOTHING
    if done < ends.size or more.size:
        expected_end = int(more[0]) if more.size else "no more documents"
        found_end = int(ends[done] - shard.first_token) if done < ends.size else "no such document"
        yield _finding(store, shard, done, expected_end, found_end)


def _finding(store: Store, shard: ShardEntry, document: int, expected: object, found: object) -> Finding:
    place = f"document {shard.first_document + document} (end in {shard.file})"
    return Finding(store.file(BOUNDARIES_NAME).name, place, f"{expected}, as the other tool's files say", str(found))


def _eos(store: Store, number: int, eos_id: int | None, first: int, stop: int) -> np.ndarray:
    return first + np.flatnonzero(store.shard(number)[first:stop] == eos_id)


def _documents(store: Store, format: Format, file: AdoptedFile, shard: ShardEntry) -> Iterator[Documents]:
    """The documents of the index files that the store keeps. Only files that its manifest lists are read."""
    paths = []
    for name in file.index:
        if name not in store.manifest.files:
            raise CorruptionError(f"adopted: expected an index file of the store, found {name[:100]!r} ({store.path})")
        path = store.path / name
        check_size(path, store.manifest.files[name].num_bytes, store.allow_links)
        paths.append(path)
    if not paths:
        raise CorruptionError(f"adopted: expected an index file for {shard.file}, found none ({store.path})")
    for block in format.documents(tuple(paths), most_documents(shard.num_tokens)):
        if (block.lengths > shard.num_tokens).any():  # so that sums of lengths do not overflow
            rule = f"documents of at most {shard.num_tokens} tokens"
            raise CorruptionError(f"adopted: expected {rule}, found {block.lengths.max()} ({paths[0]})")
        yield block._replace(ids=None)
