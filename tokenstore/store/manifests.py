"""Find the manifest of a store, or of one of its versions (FMT-5, FMT-13)."""

from pathlib import Path

from tokenstore.errors import CorruptionError, FormatError, TokenStoreError
from tokenstore.format.layout import MANIFEST_NAME, MAX_MANIFEST_BYTES, manifest_name, manifest_version
from tokenstore.format.manifest import Manifest, decode_manifest
from tokenstore.paths import is_folder, is_there
from tokenstore.store.files import read_bytes

BUILDING_SUFFIX = ".building"  # `<store>.building` is where an unfinished build works


def versions(path: str | Path) -> list[int]:
    """Versions of the store at `path` that can be opened, rising; the last one is the newest (FMT-13)."""
    path = Path(path).absolute()
    newest = read_manifest(path)[1].version
    names = (manifest_version(file.name) for file in path.iterdir())
    return [*sorted(version for version in names if version is not None and version < newest), newest]


def read_manifest(path: Path, version: int | None = None) -> tuple[Path, Manifest]:
    """The manifest of a version and the file it stands in: the newest is always in manifest.json."""
    newest = path / MANIFEST_NAME
    try:
        if is_folder(path) and is_there(newest):
            manifest = decode_manifest(read_bytes(newest, MAX_MANIFEST_BYTES), str(newest))
            return (newest, manifest) if version in (None, manifest.version) else _older_manifest(path, version)
        if is_folder(Path(f"{path}{BUILDING_SUFFIX}")):
            raise FormatError(
                f"store: expected a finished store, found an unfinished build ({path});"
                " run the same build command again"
            )
        found = "a directory without manifest.json" if is_folder(path) else "a file" if is_there(path) else "nothing"
    except OSError as error:
        raise TokenStoreError(
            f"store: expected a token store, found {error.strerror} ({path}); check the path and its permissions"
        ) from error
    raise FormatError(f"store: expected a token store, found {found} ({path}); give the directory a build wrote")


def _older_manifest(path: Path, version: int) -> tuple[Path, Manifest]:
    if version not in (there := versions(path)):
        raise FormatError(
            f"store version: expected one of {', '.join(map(str, there))}, found {version} ({path}); give one of them"
        )
    older = path / manifest_name(version)
    manifest = decode_manifest(read_bytes(older, MAX_MANIFEST_BYTES), str(older))
    if manifest.version != version:
        raise CorruptionError(
            f"manifest: expected version {version} of the store, found {manifest.version} ({older});"
            " copy or build the store again"
        )
    return older, manifest
