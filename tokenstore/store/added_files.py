"""Adds a file to a finished store: one that follows from its contents, so the digest stays the same (FMT-9, FMT-15).

The manifest is replaced atomically after the file is synced, so the store is complete at any moment, with or without the file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import TEMPORARY_SUFFIX
from tokenstore.format.manifest import FileEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.reader import Store
from tokenstore.store.work import exclusive_work
from tokenstore.store.writing import remove, rename, write_atomically


@contextlib.contextmanager
def lock_to_add(path: Path, options: Mapping[str, Any], name: str) -> Iterator[None]:
    """Lock the store at `path`, and report errors of its disk.

    Args:
        path: the store's directory, with all links resolved.
        options: of its manifest.
        name: of the file to add, for messages.

    Raises:
        StoreBusyError: another process is writing this store.
        TokenStoreError: the store cannot be written.
    """
    try:
        with contextlib.ExitStack() as stack:
            if options.get("split_name") == path.name:  # appends and replacing builds lock the folder of all splits
                stack.enter_context(exclusive_work(path.parent))
            stack.enter_context(exclusive_work(path))
            yield
    except OSError as error:
        raise TokenStoreError(
            f"{name.partition('.')[0].replace('_', ' ')}: cannot write {error.filename or path / name}: {error.strerror or error};"
            " fix the cause and run `tokenstore index` again"
        ) from error


def add_file(store: Store, name: str, write: Callable[[Path], FileEntry]) -> None:
    """Write a file by `write(path)` and list it in the manifest of the opened version. `name` is its name in version 1."""
    name = store.file(name).name
    working = store.path / (name + TEMPORARY_SUFFIX)
    remove(working)  # left by a run that was killed
    try:
        entry = write(working)
    except BaseException:
        remove(working)
        raise
    rename(working, name)
    files = dict(sorted({**store.manifest.files, name: entry}.items()))
    write_atomically(store.manifest_path, encode_manifest(replace(store.manifest, files=files)), read_only=True)
