"""The last step of an append: it gives a finished store its next version (FMT-13).

`FileWriter.extending` writes the new files into a folder next to the store, and `write_length_index` adds the length index if
the store has one. Their names are not used by any earlier version. So moving them into the store changes nothing for readers
until the manifest is replaced, atomically.
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
    """Move the new version in `working` into the store at `path`, on the same file system.

    If it is killed or fails at any point, the store has the old version or the new one, complete. If it has the old version,
    `working` has to be written again, because some of its files may have been moved.

    Args:
        path: the store's directory. The caller makes sure that no other process writes to it.
        working: what a writer `extending` the newest version has finished. Its files are moved away.

    Returns:
        The new manifest.

    Raises:
        CorruptionError: `working` does not continue the newest version, or lacks a file.
        OSError: the disk failed.
    """
    _, old = read_manifest(Path(path))
    _, new = read_manifest(Path(working))
    if not _continues(old, new):
        raise _does_not_follow(old, new, Path(working))
    return commit_version(path, working)


def commit_version(path: Path, working: Path) -> Manifest:
    """Like `commit_append`, for a version that may lack documents of the newest one (FMT-19).

    Raises:
        CorruptionError: `working` is not the next version of the store, or lacks a file.
        OSError: the disk failed.
    """
    path, working = Path(path), Path(working)
    _, old = read_manifest(path)
    bytes_before = read_bytes(path / MANIFEST_NAME, regular_size(path / MANIFEST_NAME))  # was decoded: size is bounded
    _, new = read_manifest(working)
    before, after = _entries(old), _entries(new)
    moved = {name: entry for name, entry in after.items() if name not in before}
    shared = before.keys() & after.keys()
    same = (new.dtype, new.vocab_size) == (old.dtype, old.vocab_size)
    if new.version != old.version + 1 or not same or any(_content(before[n]) != _content(after[n]) for n in shared):
        raise _does_not_follow(old, new, working)
    for name, entry in moved.items():
        check_size(working / name, entry.num_bytes)
    move_files(working, path, sorted(moved))
    write_atomically(path / manifest_name(old.version), bytes_before, read_only=True)
    move_files(working, path, [MANIFEST_NAME])
    return new


def _does_not_follow(old: Manifest, new: Manifest, working: Path) -> CorruptionError:
    return CorruptionError(
        f"append: version {new.version} with {new.num_documents} documents does not continue version {old.version} of"
        f" the store ({working}); remove it and append again"
    )


def _content(entry: FileEntry | ShardEntry) -> tuple[int, str]:
    return entry.num_bytes, entry.checksum


def _entries(manifest: Manifest) -> _Entries:
    return {**manifest.files, **{shard.file: shard for shard in manifest.shards}}


def _continues(old: Manifest, new: Manifest) -> bool:
    """Whether the old documents come first in the new version."""
    return new.shards[: len(old.shards)] == old.shards and len(new.shards) > len(old.shards)
