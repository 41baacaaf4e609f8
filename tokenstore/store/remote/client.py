"""Reads and writes objects of a folder on object storage: exact ranges, checked, with retries until a deadline.

obstore's blocking calls release the GIL, so requests are made side by side by the threads of `workers`. Each process has its own
obstore object: a client can be pickled, copied and used after a fork.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, monotonic_ns
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from tokenstore.errors import CorruptionError, RemoteError, TokenStoreError, counted
from tokenstore.store.files import renew_after_fork
from tokenstore.store.remote.failures import DENIED, GONE, PASSING, REPLACED, SHORT, Failure, failure_of
from tokenstore.store.remote.location import Location
from tokenstore.store.remote.obstore_loading import leak, load_obstore
from tokenstore.store.workers import wait_for_end

DEADLINE = 120.0  # seconds
# Shares of the deadline: after which a stopped answer is given up, and that one request may take. Another attempt begins only
# if it can end before the deadline
_STALLED, _WHOLE = 1 / 8, 1 / 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 4.0  # seconds between attempts: doubled each time, with jitter
_T = TypeVar("_T")
Wanted = Callable[[], bool]


class MissingObject(CorruptionError):
    """There is no such object."""


class ObjectInfo(NamedTuple):
    """What a server says about an object.

    Attributes:
        num_bytes: its size.
        etag: its ETag, which changes when the object is replaced; None if the server has none.
    """

    num_bytes: int
    etag: str | None


class Fetched(NamedTuple):
    """A range of an object: its bytes, uint8[n], read-only, and the object they came from."""

    data: np.ndarray
    info: ObjectInfo


@dataclass
class Counters:
    """What a client has done since it was made.

    Attributes:
        requests: attempts, including those that failed.
        retries: attempts after the first one of a request.
        bytes_fetched: bytes of objects that were received whole.
    """

    requests: int = 0
    retries: int = 0
    bytes_fetched: int = 0


class Client:
    """A folder on object storage, for reading. Can be shared among threads.

    Attributes:
        location: the folder.
        deadline: seconds after which a request that keeps failing is an error.
        counters: what was done in this process.
    """

    _store: Any

    def __init__(self, location: Location, deadline: float = DEADLINE):
        self.location, self.deadline = location, deadline
        self.counters = Counters()
        self._lock, self._store = threading.Lock(), None
        renew_after_fork(self, Client._renew)

    def _renew(self) -> None:
        leak(self._store)
        self._lock, self._store = threading.Lock(), None

    def __reduce__(self) -> tuple[type["Client"], tuple[Location, float]]:
        return Client, (self.location, self.deadline)

    def __repr__(self) -> str:
        return f"Client({self.location.url!r})"

    def get(
        self, name: str, start: int, stop: int, pinned: ObjectInfo | None = None, is_wanted: Wanted = lambda: True
    ) -> Fetched:
        """Bytes [start, stop) of an object, start < stop.

        Args:
            name: the object's name in this folder.
            start, stop: offsets. The range must be inside the object.
            pinned: the object that is expected. Default: any.
            is_wanted: asked before another attempt; if it returns False, the failure of the last one is raised.

        Raises:
            CorruptionError: there is no such object, it is another one than `pinned`, or it is shorter than `stop`.
            RemoteError: it cannot be read: access is denied, or the server did not answer before the deadline.
        """
        place = f"bytes {start}..{stop} of {self.location.object_url(name)}"
        options: dict[str, Any] = {"range": (start, stop)}
        if pinned is not None and pinned.etag is not None and not pinned.etag.startswith("W/"):
            options["if_match"] = pinned.etag  # a weak ETag never matches; it is compared below

        def attempt() -> Fetched:
            result = self._connected().get(name, options=options)
            info = ObjectInfo(result.meta["size"], result.meta["e_tag"])
            self._check_length(place, info, stop, pinned)
            if tuple(result.range) != (start, stop):
                raise _CutAnswer
            return Fetched(_body(result, stop - start), info)

        try:
            fetched = self._attempts(place, attempt, pinned, is_wanted=is_wanted)
        except _RangeRefused as refused:
            self._check_length(place, self.head(name), stop, pinned)
            raise RemoteError(str(refused)) from None
        with self._lock:
            self.counters.bytes_fetched += stop - start
        return fetched

    def read(self, name: str, max_bytes: int) -> bytes:
        """All bytes of an object.

        Raises:
            MissingObject: there is no such object.
            CorruptionError: it has more than `max_bytes`.
            RemoteError: as in `get`.
        """
        place = self.location.object_url(name)

        def attempt() -> bytes:
            result = self._connected().get(name)
            size = result.meta["size"]  # known before any of it is read
            if size > max_bytes:
                raise CorruptionError(
                    f"object: expected at most {max_bytes} bytes, found {size} ({place}); is this a token store?"
                )
            data = bytes(result.bytes())
            if len(data) != size:
                raise _CutAnswer
            return data

        data = self._attempts(place, attempt)
        with self._lock:
            self.counters.bytes_fetched += len(data)
        return data

    def head(self, name: str) -> ObjectInfo:
        """Size and ETag of an object. Raises the errors of `get`."""
        place = self.location.object_url(name)

        def attempt() -> ObjectInfo:
            meta = self._connected().head(name)
            return ObjectInfo(meta["size"], meta["e_tag"])

        return self._attempts(place, attempt)

    def walk(self) -> dict[str, ObjectInfo]:
        """All objects in this folder and below it, by their names relative to it. One request per thousand.

        Raises the errors of `list`.
        """
        if self.location.scheme in ("http", "https"):
            raise RemoteError(f"store: cannot list a folder over {self.location.scheme}:// ({self.location.url})")

        def attempt() -> dict[str, ObjectInfo]:
            pages = load_obstore().list(self._connected())
            return {each["path"]: ObjectInfo(each["size"], each["e_tag"]) for page in pages for each in page}

        return self._attempts(self.location.url, attempt)

    def has(self, name: str) -> bool:
        """Whether there is such an object. Raises RemoteError as in `get`."""
        try:
            self.head(name)
        except MissingObject:
            return False
        return True

    def list(self) -> dict[str, ObjectInfo]:
        """All objects directly in this folder, by name. One request per thousand.

        Raises:
            RemoteError: as in `get`; or the server cannot list, as over http(s)://.
        """
        if self.location.scheme in ("http", "https"):
            raise RemoteError(f"store: cannot list a folder over {self.location.scheme}:// ({self.location.url})")

        def attempt() -> dict[str, ObjectInfo]:
            found = self._connected().list_with_delimiter()["objects"]
            return {each["path"].rpartition("/")[2]: ObjectInfo(each["size"], each["e_tag"]) for each in found}

        return self._attempts(self.location.url, attempt)

    # ---- writing

    def write(self, name: str, request: Callable[[Any, Any], _T]) -> _T:
        """The result of `request(store, obstore.put)`, which writes an object of this folder; again while that may help."""
        return self._attempts(
            self.location.object_url(name), lambda: request(self._connected(), load_obstore().put), verb="write"
        )

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, replacing one of that name. Raises the errors of `get`."""
        self.write(name, lambda store, put: put(store, name, data, use_multipart=False))

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object unless there is one of that name; whether it was written. Raises the errors of `get`.

        An attempt whose answer is lost may have written it. So False also means that this call wrote it: compare what is there.
        """
        exists = load_obstore().exceptions.AlreadyExistsError

        def request(store: Any, put: Any) -> bool:
            try:
                put(store, name, data, mode="create")
            except exists:
                return False
            return True

        return self.write(name, request)

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none. Raises RemoteError as in `get`."""

        def request(store: Any, put: Any) -> None:
            with suppress(FileNotFoundError):
                load_obstore().delete(store, name)

        self.write(name, request)

    # ---- attempts

    def _connected(self) -> Any:
        """The obstore object of this process."""
        with self._lock:
            if self._store is None:
                self._store = self.location.connect(self.deadline * _STALLED, self.deadline * _WHOLE)
            return self._store

    def _attempts(
        self,
        place: str,
        attempt: Callable[[], _T],
        pinned: ObjectInfo | None = None,
        verb: str = "read",
        is_wanted: Wanted = lambda: True,
    ) -> _T:
        """The result of `attempt`, called again while that may help and the deadline allows."""
        began, pause, count, denied = monotonic(), _FIRST_PAUSE, 0, 0
        while True:
            with self._lock:
                self.counters.requests += 1
                self.counters.retries += count > 0
            count += 1
            try:
                return attempt()
            except TokenStoreError:
                raise
            except _CutAnswer:
                failure = Failure(PASSING, "another range than requested", "check the server and the network")
            except (
                Exception
            ) as error:  # obstore raises its own errors, built-in ones, and errors of credential providers
                failure = failure_of(error)
            denied += failure.kind == DENIED
            self._refuse_if_final(f"{verb} {place}", failure, denied, pinned)
            jitter = monotonic_ns() // 1000 % 1000 / 1000
            left = began + self.deadline * (1 - _WHOLE) - monotonic()
            wait = min(pause * (0.5 + jitter / 2), left)
            if left <= 0 or wait_for_end(wait) or not is_wanted():
                tried = f" in {monotonic() - began:.3g} s and {counted(count, 'attempt')}"
                self._refuse(f"{verb} {place}", failure, tried)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _refuse_if_final(self, what: str, failure: Failure, denied: int, pinned: ObjectInfo | None) -> None:
        """Raise the error of a failure that another attempt would not change. `denied`: how often access was denied."""
        place = what.partition(" ")[2]
        if failure.kind == GONE:
            raise MissingObject(f"object storage: expected an object, found {failure.text} ({place}); {failure.advice}")
        if failure.kind == REPLACED:
            self._refuse_replaced(place, None if pinned is None else pinned.etag, failure.text)
        if failure.kind == SHORT:  # the answer may not give the size
            raise _RangeRefused(_cannot(what, failure))
        if failure.kind == DENIED and denied == 1:
            with self._lock:  # once more with credentials that are read again: they may have been renewed
                self._store = None
        elif failure.kind != PASSING:
            self._refuse(what, failure)

    def _refuse(self, what: str, failure: Failure, tried: str = "") -> NoReturn:
        raise RemoteError(_cannot(what, failure, tried))

    def _check_length(self, place: str, info: ObjectInfo, stop: int, pinned: ObjectInfo | None) -> None:
        """Raise CorruptionError unless an object is `pinned` and has `stop` bytes."""
        if pinned is not None and info.num_bytes != pinned.num_bytes:
            self._refuse_replaced(place, f"{pinned.num_bytes} bytes", f"{info.num_bytes} bytes")
        if pinned is not None and None not in (info.etag, pinned.etag) and info.etag != pinned.etag:
            self._refuse_replaced(place, pinned.etag, str(info.etag))
        if info.num_bytes < stop:
            raise CorruptionError(
                f"object: expected more bytes, found {info.num_bytes} ({place}); copy or build the store again"
            )

    def _refuse_replaced(self, place: str, expected: str | None, found: str) -> NoReturn:
        raise CorruptionError(
            f"object: expected {expected}, as when the store was opened, found {found} ({place}); it was replaced while in"
            " use: restore the old object, or open the new store and restart the run"
        )


def _body(result: Any, num_bytes: int) -> np.ndarray:
    """The body of an answer, uint8[num_bytes]. No more of it is read, whatever the server sends. _CutAnswer if its length differs."""
    chunks = iter(result.stream(min_chunk_size=num_bytes))
    data = next(chunks, b"")
    if len(data) != num_bytes or next(chunks, None) is not None:
        raise _CutAnswer
    return np.frombuffer(data, np.uint8)


def _cannot(what: str, failure: Failure, tried: str = "") -> str:
    return f"object storage: cannot {what}: {failure.text}{tried}; {failure.advice}"


class _RangeRefused(Exception):
    """The server refused the range, as it does when the object ends before it. Its text is that of the RemoteError."""


class _CutAnswer(Exception):
    """The answer has another range or length than requested."""
