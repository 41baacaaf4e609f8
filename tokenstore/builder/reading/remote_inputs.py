"""Inputs at URLs: found by name or pattern, and read by ranges as a file is.

A `RemotePath` is the part of a path that readers of inputs use: name, suffix, parts, and `stat`. Its ETag takes the place of the
modification time, so an object that is replaced is noticed as a file is that changes.
"""

import functools
import hashlib
import io
import re
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np

from tokenstore.errors import BuildError, CorruptionError, FormatError, TokenStoreError
from tokenstore.store.remote.client import Client, MissingObject, ObjectInfo
from tokenstore.store.remote.location import SCHEMES, Location
from tokenstore.store.remote.options import RemoteOptions

_BLOCK = 4 << 20  # bytes per request: large enough to hide latency, small beside a unit
_BLOCKS = 8  # kept per process
_HAS_SCHEME = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?[]")
_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]|.", re.DOTALL)


class RemotePath(PurePosixPath):
    """The place of an object: as a path its parts are the scheme with a colon, the bucket, and the names of its key."""

    def __str__(self) -> str:
        scheme, *names = self.parts
        return f"{scheme}//{'/'.join(names)}"

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a file on this machine")

    def stat(self) -> Any:
        """Size and identity of the object, as far as readers of inputs use the result of `Path.stat`. One request."""
        return stat_of(_client(str(self.parent)).head(self.name))

    def absolute(self) -> "RemotePath":
        """The same place."""
        return self


InputPath = Path | RemotePath


def is_remote(argument: str) -> bool:
    """Whether an input is named by a URL of an object store or web server."""
    return _HAS_SCHEME.match(argument) is not None


def stat_of(info: ObjectInfo) -> Any:
    """An object's size and identity in the form of the result of `Path.stat`."""
    digest = hashlib.sha256((info.etag or "").encode()).digest()
    stamp = int.from_bytes(digest[:7], "big")
    return SimpleNamespace(st_size=info.num_bytes, st_mtime_ns=stamp, st_ctime_ns=stamp, st_ino=0)


def objects_of(argument: str) -> dict[RemotePath, ObjectInfo]:
    """The objects that a URL names: one object; all below a folder; or those that match a pattern with *, ?, [...] or **.

    Sorted by their names. {} if there are none.

    Raises:
        FormatError: it is no URL of a place.
        RemoteError: the server cannot be read, or cannot list, as over http(s)://.
    """
    magic = _MAGIC.search(argument) if not argument.lower().startswith("http") else None
    if magic is None:
        location = Location.of(argument)
        parent, _, name = location.url.rpartition("/")
        if location.path and not argument.endswith("/"):
            try:
                return {RemotePath(location.url): _client(parent).head(name)}
            except MissingObject:
                pass
        return _below(location, re.compile(r"(?!.*(^|/)\.).*", re.DOTALL))  # without hidden ones
    folder, _, _ = argument[: magic.start()].rpartition("/")
    pattern = argument[len(folder) + 1 :]
    return _below(Location.of(folder), re.compile("".join(map(_translated, _GLOB.findall(pattern))), re.DOTALL))


def _below(location: Location, pattern: re.Pattern[str]) -> dict[RemotePath, ObjectInfo]:
    if location.scheme in ("http", "https"):
        return {}
    found = Client(location, RemoteOptions().resolved().deadline).walk()
    return {RemotePath(f"{location.url}/{name}"): found[name] for name in sorted(found) if pattern.fullmatch(name)}


def _translated(token: str) -> str:
    """A token of a pattern as a regular expression; * and ? do not match "/"."""
    if token == "**/":
        return "(?:.*/)?"
    if token in ("**", "*", "?"):
        return {"**": ".*", "*": "[^/]*", "?": "[^/]"}[token]
    if len(token) > 1:
        return (
            "[" + ("^" if token[1] == "!" else "") + re.escape(token[1:-1].removeprefix("!")).replace(r"\-", "-") + "]"
        )
    return re.escape(token)


@functools.lru_cache(64)
def _client(folder: str) -> Client:
    return Client(Location.of(folder), RemoteOptions().resolved().deadline)


def open_input(path: InputPath) -> io.RawIOBase:
    """Open an input for reading, unbuffered.

    Raises:
        OSError: it cannot be read.
    """
    return RemoteFile(path) if isinstance(path, RemotePath) else io.FileIO(path)


class RemoteFile(io.RawIOBase):
    """An object as a file to read. Reads blocks, all of the object that was there when it was opened.

    Errors of the server are OSErrors, as of a disk.
    """

    def __init__(self, path: RemotePath):
        self._folder, self._name, self.name = str(path.parent), path.name, str(path)
        self._info: ObjectInfo = _as_os_error(lambda: _client(self._folder).head(self._name))
        self._place = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next byte to read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._info.num_bytes}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, at most to the end of a block; 0 at the end."""
        view = memoryview(buffer).cast("B")
        block, offset = divmod(self._place, _BLOCK)
        if self._place >= self._info.num_bytes or not len(view):
            return 0
        data = _as_os_error(lambda: _block(self._folder, self._name, self._info, block))
        count = min(len(view), len(data) - offset)
        view[:count] = data[offset : offset + count].data
        self._place += count
        return count


@functools.lru_cache(_BLOCKS)
def _block(folder: str, name: str, info: ObjectInfo, number: int) -> np.ndarray:
    """A block of an object. The last ones are kept: an input is read a second time for its checksum."""
    stop = min((number + 1) * _BLOCK, info.num_bytes)
    return _client(folder).get(name, number * _BLOCK, stop, info).data


def _as_os_error(request: Any) -> Any:
    try:
        return request()
    except CorruptionError as error:  # it was replaced or removed
        raise BuildError(f"input: {error}") from None
    except FormatError:
        raise
    except TokenStoreError as error:
        raise OSError(0, str(error)) from error
