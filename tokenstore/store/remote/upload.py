"""Copies a finished store to object storage, so that it appears complete: the manifest is written last, and only if there is none.

    tokenstore-upload.json      the claim: which store is being uploaded here. Written first, if there is none; removed at the end
    tokens-00000.bin, ...       every file of the store; large ones in parts, which appear as one object or not at all
    manifest.json               the commit: a request that fails if there is such an object

An upload that ends early leaves the claim and some objects, but no store. The same upload continues it: objects of the same size
under a claim of the same manifest were written by it. Another store is refused, so that two builds cannot mix their objects. The
digest would not be enough: stores with equal tokens may have other ids, for example.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from tokenstore.errors import ConfigError, CorruptionError, RemoteError, StoreBusyError, TokenStoreError
from tokenstore.format.layout import MANIFEST_NAME
from tokenstore.format.manifest_file import decode_manifest
from tokenstore.outside import MANIFEST_BYTES
from tokenstore.store.files import open_to_read, regular_size
from tokenstore.store.reader import open_store
from tokenstore.store.remote.client import Client, ObjectInfo
from tokenstore.text import safe

CLAIM_NAME = "tokenstore-upload.json"
_CLAIM_BYTES = 1 << 12
_MOST_MANIFEST = 16 * MANIFEST_BYTES
_PART_BYTES = 32 << 20  # S3 takes at most 10,000 parts: 312 GiB

Progress = Callable[[int, int], None]


def upload_store(
    folder: Path, client: Client, overwrite: bool = False, progress: Progress = lambda done, total: None
) -> bool:
    """Copy the store in `folder` to the place of `client`.

    Args:
        folder: a complete store.
        client: of the place, a folder on object storage.
        overwrite: replace another store, or another unfinished upload, at that place.
        progress: called with (bytes done, total).

    Returns:
        False if that store was there already.

    Raises:
        ConfigError: another store is there, or objects that are not of this upload; or the place is http(s)://.
        StoreBusyError: another store is being uploaded there.
        RemoteError: the server failed until the deadline; the same call continues.
    """
    if client.location.scheme in ("http", "https"):
        raise ConfigError(
            f"output: cannot write to {client.location.scheme}:// ({client.location.url}); use s3, gs or az"
        )
    with open_store(folder) as store:
        digest = store.digest
    manifest = (folder / MANIFEST_NAME).read_bytes()
    there, data = _digest_there(client)
    if there == digest and (data == manifest or not overwrite):
        _remove_claim(client, digest)
        return False
    if there is not None:
        if not overwrite:
            raise ConfigError(
                f"output: {client.location.url} holds another store (digest {there[:16]}...); use --overwrite or another output"
            )
        client.delete(MANIFEST_NAME)
    resumes = _claim(client, digest, manifest, overwrite)
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST_NAME)
    sizes = {name: regular_size(folder / name) for name in names}
    known = client.list() if resumes else {}
    done, total = 0, sum(sizes.values())
    for name, num_bytes in sizes.items():
        if name not in known or known[name].num_bytes != num_bytes:
            _put_file(client, folder / name, partial(_report, progress, done, total))
        done += num_bytes
        progress(done, total)
    _check_sizes(client, client.list(), sizes)
    _commit(client, manifest, digest)
    _remove_claim(client, digest)
    return True


def _report(progress: Progress, done: int, total: int, more: int) -> None:
    progress(done + more, total)


def _digest_there(client: Client) -> tuple[str | None, bytes]:
    """The digest and the manifest of the store at the place of `client`; None and nothing if there is none."""
    data = _small_object(client, MANIFEST_NAME, _MOST_MANIFEST)
    if data is None:
        return None, b""
    return decode_manifest(data, client.location.object_url(MANIFEST_NAME)).digest, data


def _small_object(client: Client, name: str, most: int) -> bytes | None:
    try:
        found = client.head(name)
    except CorruptionError:  # there is no such object
        return None
    if not 0 < found.num_bytes <= most:
        raise ConfigError(
            f"output: {client.location.object_url(name)} is not tokenstore's ({found.num_bytes} bytes); remove it, or use"
            " another output"
        )
    return client.get(name, 0, found.num_bytes, found).data.tobytes()


def _claim(client: Client, digest: str, manifest: bytes, overwrite: bool) -> bool:
    """Write the claim; whether this continues an earlier upload of the same store."""
    fields = {"digest": digest, "manifest": hashlib.sha256(manifest).hexdigest()}
    claim = json.dumps({"format": "tokenstore-upload", "format_version": 1, **fields}).encode()
    if client.put_new(CLAIM_NAME, claim):
        strangers = {*client.list()} - {CLAIM_NAME}
        if strangers and not overwrite:
            client.delete(CLAIM_NAME)
            raise ConfigError(
                f"output: {client.location.url} holds other objects, such as {safe(min(strangers))}; use an empty place, or"
                " --overwrite to replace objects of the same names"
            )
        return False
    found = _small_object(client, CLAIM_NAME, _CLAIM_BYTES)
    if found is None or found == claim:
        return found is not None
    if not overwrite:
        raise StoreBusyError(
            f"output: another store is being uploaded to {client.location.url}, or its upload was given up; wait for it, use"
            f" another output, or --overwrite if nothing writes there (see {CLAIM_NAME})"
        )
    client.put(CLAIM_NAME, claim)
    return False


def _put_file(client: Client, path: Path, progress: Callable[[int], None]) -> None:
    """Upload a file, again from its beginning after a failure that may pass."""

    def attempt(store: Any, put: Any) -> None:
        with open_to_read(path) as file:
            put(store, path.name, _Counted(file, progress), chunk_size=_PART_BYTES)

    client.write(path.name, attempt)


class _Counted:
    """A file that reports how much of it was read."""

    def __init__(self, file: IO[bytes], progress: Callable[[int], None]):
        self._file, self._progress, self._done = file, progress, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._done += len(data)
        self._progress(self._done)
        return data

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


def _check_sizes(client: Client, found: dict[str, ObjectInfo], sizes: dict[str, int]) -> None:
    for name, num_bytes in sizes.items():
        if name not in found or found[name].num_bytes != num_bytes:
            raise RemoteError(
                f"object storage: expected {num_bytes} bytes of {client.location.object_url(name)} after the upload, found"
                f" {found[name].num_bytes if name in found else 'no such object'}; another process writes there: end it and run"
                " the same command again"
            )


def _commit(client: Client, manifest: bytes, digest: str) -> None:
    if client.put_new(MANIFEST_NAME, manifest):
        return
    there, _ = _digest_there(client)
    if there != digest:
        raise StoreBusyError(
            f"output: another process has committed another store at {client.location.url}"
            f" (digest {str(there)[:16]}...) while this one was uploaded; use another output"
        )


def end_upload(client: Client) -> None:
    """Remove the claim of the store that is complete at the place of `client`: its upload was killed before it did so."""
    digest, _ = _digest_there(client)
    if digest:
        _remove_claim(client, digest)


def _remove_claim(client: Client, digest: str) -> None:
    """Remove the claim of this store. The store is complete, so a failure does not matter."""
    try:
        found = _small_object(client, CLAIM_NAME, _CLAIM_BYTES)
        if found is not None and json.loads(found).get("digest") == digest:
            client.delete(CLAIM_NAME)
    except (TokenStoreError, ValueError, AttributeError):
        pass
