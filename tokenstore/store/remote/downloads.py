"""Downloads files into a cache folder that several processes share, without locks.

A file is written under a name of its own, verified, synced and renamed, so what has its final name is complete. Before a large
download a process claims it with a file that it touches as data arrives. The others wait as long as the claim is touched; if it
is not for `_STALE` seconds, as after a `kill -9`, they download too. A wasted download is the worst that can happen.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import xxhash

from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.format.manifest import FileEntry
from tokenstore.store.files import file_size, modified, read_bytes
from tokenstore.store.remote.client import Client, ObjectInfo
from tokenstore.store.writing import (
    claim,
    make_folders,
    new_mapped_file,
    remove,
    rename,
    touch,
    unique_name,
    write_shared,
)

_CHUNK = 4 << 20  # bytes per request
_LARGE = 4 * _CHUNK  # smaller files are not claimed: every process downloads them
_IN_FLIGHT = 32
_STALE, _POLL = 20.0, 0.1  # seconds
_LOG_SECONDS = 10.0
_log = logging.getLogger("tokenstore")

Report = Callable[[str, int, int], None]
_report: ContextVar[Report | None] = ContextVar("report", default=None)


@contextlib.contextmanager
def reported(report: Report) -> Iterator[None]:
    """Call `report(name, bytes so far, total)` during downloads in this block. Otherwise long ones are logged."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def has_whole(path: Path, num_bytes: int) -> bool:
    """Whether a downloaded file is there, with the right size."""
    return file_size(path) == num_bytes


def keep(path: Path, data: bytes) -> None:
    """Write a small file into the cache, unless it is there with this content. TokenStoreError if the cache cannot be written."""
    if has_whole(path, len(data)) and read_bytes(path, len(data)) == data:
        return
    with _errors_of(path):
        make_folders(path.parent)
        write_shared(path, data)


def download(client: Client, name: str, path: Path, entry: FileEntry, info: ObjectInfo) -> None:
    """Download an object to `path`, and verify it, unless it is there or arrives by another process.

    Args:
        client: reads the object.
        name: of the object.
        path: of the file in the cache.
        entry: size and checksum of the object.
        info: of the object, as seen when the store was opened.

    Raises:
        CorruptionError: the object has another size or checksum.
        RemoteError: it cannot be read.
        TokenStoreError: the cache cannot be written.
    """
    if has_whole(path, entry.num_bytes):
        return
    if info.num_bytes != entry.num_bytes:
        raise CorruptionError(
            f"object size: expected {entry.num_bytes} bytes, found {info.num_bytes}"
            f" ({client.location.object_url(name)}); copy the store again"
        )
    with _errors_of(path):
        make_folders(path.parent)
        if entry.num_bytes < _LARGE:
            data = _small(client, name, entry, info)
            _check(client, name, entry, xxhash.xxh3_128_hexdigest(data))
            write_shared(path, data)
            return
        with _claimed(path, entry.num_bytes) as (is_mine, beat):
            if is_mine:
                _download_large(client, name, path, entry, info, beat)


def _small(client: Client, name: str, entry: FileEntry, info: ObjectInfo) -> bytes:
    return client.get(name, 0, entry.num_bytes, info).data.tobytes() if entry.num_bytes else b""


def _check(client: Client, name: str, entry: FileEntry, found: str) -> None:
    if found != entry.checksum:
        raise CorruptionError(
            f"object: expected the checksum {entry.checksum}, found {found} ({client.location.object_url(name)});"
            f" run `tokenstore verify {client.location.url}`, and copy the store again"
        )


def _download_large(
    client: Client, name: str, path: Path, entry: FileEntry, info: ObjectInfo, beat: Callable[[], None]
) -> None:
    """Download in chunks side by side, in the order of the file."""
    working = path.with_name(unique_name(path.name))
    show = _shower(client.location.object_url(name), entry.num_bytes)
    try:
        with new_mapped_file(working, entry.num_bytes) as data:
            checksum = xxhash.xxh3_128()

            def fetch(start: int) -> int:
                stop = min(start + _CHUNK, data.size)
                data[start:stop] = client.get(name, start, stop, info).data
                return stop

            with ThreadPoolExecutor(_IN_FLIGHT) as pool:
                try:
                    for stop in pool.map(fetch, range(0, data.size, _CHUNK)):
                        checksum.update(data[(stop - 1) // _CHUNK * _CHUNK : stop].data)
                        beat()
                        show(stop)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            _check(client, name, entry, checksum.hexdigest())
        rename(working, path.name)
    except BaseException:
        remove(working)
        raise


def _shower(url: str, total: int) -> Callable[[int], None]:
    """What shows the progress of a download."""
    report, last = _report.get(), time.monotonic()

    def show(done: int) -> None:
        nonlocal last
        if report is not None:
            report(url, done, total)
        elif time.monotonic() - last >= _LOG_SECONDS:
            last = time.monotonic()
            _log.warning("downloading %s: %d of %d MB", url, done >> 20, total >> 20)

    return show


@contextlib.contextmanager
def _claimed(path: Path, num_bytes: int) -> Iterator[tuple[bool, Callable[[], None]]]:
    """Yield whether to download the file, and what to call as data arrives; False if another process has done it."""
    mark = path.with_name(path.name + ".claim")
    seen, since = -1, time.monotonic()
    while not claim(mark):
        if has_whole(path, num_bytes):
            yield False, lambda: None
            return
        now = modified(mark)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > _STALE:
            remove(mark)  # whoever made it has died, or makes no progress
            seen = -1
        time.sleep(_POLL)
    try:
        yield not has_whole(path, num_bytes), lambda: touch(mark)
    finally:
        remove(mark)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TokenStoreError(
            f"cache: cannot write {path}: {error.strerror or error}; free space there, or choose another folder with"
            " TOKENSTORE_CACHE or cache="
        ) from error
