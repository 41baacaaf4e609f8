"""`tokenstore drop`: removes documents from a store, as its next version."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenstore.errors import BuildError, ConfigError, counted
from tokenstore.format.layout import MANIFEST_NAME, is_store_name
from tokenstore.outside import open_file
from tokenstore.paths import is_folder, is_there, resolved
from tokenstore.store.dropping import Dropper
from tokenstore.store.find_manifest import read_manifest, versions
from tokenstore.store.length_index import write_length_index
from tokenstore.store.next_version import commit_version
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.location import refuse_url
from tokenstore.store.work import exclusive_work
from tokenstore.store.writing import new_folder, own_folder, remove, remove_tree

_BLOCK = 1 << 16


@dataclass(frozen=True)
class DropResult:
    """What `drop` did to a store.

    Attributes:
        path: the store's folder.
        version: its newest version.
        digest: of that version.
        num_documents, num_tokens: in that version.
        dropped_documents, dropped_tokens: removed now; 0 if nothing matched, and no version was made.
        affected_versions: older versions that can still be opened and hold documents removed now.
    """

    path: Path
    version: int
    digest: str
    num_documents: int
    num_tokens: int
    dropped_documents: int
    dropped_tokens: int
    affected_versions: tuple[int, ...]


def read_ids(path: str | Path) -> list[str]:
    """The ids in a file, one per line. ConfigError if it cannot be read or is not UTF-8."""
    try:
        with open_file(Path(path)) as raw:
            text = raw.readall().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"ids: {path} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from error
    except OSError as error:
        raise ConfigError(f"ids: {path} cannot be read ({error.strerror}); check the path") from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]


def drop(path: str | Path, ids: Iterable[str], purge: bool = False) -> tuple[list[DropResult], list[str]]:
    """Remove all documents with these ids from a store, or from every store in a folder of splits or partitions.

    Each store gets a next version without them. Older versions stay, unless `purge`, and still hold them. A killed call leaves
    the old version or the new one; call it again.

    Args:
        path: the store's folder, or the folder with several stores of one build.
        ids: ids of documents. All documents with such an id are removed.
        purge: remove all older versions, and the files that only they use, so that the tokens are gone from the disk.

    Returns:
        A result per store, and the ids that no document of any store has.

    Raises:
        ConfigError: a store has no ids, was adopted from another tool, or would lose all its documents.
        StoreBusyError: another process is writing a store.
        CorruptionError: a store is damaged.
        BuildError: the disk is full.

    Example:
        >>> results, unknown = drop("stores/web", ["https://example.org/a"])
        >>> results[0].version, results[0].affected_versions
    """
    refuse_url(path, "drop")
    path = resolved(path)
    wanted = {each.encode("utf-8", "surrogatepass") for each in ids}
    folders, found, results = _stores(path), set[bytes](), []
    try:
        with contextlib.ExitStack() as stack:
            if folders != [path]:
                stack.enter_context(exclusive_work(path))  # appends and builds lock the folder of all stores
            for folder in folders:
                results.append(_drop(folder, wanted, found, purge))
    except OSError as error:
        raise BuildError(
            f"disk: {error.strerror or error}: {error.filename or path}; the store has its old version: fix the cause and run the"
            " same command again"
        ) from error
    return results, sorted(each.decode("utf-8", "surrogatepass") for each in wanted - found)


def _stores(path: Path) -> list[Path]:
    if is_there(path / MANIFEST_NAME) or not is_folder(path):
        return [path]
    inside = [each for each in sorted(path.iterdir()) if is_folder(each) and not each.is_symlink()]
    found = [each for first in inside for each in (first, *sorted(first.iterdir())) if is_there(each / MANIFEST_NAME)]
    if not found:
        raise ConfigError(f"drop: {path} is neither a store nor a folder of stores; check the path")
    return found


def _drop(folder: Path, wanted: set[bytes], found: set[bytes], purge: bool) -> DropResult:
    with exclusive_work(folder) as work, open_store(folder) as store:
        if store.manifest.is_adopted:
            raise ConfigError(
                f"drop: {folder} was adopted from files of another tool; remove the documents there, and adopt it again"
            )
        kept = _kept(store, wanted, found)
        dropped = int(np.count_nonzero(~kept))
        if dropped == len(store):
            raise ConfigError(
                f"drop: {folder} would lose all its {counted(dropped, 'document')}; remove the store instead"
            )
        before = store.num_tokens
        if dropped:
            remove_tree(work.building)
            own_folder(work.building)
            working = work.building / "store"
            new_folder(working)
            Dropper(store, kept, working).write()
            if store.has_length_index:
                write_length_index(working)
            commit_version(folder, working)
            remove_tree(work.building)
    if purge:
        _purge(folder)
    with open_store(folder) as now:
        older = tuple(each for each in versions(folder) if each < now.version)
        affected = older if dropped else ()
        return DropResult(
            folder, now.version, now.digest, len(now), now.num_tokens, dropped, before - now.num_tokens, affected
        )


def _kept(store: Store, wanted: set[bytes], found: set[bytes]) -> np.ndarray:
    """bool[D], which documents have none of these ids; adds the ids that occur to `found`."""
    if not store.has_ids:
        raise ConfigError(f"drop: {store.path} has no ids, so documents cannot be named; build it with --id-field")
    kept = np.ones(len(store), np.bool_)
    for first in range(0, len(store), _BLOCK):
        for i, text in enumerate(store.ids_between(first, min(first + _BLOCK, len(store))), first):
            if (name := text.encode()) in wanted:
                kept[i] = False
                found.add(name)
    return kept


def _purge(folder: Path) -> None:
    """Remove older versions, and the files of stores that the newest version does not list."""
    for file in sorted(folder.iterdir()):
        if file.name != MANIFEST_NAME and file.name.startswith("manifest-v") and is_store_name(file.name):
            remove(file)
    _, manifest = read_manifest(folder)
    listed = {MANIFEST_NAME, *manifest.files, *(shard.file for shard in manifest.shards)}
    for file in sorted(folder.iterdir()):
        if is_store_name(file.name) and file.name not in listed:
            remove(file)


def sentence(results: Sequence[DropResult]) -> str:
    """What the caller should know of older versions; "" if none is affected."""
    affected = [
        f"{each.path.name}: {', '.join(map(str, each.affected_versions))}" for each in results if each.affected_versions
    ]
    if not affected:
        return ""
    return (
        f"older versions still hold the documents ({'; '.join(affected)}). Plans that name them with `version:` still read the"
        " documents; plans without a version read the new one from their next start. --purge removes the older versions"
    )
