"""The token and mask files of a store at a URL: exact ranges of them, checked, and the mirror if the store has one."""

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import numpy as np
import xxhash

from tokenstore.errors import ConfigError, CorruptionError, TokenStoreError
from tokenstore.format.layout import CHECKSUM_BLOCK, mask_of
from tokenstore.format.manifest import Manifest
from tokenstore.store.files import renew_after_fork
from tokenstore.store.remote.block_cache import PART_BYTES, BlockCache
from tokenstore.store.remote.block_files import BlockFiles
from tokenstore.store.remote.client import Client, ObjectInfo, Wanted
from tokenstore.store.remote.group import SPAN_THREADS, Group
from tokenstore.store.remote.mirror import Mirror, MirrorWarning
from tokenstore.store.remote.mirror_file import UnusableMirror, boot_id
from tokenstore.store.remote.mirrors import BLOCK_BYTES, MirrorFolder, choose_transport, folder_of, make_room
from tokenstore.store.remote.options import ResolvedOptions
from tokenstore.store.workers import workers

_DAMAGED_ATTEMPTS = 3  # how often a block with a wrong checksum is fetched before it is an error
Checksums = Callable[[int], np.ndarray | None]


@dataclass
class Traffic:
    """What this process has fetched from a store, or found in its cache.

    Attributes:
        cache_hits: rows' spans that were found in the mirror.
        cache_misses: those that were not.
        waits: microbatches that were not there when they were needed.
        wait_seconds: time spent waiting for them.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    waits: int = 0
    wait_seconds: float = 0.0


class TokenFiles:
    """The token and mask files of one version of a store at a URL. Can be shared among threads, and used after a fork.

    Files have the numbers that they have in the store: the shards are 0, 1, ...; then their masks.

    Attributes:
        client: the folder that the store is in.
        num_bytes: int64[files], size of each file.
        traffic: what was done in this process.
        block_bytes: size of a block of a mirror.
    """

    block_bytes = BLOCK_BYTES

    def __init__(
        self,
        client: Client,
        manifest: Manifest,
        infos: dict[str, ObjectInfo],
        options: ResolvedOptions,
        checksums: Checksums,
    ):
        """Describe the files. Nothing is requested.

        Args:
            client: the folder that the store is in.
            manifest: of the version.
            infos: objects that were seen when the store was opened. The ETag of any other is that of its first answer.
            options: how tokens travel.
            checksums: checksums(file) returns the block checksums of a file (FMT-15), or None.
        """
        self.client, self._manifest, self._options, self._checksums = client, manifest, options, checksums
        shards = [(shard.file, shard.num_bytes, shard.checksum) for shard in manifest.shards]
        masks = [mask_of(shard.file) for shard in manifest.shards] if manifest.has_masks else []
        entries = [(name, manifest.files[name].num_bytes, manifest.files[name].checksum) for name in masks]
        self._files: Sequence[tuple[str, int, str]] = shards + entries
        self.num_bytes = np.array([num_bytes for _, num_bytes, _ in self._files], np.int64)
        self._infos = infos
        self.traffic = Traffic()
        self._known_checksums: dict[int, np.ndarray | None] = {}
        self._transport: str | None = None
        self._mirror: Mirror | None = None
        self._renew()
        renew_after_fork(self, TokenFiles._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def name(self, number: int) -> str:
        """Name of a file."""
        return self._files[number][0]

    def url(self, number: int) -> str:
        """URL of a file."""
        return self.client.location.object_url(self.name(number))

    # ---- transport

    @property
    def transport(self) -> str:
        """How tokens travel: "spans", "mirror" or "blocks". Decided when it is first asked for.

        Raises:
            ConfigError: a mirror was demanded, and the store does not fit into the cache.
        """
        with self._lock:
            if self._transport is None:
                where, total = self.client.location.url, int(self.num_bytes.sum())
                folder = self._folder
                self._transport = choose_transport(self._options, folder, total, where)
            return self._transport

    def prefer_blocks(self) -> None:
        """The store is read in lanes: read blocks if nothing else was chosen. Rows that no loader reads in order are spans."""
        with self._lock:
            if self._transport is None and self._options.transport in ("auto", "blocks"):
                self._transport = "blocks"

    def open_blocks(self, identity: str, num_bytes: int) -> BlockCache | None:
        """The cache for the blocks of lanes, which take at most `num_bytes`; None if tokens travel in another way.

        identity: names what the blocks are, besides the store.

        Raises:
            ConfigError: blocks were demanded, and the cache is too small.
        """
        with self._lock:
            if self.transport == "blocks" and self._options.transport == "auto" and self.num_bytes.sum() <= num_bytes:
                self._transport = None  # a mirror takes less
            if self.transport != "blocks":
                return None
            name = f"{self._manifest.digest} {boot_id()!r} {identity}"
            folder = folder_of(self._options.cache, blake2b(name.encode()).hexdigest(), 0, num_bytes)
            problem, needed = make_room(self._options, folder, num_bytes)
            try:
                files = None if problem else BlockFiles(folder)
            except UnusableMirror as error:
                files, problem = None, str(error)
            if files is not None:
                return BlockCache(files, self.fetch_verified)
            if self._options.transport == "blocks":
                raise ConfigError(
                    f"transport blocks: the lanes of this store take {num_bytes:,} bytes, and {problem}"
                    f" ({self.client.location.url}); use another cache or a cache_limit of {needed:,} bytes or more, fewer lanes or"
                    " smaller blocks, or the transport auto or spans"
                )
            self._transport = "spans"
        warnings.warn(
            f"cache: the lanes of {self.client.location.url} take {num_bytes:,} bytes, and {problem}; its rows are fetched one"
            f" by one. Use another cache or a cache_limit of {needed:,} bytes or more",
            MirrorWarning,
            stacklevel=2,
        )
        return None

    @property
    def mirror(self) -> Mirror | None:
        """The mirror, or None if tokens travel in another way. Raises: ConfigError: as in `transport`."""
        with self._lock:
            if self._mirror is None and self.transport == "mirror":
                try:
                    folder = MirrorFolder(self._folder)
                except UnusableMirror as error:
                    if self._options.transport == "mirror":
                        raise TokenStoreError(f"cache: {error}; use another cache, or the transport spans") from error
                    self._transport = "spans"
                    return None
                mirror = Mirror(folder, self._files, self.block_bytes, self.fetch_verified)
                if self._options.transport == "mirror" and not folder.writable and not mirror.open_all():
                    raise ConfigError(
                        f"transport mirror: the cache is read-only and does not have the whole store ({folder.path});"
                        " use another cache, or the transport auto or spans"
                    )
                self._mirror = mirror
            return self._mirror

    @property
    def _folder(self) -> Path:
        total = int(self.num_bytes.sum())
        return folder_of(self._options.cache, self._manifest.digest, self.block_bytes, total)

    def map(self, number: int) -> np.ndarray | None:
        """uint8[num_bytes], read-only: a file of the mirror in a map of its own, with zeros where blocks are absent.

        None if there is no mirror, or it cannot hold this file.
        """
        if self.mirror is None:
            return None
        try:
            return self.mirror.file(number).map()
        except UnusableMirror as error:
            self.mirror.give_up(error)
            self.mirror.warn()
            return None

    def refuse_cut(self, number: int) -> NoReturn:
        """Raise the error for a file of the mirror that was cut while it was mapped, or whose disk fails."""
        where = self._mirror.file(number).path if self._mirror else self._options.cache
        raise TokenStoreError(
            f"cache: expected {self.num_bytes[number]} readable bytes, found fewer ({where}); check its disk, remove this file,"
            " and start again from the last state"
        )

    # ---- ranges

    def fetch(self, number: int, start: int, stop: int, is_wanted: Wanted = lambda: True) -> np.ndarray:
        """Bytes [start, stop) of a file from the bucket, uint8[stop - start], read-only. One request.

        is_wanted: as in `Client.get`.

        Raises:
            CorruptionError: the object is missing, too short or was replaced.
            RemoteError: it cannot be read.
        """
        name, num_bytes, _ = self._files[number]
        pinned = self._infos.get(name) or ObjectInfo(num_bytes, None)
        if pinned.num_bytes != num_bytes:
            raise CorruptionError(
                f"file size: expected {num_bytes} bytes, found {pinned.num_bytes} ({self.url(number)});"
                " copy or build the store again"
            )
        data, info = self.client.get(name, start, stop, pinned, is_wanted)
        if name not in self._infos:
            with self._lock:  # the first answer decides; a later answer of another object is an error
                first = self._infos.setdefault(name, info)
            if first != info:
                return self.fetch(number, start, stop, is_wanted)
        return data

    def fetch_verified(self, number: int, start: int, stop: int, is_wanted: Wanted = lambda: True) -> np.ndarray:
        """Like `fetch`, for whole blocks of FMT-15, which are compared with their checksums if the store has them.

        Raises:
            CorruptionError: a block has another checksum, each time it is fetched; or as in `fetch`.
        """
        with self._lock:  # the first call may download the file of checksums
            if number not in self._known_checksums:
                self._known_checksums[number] = self._checksums(number)
            checksums = self._known_checksums[number]
        place, expected, found = start, 0, 0
        for _ in range(_DAMAGED_ATTEMPTS):
            data = self.fetch(number, start, stop, is_wanted)
            if checksums is None:
                return data
            for place in range(start, stop, CHECKSUM_BLOCK):
                expected = int(checksums[place // CHECKSUM_BLOCK])
                found = xxhash.xxh3_64_intdigest(data[place - start : place - start + CHECKSUM_BLOCK].data)
                if found != expected:
                    break
            else:
                return data
        raise CorruptionError(
            f"bytes {place}..{min(place + CHECKSUM_BLOCK, stop)}: expected the checksum {expected:016x}, found {found:016x}"
            f" ({self.url(number)}); run `tokenstore verify {self.client.location.url}`, and copy or build the store again"
        )

    def read(self, number: int, start: int, stop: int) -> np.ndarray:
        """Bytes [start, stop) of a file, uint8[stop - start]: from the mirror if it has all of them, otherwise fetched.

        Raises:
            CorruptionError, RemoteError: as in `fetch`.
        """
        if start >= stop:
            return np.empty(0, np.uint8)
        if (found := self._from_mirror(number, start, stop)) is not None:
            return found
        data, group = np.empty(stop - start, np.uint8), Group()
        for first in range(start, stop, PART_BYTES):
            self.fetch_into(number, first, data[first - start : first - start + PART_BYTES], group)
        group.wait(2 * self.client.deadline * (1 + len(data) // PART_BYTES // 8))
        return data

    def _from_mirror(self, number: int, start: int, stop: int) -> np.ndarray | None:
        if self._mirror is None:
            return None
        try:
            file = self._mirror.file(number)
            if not file.marks[start // self.block_bytes : -(-stop // self.block_bytes)].all():
                return None
            return file.map()[start:stop]
        except UnusableMirror:
            return None

    def fetch_into(self, number: int, start: int, out: np.ndarray, group: Group, verified: bool = False) -> None:
        """Fetch bytes from `start` on into uint8[n] in a thread; `group` gets a job that ends when they are there.

        verified: they are whole blocks of FMT-15; compare them with their checksums.
        Nothing is fetched any more once nobody holds the group.
        """
        group.add()
        holder = weakref.ref(group)

        def job() -> None:
            if holder() is None:
                return
            error: BaseException | None = None
            try:
                fetch = self.fetch_verified if verified else self.fetch
                out[:] = fetch(number, start, start + len(out), lambda: holder() is not None)
            except BaseException as problem:  # raised where the bytes are waited for
                error = problem
            if (waiting := holder()) is not None:
                waiting.finish(error)

        workers(SPAN_THREADS).submit(job)
