"""A store at a URL: its manifest, what the server says about its objects, and its index files in the cache.

The index files (boundaries, length index, and others when they are used) are in CACHE/index/<sha256 of the manifest>/, under
their names in the store. So that folder is a part of the store, and is read like a store on a disk.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from tokenstore.errors import CorruptionError, FormatError, RemoteError
from tokenstore.format.layout import MANIFEST_NAME, manifest_name, manifest_version
from tokenstore.format.manifest import FileEntry, Manifest
from tokenstore.format.manifest_file import decode_manifest
from tokenstore.outside import MAX_REMOTE_MANIFEST_BYTES
from tokenstore.store.remote.client import Client, Fetched, MissingObject, ObjectInfo
from tokenstore.store.remote.downloads import download, has_whole, keep
from tokenstore.store.remote.location import Location
from tokenstore.store.remote.options import RemoteOptions, ResolvedOptions

_BLOCK, _AHEAD = 4 << 20, 16  # bytes per request and requests ahead, when a whole object is read
_Listed = dict[str, ObjectInfo]


class Infos(Mapping[str, ObjectInfo]):
    """Size and ETag of the objects of a store: as listed when it was opened, or asked for when they are first used.

    Attributes:
        known: those that are known. Whoever reads an object of which nothing is known adds it.
    """

    def __init__(self, client: Client, names: Iterable[str], listed: _Listed | None):
        self._client, self._names = client, list(names)
        self.known = {} if listed is None else listed
        self._is_listed = listed is not None

    def __getitem__(self, name: str) -> ObjectInfo:
        """The size and the ETag of an object.

        Raises:
            CorruptionError: there is no such object.
            RemoteError: the server cannot be asked.
        """
        if name not in self.known:
            self.known[name] = self._client.head(name)  # raises if there is none, also for a listed folder
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def check_sizes(self, sizes: Mapping[str, int], url: str) -> None:
        """CorruptionError if a listed object has another size, or is missing. Without a list, nothing is checked now."""
        for name, num_bytes in sizes.items() if self._is_listed else ():
            self.check_size(name, num_bytes, url)

    def check_size(self, name: str, num_bytes: int, url: str) -> None:
        """CorruptionError if an object that is listed, or was used, has another size; or is missing."""
        found = self.known.get(name)
        if found is None or found.num_bytes != num_bytes:
            what = "none" if found is None else f"{found.num_bytes} bytes"
            raise CorruptionError(
                f"object size: expected {num_bytes} bytes, found {what} ({url}/{name}); copy or build the store again"
            )


def _older(listed: _Listed | None) -> set[int]:
    """The versions that have a manifest of their own among the listed objects."""
    return {version for name in listed or () if (version := manifest_version(name))}


class RemoteFiles:
    """The files of one version of a store at a URL.

    Attributes:
        url: of the store, without any secret.
        client: reads its objects.
        options: where the cache is, and how tokens travel.
        folder: the part of the store that is in the cache.
        infos: size and ETag of every object.
        listed: all objects in the store's folder; None if the server cannot list them.
        versions: the versions that can be opened; only the newest if the server cannot list.
    """

    def __init__(self, location: Location, version: int | None, check: str, options: RemoteOptions | None):
        self.given_options = options
        self.options: ResolvedOptions = (options or RemoteOptions()).resolved()
        self.url, self.client = location.url, Client(location, self.options.deadline)
        data, manifest, newest, listed = self._read(version)
        self._entries: dict[str, FileEntry] = {
            **manifest.files,
            **{shard.file: FileEntry(shard.num_bytes, shard.checksum) for shard in manifest.shards},
        }
        self.listed = None if listed is None else dict(listed)
        self.infos = Infos(self.client, self._entries, listed)
        self.versions = sorted({newest, manifest.version, *_older(listed)})
        if check == "sizes":
            self.infos.check_sizes({name: entry.num_bytes for name, entry in self._entries.items()}, self.url)
        self.folder = self.options.cache / "index" / hashlib.sha256(data).hexdigest()[:32]
        self._there: set[str] = set()
        keep(self.folder / MANIFEST_NAME, data)

    # ---- opening

    def _read(self, version: int | None) -> tuple[bytes, Manifest, int, _Listed | None]:
        """The manifest of a version as bytes and decoded, the newest version, and all objects if the server lists them.

        For the newest version these are two requests at the same time.
        """
        with ThreadPoolExecutor(2) as pool:
            first, listing = pool.submit(self._manifest, MANIFEST_NAME), pool.submit(self._list)
            data, manifest = self._newest(first)
            listed = listing.result()
        newest = manifest.version
        if version in (None, newest):
            return data, manifest, newest, listed
        there = sorted({newest, *_older(listed)})
        if version not in there and listed is not None:
            raise FormatError(
                f"store version: expected one of {', '.join(map(str, there))}, found {version} ({self.url})"
            )
        data, manifest = self._manifest(manifest_name(version or 1))
        if manifest.version != version:
            raise CorruptionError(
                f"manifest: expected version {version} of the store, found {manifest.version} ({self.url}); copy the"
                " store again"
            )
        return data, manifest, newest, listed

    def _newest(self, newest: Future[tuple[bytes, Manifest]]) -> tuple[bytes, Manifest]:
        try:
            return newest.result()
        except MissingObject as error:
            raise FormatError(
                f"no store at {self.url}: found no {MANIFEST_NAME}; give the URL of the folder that a build wrote, and check"
                " bucket, path and endpoint"
            ) from error

    def _manifest(self, name: str) -> tuple[bytes, Manifest]:
        place = self.client.location.object_url(name)
        data = self.client.read(name, MAX_REMOTE_MANIFEST_BYTES)
        return data, decode_manifest(data, place)

    def _list(self) -> _Listed | None:
        """All objects, or None if this server cannot list them or does not allow it: then each is asked for when used."""
        try:
            return self.client.list()
        except RemoteError:
            return None

    # ---- index files

    def has(self, name: str) -> bool:
        """Whether a file is in the cache."""
        if name not in self._there and has_whole(self.folder / name, self._entries[name].num_bytes):
            self._there.add(name)
        return name in self._there

    def fetch(self, name: str) -> None:
        """Make sure that a file is in the cache.

        Raises:
            CorruptionError: the object has another size or checksum than in the manifest.
            RemoteError: it cannot be read.
            TokenStoreError: the cache cannot be written.
        """
        if not self.has(name):
            download(self.client, name, self.folder / name, self._entries[name], self.infos[name])

    def blocks(self, name: str) -> Iterator[bytes]:
        """All bytes of an object, in order, from requests made ahead. CorruptionError if it has another size than listed."""
        info, size = self.infos[name], self._entries[name].num_bytes
        if info.num_bytes != size:
            self.infos.check_size(name, size, self.url)
        starts = range(0, size, _BLOCK)
        with ThreadPoolExecutor(_AHEAD) as pool:
            waiting: deque[Future[Fetched]] = deque()
            try:
                for number in range(len(starts) + _AHEAD):
                    if number < len(starts):
                        stop = min(starts[number] + _BLOCK, size)
                        waiting.append(pool.submit(self.client.get, name, starts[number], stop, info))
                    if number >= _AHEAD - 1 and waiting:
                        yield waiting.popleft().result().data.tobytes()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def names_of_all_versions(self) -> set[str]:
        """The names of all files that a version of this store lists, and of the manifests."""
        names: set[str] = set()
        for version in self.versions:
            name = MANIFEST_NAME if version == max(self.versions) else manifest_name(version)
            manifest = self._manifest(name)[1]
            names |= {name, *manifest.files, *(shard.file for shard in manifest.shards)}
        return names

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("remote files: cannot be pickled; pickle the store")
