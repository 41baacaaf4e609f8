"""Reads adopted.json of an adopted store, and notices that the files it is linked to have been written to (FMT-14)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenstore.errors import CorruptionError
from tokenstore.format.adopted import Adopted, decode_adopted, max_adopted_bytes
from tokenstore.format.layout import ADOPTED_NAME
from tokenstore.format.manifest import Manifest
from tokenstore.store.files import Identity, read_bytes


def read_adopted(path: Path, manifest: Manifest, allow_links: Path | None = None) -> Adopted:
    """How the adopted store at `path` was made. CorruptionError if adopted.json is damaged or names other shards."""
    file = path / ADOPTED_NAME
    adopted = decode_adopted(read_bytes(file, max_adopted_bytes(len(manifest.shards)), allow_links), str(file))
    shards, names = {shard.file for shard in manifest.shards}, [each.shard for each in adopted.files]
    if len(set(names)) != len(names) or not set(names) <= shards:
        raise CorruptionError(
            f"adopted: expected each shard at most once, found {str(names)[:120]} ({file}); adopt the files again"
        )
    return adopted


def changed_shards(adopted: Adopted, manifest: Manifest, found: Sequence[Identity]) -> Iterator[tuple[str, int, int]]:
    """Shards that another tool has written to: (file, recorded time, time now), in nanoseconds.

    Args:
        adopted: how the store was made.
        manifest: of the store.
        found: the identities of its shards now, in their order.
    """
    files = {each.shard: each for each in adopted.files}
    for shard, now in zip(manifest.shards, found, strict=False):
        was = files.get(shard.file)
        is_linked = was is not None and (was.device, was.inode) == (now.device, now.inode)
        if was is not None and is_linked and was.modified != now.modified:
            yield shard.file, was.modified or 0, now.modified


def check_unchanged(path: Path, manifest: Manifest, found: Sequence[Identity], allow_links: Path | None) -> None:
    """CorruptionError if another tool has written to a shard since the store was adopted. Arguments as in `changed_shards`."""
    for file, was, now in changed_shards(read_adopted(path, manifest, allow_links), manifest, found):
        raise CorruptionError(
            f"file: expected the modification time {was} ns, as when it was adopted, found {now} ns ({path / file}); the"
            f" file was written to: run `tokenstore verify {path}`, and adopt it again"
        )
