"""Make a finished store longer (FMT-13): the last step of an append, which gives the store its next version.

`StoreWriter.extending` writes the documents into a folder beside the store, and `write_order`, if wanted, their order.
What is moved from there into the store has names that no version so far uses, so it changes nothing for anybody until
the manifest is replaced, in one step.
"""

from pathlib import Path

from tokenstore.errors import CorruptionError
from tokenstore.format.layout import MANIFEST_NAME, manifest_name
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry
from tokenstore.store.files import check_size, read_bytes, regular_size
from tokenstore.store.find_manifest import read_manifest
from tokenstore.store.writing import move_files, write_atomically

_Entries = dict[str, FileEntry | ShardEntry]


def commit_append(path: Path, working: Path) -> Manifest:
    """Give the store at `path` the version that stands in `working`, on the same file system.

    Killed or failed at any point, the store has the old version or the new one, whole. Unless it is the new one,
    `working` has to be written again, as some of its files may have moved.

    Args:
        path: the store's directory; whoever calls has made sure that nobody else writes to it.
        working: what a writer `extending` the newest version finished; it is left without its files.
    Returns: the new manifest.

    Raises:
        CorruptionError: `working` does not go on from the newest version, or lacks a file.
        OSError: the disk failed.
    """
    path, working = Path(path), Path(working)
    _, old = read_manifest(path)
    bytes_before = read_bytes(
        path / MANIFEST_NAME, regular_size(path / MANIFEST_NAME)
    )  # just decoded, so not too large
    _, new = read_manifest(working)
    before, after = _entries(old), _entries(new)
    moved = {name: entry for name, entry in after.items() if name not in before}
    if new.version != old.version + 1 or not _goes_on(old, new, before, after):
        raise CorruptionError(
            f"append: expected what follows version {old.version} of the store, found version {new.version} of"
            f" {new.num_documents} documents ({working}); remove it and append again"
        )
    for name, entry in moved.items():
        check_size(working / name, entry.num_bytes)
    move_files(working, path, sorted(moved))
    write_atomically(path / manifest_name(old.version), bytes_before, read_only=True)
    move_files(working, path, [MANIFEST_NAME])
    return new


def _entries(manifest: Manifest) -> _Entries:
    return {**manifest.files, **{shard.file: shard for shard in manifest.shards}}


def _goes_on(old: Manifest, new: Manifest, before: _Entries, after: _Entries) -> bool:
    """The old documents come first in the new version, and every file the two share is the same."""
    shared = before.keys() & after.keys()
    return (
        new.shards[: len(old.shards)] == old.shards
        and len(new.shards) > len(old.shards)
        and (new.dtype, new.vocab_size) == (old.dtype, old.vocab_size)
        and all(before[name] == after[name] for name in shared)
    )
