"""Moves a finished store to its output; with --overwrite it replaces another, if everything in that belongs to the store."""

import contextlib
from itertools import chain
from pathlib import Path

from tokenstore.builder.result import Note
from tokenstore.builder.resume import tidy
from tokenstore.errors import ConfigError, counted
from tokenstore.format.layout import MANIFEST_NAME, TEMPORARY_SUFFIX, is_store_name, manifest_version
from tokenstore.paths import is_file, is_folder, is_there, resolved
from tokenstore.store.find_manifest import raw_manifest
from tokenstore.store.work import Work
from tokenstore.store.writing import commit_directory, move_directory, remove_tree

NO_STORE = "output: {} exists and is not a token store; choose another path"
_MOST_SHOWN = 5


def resolved_output(path: str | Path) -> Path:
    """The output as an absolute path without links. They are resolved once, here: the work folder is next to the store itself.

    Raises:
        ConfigError: it is a file, or a link that leads to itself, or cannot be examined, for example without permission.
    """
    output = resolved(path)
    try:
        if is_file(output):
            raise ConfigError(NO_STORE.format(output))
    except OSError as error:
        raise ConfigError(
            f"output: {output} cannot be examined ({error.strerror}); check the path and its permissions"
        ) from error
    if output.is_symlink():
        raise ConfigError(f"output: {output} is a link that leads to itself; remove it, or choose another path")
    return output


def is_free(output: Path) -> bool:
    """Whether `output` does not exist or is an empty folder."""
    return not is_there(output) or (is_folder(output) and not any(output.iterdir()))


def check_replaceable(output: Path) -> None:
    """Check that --overwrite may remove `output`: it is free, a store, or a folder of splits, also damaged or of any version.

    Raises:
        ConfigError: it is something else, or holds a file or folder that no version of the store names.
    """
    if is_free(output):
        return
    stores = _stores_in(output)
    if any(_listed(store) is None for store in stores):
        raise ConfigError(NO_STORE.format(output))
    if others := _others(stores):
        shown = ", ".join(map(str, others[:_MOST_SHOWN])) + (", ..." if len(others) > _MOST_SHOWN else "")
        raise ConfigError(
            f"output: {output} holds {counted(len(others), 'file or folder', 'files or folders')} that"
            f" {'is' if len(others) == 1 else 'are'} not part of the store ({shown}); --overwrite removes a whole store and"
            " nothing else: move them away, or choose another output"
        )


def _stores_in(output: Path) -> list[Path]:
    """The store at `output`; or what is in it: the stores of splits or partitions, or of the splits of partitions."""
    if _listed(output) is not None:
        return [output]
    found: list[Path] = []
    for path in sorted(output.iterdir()):
        is_group = _listed(path) is None and is_folder(path) and not path.is_symlink()
        found += sorted(path.iterdir()) if is_group else [path]
    return found


def commit(made: Path, output: Path, note: Note) -> None:
    """Rename the finished stores at `made` to `output`, and remove the store they replace.

    Two renames, as a folder that is not empty cannot be replaced in one:

        killed before the first        the old store is still there
        killed between the two         no store at `output`; the old one is in the work folder (`replaced`)
        killed after the second        the new store; `replaced` is removed by the next build with --overwrite

    The second rename failing is the one case that is undone here: an old store is better than none.
    """
    replaced = Work(output).replaced
    remove_tree(replaced)
    if not is_free(output):
        move_directory(output, replaced)
    try:
        commit_directory(made, output)
    except OSError:
        if is_there(replaced) and not is_there(output):
            with contextlib.suppress(OSError):
                move_directory(replaced, output)
        raise
    if is_there(replaced):
        try:
            check_replaceable(replaced)
        except (ConfigError, OSError):  # a file was added to it since it was checked
            note(f"the old store was replaced but is kept in {replaced}, as it holds files that are not part of it")
            return
        tidy([replaced], note)


def _others(stores: list[Path]) -> list[Path]:
    """The files and folders in `stores` that are not part of them."""
    found = chain.from_iterable(sorted(store.iterdir()) for store in stores)
    listed = {store: _listed(store) or set() for store in stores}
    return [path for path in found if not _is_part(path, listed[path.parent])]


def _is_part(path: Path, listed: set[str]) -> bool:
    """Whether this file belongs to a store, or was left by an interrupted append or index."""
    name = path.name.removesuffix(TEMPORARY_SUFFIX)
    return (name in listed or is_store_name(name)) and not (is_folder(path) and not path.is_symlink())


def _listed(folder: Path) -> set[str] | None:
    """The files named by the manifests in `folder`; None if it has no manifest."""
    if folder.is_symlink() or not is_folder(folder) or not _names(folder / MANIFEST_NAME):
        return None
    older = (path for path in folder.iterdir() if manifest_version(path.name))
    return set(chain.from_iterable(_names(path) for path in (folder / MANIFEST_NAME, *older)))


def _names(manifest: Path) -> set[str]:
    """The files that a manifest names, and itself; empty if it is no manifest. A damaged manifest may name only some."""
    body = raw_manifest(manifest)
    files, shards = body.get("files"), body.get("shards")
    shards = [each.get("file") for each in shards if isinstance(each, dict)] if isinstance(shards, list) else []
    names = {manifest.name, *(files if isinstance(files, dict) else ()), *(n for n in shards if isinstance(n, str))}
    return names if body else set()
