"""An object store for tests: an HTTP server with the verbs of S3, latency, and faults.

    with RangeServer() as server:
        server.put("bucket/web/manifest.json", data)
        server.add_folder("bucket/web", path)
        server.latency = 0.05
        server.fail("slow_down", times=3, key="tokens-")

GET (Range, If-Match), HEAD, LIST, PUT (If-None-Match, If-Match), DELETE and multipart uploads work as in S3, with paths
`/BUCKET/KEY`. Plain HTTP, Google and Azure clients can read objects too. `python -m tests.support.servers.range_server FOLDER`
serves a folder as bucket `data` from a process of its own, for benches.
"""

import asyncio
import itertools
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.servers.faults import Fault, Faults, Kind
from tests.support.servers.objects import Object, Objects, Refused
from tests.support.servers.s3_client import ACCESS_KEY, client_environment

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_HEADER_BYTES = 1 << 16
_AZURE_ACCOUNT = "devstoreaccount1"


class Request(NamedTuple):
    """A request: its path is divided into bucket and key, both unquoted."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Record(NamedTuple):
    """What the server logged about a request: the range is the text of the header, or empty."""

    method: str
    key: str
    range: str
    status: int
    num_bytes: int


class Answer(NamedTuple):
    """An answer before it is sent."""

    status: int
    headers: dict[str, str]
    body: Any = b""  # bytes or a view of a map


class RangeServer:
    """The server, in a thread of its own. Its attributes may be changed while it runs.

    Attributes:
        url: http://127.0.0.1:PORT.
        objects: the buckets. `bucket` always exists.
        latency: seconds before each answer.
        bandwidth: bytes per second of all answers together; None for no limit.
        rate: answers per second, of all connections together; None for no limit. As of a disk, or a bucket that slows down.
        signed: only requests that are signed with ACCESS_KEY are accepted.
        log: a Record for each request.
    """

    def __init__(self, latency: float = 0.0, bandwidth: float | None = None, port: int = 0):
        self.objects = Objects({"bucket": {}})
        self.faults = Faults()
        self.latency, self.bandwidth, self.signed = latency, bandwidth, False
        self.rate: float | None = None
        self.log: list[Record] = []
        self._free_at = 0.0
        self._stop, self._started = asyncio.Event(), threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=256)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="range server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # ---- what tests do

    def put(self, path: str, data: bytes) -> None:
        """Write the object BUCKET/KEY. The bucket is made if it is missing."""
        bucket, _, key = path.partition("/")
        self.objects.buckets.setdefault(bucket, {})
        self.objects.put(bucket, key, data)

    def get(self, path: str) -> bytes:
        """The bytes of the object BUCKET/KEY."""
        bucket, _, key = path.partition("/")
        return bytes(self.objects.get(bucket, key).data)

    def add_folder(self, path: str, folder: Path) -> None:
        """Serve the files of a folder as objects BUCKET/PREFIX/NAME."""
        bucket, _, prefix = path.partition("/")
        self.objects.add_folder(bucket, prefix, folder)

    def fail(self, kind: Kind, **rule: Any) -> None:
        """Let requests fail; `rule` has the further attributes of `Fault`."""
        self.faults.add(Fault(kind, **rule))

    def gets(self, key: str = "") -> list[Record]:
        """The logged GET requests for keys that contain `key`."""
        return [record for record in list(self.log) if record.method == "GET" and key in record.key]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a client of S3 uses this server."""
        return client_environment(self.url)

    # ---- connections

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=_HEADER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stop.wait()
        server.close()
        for _ in range(5):  # connections that were just accepted get their tasks in the next rounds of the loop
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (request := await _read(reader, writer)) is not None:
                if not await self._answer(request, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort() if self._stop.is_set() else writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer a request. False if the connection is closed or stays silent."""
        fault = self.faults.of(request.method, request.key)
        answer = self._decide(request, fault)
        kind = fault.kind if fault is not None else ""
        size = len(answer.body) if request.method != "HEAD" else 0
        self.log.append(Record(request.method, request.key, request.headers.get("range", ""), answer.status, size))
        await asyncio.sleep(self._delay(size))
        if kind == "hang":
            await asyncio.sleep(3600)
        if kind == "reset_early":
            return _reset(writer)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode())
        if request.method != "HEAD":
            is_cut = kind in ("reset", "truncated", "hang_in_body")
            writer.write(answer.body[: len(answer.body) // 2] if is_cut else answer.body)
        await writer.drain()
        if kind == "hang_in_body":
            await asyncio.sleep(3600)
        if kind == "reset":
            return _reset(writer)
        return kind != "truncated"

    def _delay(self, size: int) -> float:
        """Seconds until the answer: the latency, and the time until the line is free."""
        if self.bandwidth is None and self.rate is None:
            return self.latency
        seconds = (size / self.bandwidth if self.bandwidth else 0.0) + (1 / self.rate if self.rate else 0.0)
        self._free_at = max(self._free_at, monotonic()) + seconds
        return max(self.latency, self._free_at - monotonic())

    # ---- answers

    def _decide(self, request: Request, fault: Fault | None) -> Answer:
        try:
            if fault is not None:
                _refuse_by(fault)
                if fault.kind == "redirect":
                    return Answer(302, {"Location": fault.location})
                if fault.kind == "replaced":
                    old = self.objects.get(request.bucket, request.key)
                    self.objects.buckets[request.bucket][request.key] = Object.of(old.data, f'"{monotonic()}"')
            self._check_signature(request)
            answer = self._of_verb(request)
        except Refused as refused:
            return Answer(refused.status, {"Content-Type": "application/xml"}, refused.body)
        return answer if fault is None else _spoiled(answer, fault.kind)

    def _check_signature(self, request: Request) -> None:
        if not self.signed:
            return
        signature = request.headers.get("authorization", "")
        if not signature:
            raise Refused(403, "AccessDenied")
        if f"Credential={ACCESS_KEY}/" not in signature:
            raise Refused(403, "InvalidAccessKeyId")

    def _of_verb(self, request: Request) -> Answer:
        objects, bucket, key, query = self.objects, request.bucket, request.key, request.query
        none_match = request.headers.get("if-none-match", "")
        match request.method:
            case "GET" | "HEAD" if key:
                return _part(objects.get(bucket, key), request.headers)
            case "GET" if query.get("comp") == "list":
                return Answer(200, {}, objects.list_for_azure(bucket, query.get("prefix", "")))
            case "GET":
                after = unquote(query.get("continuation-token") or query.get("start-after", ""))
                most = int(query.get("max-keys", 1000))
                return Answer(
                    200, {}, objects.list(bucket, query.get("prefix", ""), query.get("delimiter", ""), after, most)
                )
            case "PUT" if "uploadId" in query:
                return Answer(
                    200, {"ETag": objects.put_part(query["uploadId"], int(query["partNumber"]), request.body)}
                )
            case "PUT":
                data = request.body
                if source := request.headers.get("x-amz-copy-source"):
                    data = bytes(objects.get(*unquote(source).lstrip("/").split("/", 1)).data)
                etag = objects.put(bucket, key, data, none_match, request.headers.get("if-match", "")).etag
                copied = f"<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>".encode() if source else b""
                return Answer(200, {"ETag": etag}, copied)
            case "POST" if "uploads" in query:
                return Answer(200, {}, objects.begin_upload(bucket, key))
            case "POST" if "delete" in query:
                return Answer(200, {}, objects.delete_listed(bucket, request.body))
            case "POST":
                upload = query.get("uploadId", "")
                return Answer(200, {}, objects.complete_upload(bucket, key, upload, request.body, none_match))
            case "DELETE" if "uploadId" in query:
                objects.abort_upload(query["uploadId"])
            case "DELETE":
                objects.delete(bucket, key)
            case _:
                raise Refused(405, "MethodNotAllowed")
        return Answer(204, {})


def _part(found: Object, headers: dict[str, str]) -> Answer:
    """GET or HEAD of an object, or of a range of it."""
    if headers.get("if-match", found.etag) != found.etag:
        raise Refused(412, "PreconditionFailed")
    data, size = memoryview(found.data), len(found.data)
    wanted = _RANGE.fullmatch(headers.get("range", ""))
    if wanted is None or wanted.groups() == ("", ""):
        return Answer(200, found.headers, data)
    first, last = wanted.groups()
    start, stop = (int(first), int(last or size - 1) + 1) if first else (max(size - int(last), 0), size)
    if start >= size or stop <= start:
        raise Refused(416, "InvalidRange")
    stop = min(stop, size)
    return Answer(206, {**found.headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}, data[start:stop])


_REFUSALS = {
    "slow_down": (503, "SlowDown"),
    "error": (500, "InternalError"),
    "expired": (400, "ExpiredToken"),
    "forbidden": (403, "AccessDenied"),
    "missing": (404, "NoSuchKey"),
}


def _refuse_by(fault: Fault) -> None:
    if fault.kind in _REFUSALS:
        raise Refused(*_REFUSALS[fault.kind])


def _spoiled(answer: Answer, kind: Kind) -> Answer:
    """An answer whose body is wrong."""
    body = bytes(answer.body)
    if kind == "short":
        return answer._replace(body=body[: len(body) // 2])
    if kind == "long":
        return answer._replace(body=body + bytes(32 << 20))
    if kind == "shifted":
        return answer._replace(body=body[1:] + body[:1])
    if kind == "flipped" and body:
        at = len(body) // 2
        return answer._replace(body=body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    return answer


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close a connection so that the client gets a reset instead of an end."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    if headers.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    path = unquote(parts.path).lstrip("/").removeprefix(f"{_AZURE_ACCOUNT}/")
    bucket, _, key = path.partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Request(method, bucket, key, query, headers, body)


@contextmanager
def served(folders: dict[str, Path], **options: Any) -> Iterator[RangeServer]:
    """A server that serves folders as {BUCKET/PREFIX: folder}."""
    with RangeServer(**options) as server:
        for path, folder in folders.items():
            server.add_folder(path, folder)
        yield server


def main(arguments: list[str]) -> None:
    """Serve FOLDER as bucket `data` until standard input ends: FOLDER [LATENCY [BANDWIDTH [RATE]]]. Prints the URL."""
    folder, latency, bandwidth, rate = itertools.islice(itertools.chain(arguments, itertools.repeat("0")), 4)
    with served({"data": Path(folder)}, latency=float(latency), bandwidth=float(bandwidth) or None) as server:
        server.rate = float(rate) or None
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            for line in sys.stdin:
                if line.strip() == "count":  # requests and bytes since the last count
                    log, server.log = server.log, []
                    sys.stdout.write(f"{len(log)} {sum(record.num_bytes for record in log)}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
