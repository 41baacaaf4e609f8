"""Finds the manifest of a store, or of one of its versions (FMT-5, FMT-13)."""

import json
from pathlib import Path
from typing import Any

from tokenstore.errors import CorruptionError, FormatError, TokenStoreError
from tokenstore.format.layout import MANIFEST_NAME, manifest_name, manifest_version
from tokenstore.format.manifest import Manifest
from tokenstore.format.manifest_file import decode_manifest
from tokenstore.outside import MANIFEST_BYTES, MANIFEST_BYTES_PER_FILE
from tokenstore.paths import is_folder, is_there
from tokenstore.store.files import read_bytes, regular_size
from tokenstore.store.work import Work


def versions(path: str | Path, allow_links: str | Path | None = None) -> list[int]:
    """Versions of the store at `path` that can be opened, in rising order; the last one is the newest (FMT-13).

    Args:
        path: the store's directory.
        allow_links: as in `open_store`.

    Raises:
        TokenStoreError: there is no store, or it cannot be read.
    """
    path = Path(path).absolute()
    newest = read_manifest(path, allow_links=None if allow_links is None else Path(allow_links).absolute())[1].version
    names = (manifest_version(file.name) for file in path.iterdir())
    return [*sorted(version for version in names if version is not None and version < newest), newest]


def names_in_use(path: Path) -> frozenset[str]:
    """The names of the shards of all versions of the store at `path`."""
    manifests = (read_manifest(path, version)[1] for version in versions(path))
    return frozenset(shard.file for manifest in manifests for shard in manifest.shards)


def read_manifest(path: Path, version: int | None = None, allow_links: Path | None = None) -> tuple[Path, Manifest]:
    """The manifest of a version, and the path of its file. The manifest of the newest version is always manifest.json."""
    newest = path / MANIFEST_NAME
    try:
        if is_folder(path) and is_there(newest):
            manifest = _decoded(newest, allow_links)
            return (newest, manifest) if version in (None, manifest.version) else _older(path, version, allow_links)
        if is_folder(Work(path).building):
            raise FormatError(f"store: the build of {path} is not finished; run the same build command again")
        found = "a directory without manifest.json" if is_folder(path) else "a file" if is_there(path) else "nothing"
    except OSError as error:
        raise TokenStoreError(
            f"store: cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error
    raise FormatError(
        f"no store at {path}: found {found}; give the directory that a build wrote, and check that its disk is mounted"
    )


def _decoded(file: Path, allow_links: Path | None) -> Manifest:
    return decode_manifest(_data_of(file, allow_links), str(file))


def _data_of(file: Path, allow_links: Path | None) -> bytes:
    """The bytes of a manifest. Its maximum size grows with the number of files in its directory."""
    most = MANIFEST_BYTES
    if regular_size(file, allow_links) > most:
        most += MANIFEST_BYTES_PER_FILE * sum(1 for _ in file.parent.iterdir())
    return read_bytes(file, most, allow_links)


def raw_manifest(file: Path) -> dict[str, Any]:
    """The fields of a token store's manifest, even if it is invalid; {} for any other file."""
    try:
        body = json.loads(_data_of(file, None))
    except (TokenStoreError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) and body.get("format") == "tokenstore" else {}


def _older(path: Path, version: int, allow_links: Path | None) -> tuple[Path, Manifest]:
    if version not in (there := versions(path, allow_links)):
        raise FormatError(f"store version: expected one of {', '.join(map(str, there))}, found {version} ({path})")
    older = path / manifest_name(version)
    manifest = _decoded(older, allow_links)
    if manifest.version != version:
        raise CorruptionError(
            f"manifest: expected version {version} of the store, found {manifest.version} ({older});"
            " copy or build the store again"
        )
    return older, manifest
