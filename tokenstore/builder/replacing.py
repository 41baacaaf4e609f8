"""Put a finished store in its place; with --overwrite in the place of another, if that is ours as a whole."""

import contextlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from tokenstore.builder.resume import tidy
from tokenstore.errors import ConfigError
from tokenstore.format.layout import MANIFEST_NAME, TEMPORARY_SUFFIX, is_store_name, manifest_version
from tokenstore.paths import is_folder, is_there
from tokenstore.store.find_manifest import raw_manifest
from tokenstore.store.work import Work
from tokenstore.store.writing import commit_directory, move_directory, remove_tree

NO_STORE = "output: expected a new path or a store, found something else ({}); choose another"
_MOST_SHOWN = 5


def is_free(output: Path) -> bool:
    """Whether nothing, or an empty folder, is at `output`."""
    return not is_there(output) or (is_folder(output) and not any(output.iterdir()))


def check_replaceable(output: Path) -> None:
    """ConfigError unless `output` is free, a store or a folder of splits, be they damaged or of another version.

    All of it must be ours: a file or folder in it that no version of the store names is somebody's, and is not removed.
    """
    if is_free(output):
        return
    stores = [output] if _listed(output) is not None else sorted(output.iterdir())
    if any(_listed(store) is None for store in stores):
        raise ConfigError(NO_STORE.format(output))
    if others := _others(stores):
        shown = ", ".join(map(str, others[:_MOST_SHOWN])) + (", ..." if len(others) > _MOST_SHOWN else "")
        raise ConfigError(
            f"output: {output} holds {len(others)} files or folders that are not part of the store ({shown});"
            " --overwrite removes a whole store and nothing else: move them away, or choose another output"
        )


def commit(made: Path, output: Path, note: Callable[[str], None]) -> None:
    """Give the finished stores at `made` their name. The store they replace is removed after that."""
    replaced = Work(output).replaced
    remove_tree(replaced)
    if not is_free(output):
        move_directory(output, replaced)
    try:
        commit_directory(made, output)
    except OSError:
        if is_there(replaced) and not is_there(output):  # the old store is better than none
            with contextlib.suppress(OSError):
                move_directory(replaced, output)
        raise
    if is_there(replaced):
        try:
            check_replaceable(replaced)
        except (ConfigError, OSError):  # somebody has put something into it since it was checked
            note(f"the old store was replaced, and is kept in {replaced}, as there is more in it than the store")
            return
        tidy([replaced], note)


def _others(stores: list[Path]) -> list[Path]:
    """What is in the folders of stores and no part of them."""
    found = chain.from_iterable(sorted(store.iterdir()) for store in stores)
    listed = {store: _listed(store) or set() for store in stores}
    return [path for path in found if not _is_part(path, listed[path.parent])]


def _is_part(path: Path, listed: set[str]) -> bool:
    """Whether a store has this file, or an interrupted append or index has left it."""
    name = path.name.removesuffix(TEMPORARY_SUFFIX)
    return (name in listed or is_store_name(name)) and not (is_folder(path) and not path.is_symlink())


def _listed(folder: Path) -> set[str] | None:
    """The files that the manifests in `folder` name; None where there is no manifest of a store."""
    if folder.is_symlink() or not is_folder(folder) or not _names(folder / MANIFEST_NAME):
        return None
    older = (path for path in folder.iterdir() if manifest_version(path.name))
    return set(chain.from_iterable(_names(path) for path in (folder / MANIFEST_NAME, *older)))


def _names(manifest: Path) -> set[str]:
    """The files that a manifest names, and itself; a damaged one may be short of some. Empty for any other file."""
    body = raw_manifest(manifest)
    files, shards = body.get("files"), body.get("shards")
    shards = [each.get("file") for each in shards if isinstance(each, dict)] if isinstance(shards, list) else []
    names = {manifest.name, *(files if isinstance(files, dict) else ()), *(n for n in shards if isinstance(n, str))}
    return names if body else set()
