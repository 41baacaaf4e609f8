"""Reading objects by URL: locations, exact ranges, retries, and errors that name object, range and remedy."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.patience import patient
from tests.support.servers.range_server import RangeServer
from tokenstore.errors import CorruptionError, FormatError, RemoteError, TokenStoreError
from tokenstore.store import workers
from tokenstore.store.remote.client import Client, ObjectInfo
from tokenstore.store.remote.failures import failure_of
from tokenstore.store.remote.location import Location, is_url
from tokenstore.store.remote.options import RemoteOptions

DATA = bytes(range(256)) * 8


@pytest.fixture
def server(range_server: RangeServer) -> RangeServer:
    range_server.put("bucket/s/x.bin", DATA)
    return range_server


def client_of(server: RangeServer, deadline: float = 4) -> Client:
    return Client(Location.of("s3://bucket/s/"), deadline)


def test_a_url_names_a_location() -> None:
    assert is_url("s3://b/x")
    assert not is_url("stores/x")
    assert not is_url(Path("s3://b/x"))
    location = Location.of("S3://bucket/stores/web/")
    assert (location.scheme, location.host, location.path, location.name) == ("s3", "bucket", "stores/web", "web")
    assert location.url == "s3://bucket/stores/web"
    assert location.object_url("manifest.json") == "s3://bucket/stores/web/manifest.json"
    assert Location.of("gs://bucket").name == "bucket"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "s3://, gs://, az://"),
        ("https://me:SECRET@host/x", "without user, password"),
        ("https://host/x?sig=SECRET", "without user, password"),
        ("https://host?sig=SECRET", "without user, password"),
        ("https://host/x#SECRET", "without user, password"),
        ("s3://b/../SECRET", "s3://bucket/path"),
        ("s3://b//SECRET", "s3://bucket/path"),
        ("s3:///SECRET", "s3://bucket/path"),
        ("s3://b/\n", "s3://bucket/path"),
    ],
)
def test_a_url_with_anything_but_a_place_is_refused_without_showing_it(url: str, says: str) -> None:
    with pytest.raises(FormatError, match=says) as caught:
        Location.of(url)
    assert "SECRET" not in str(caught.value)


def test_a_range_is_exact(server: RangeServer) -> None:
    client = client_of(server)
    data, info = client.get("x.bin", 3, 700)
    assert data.tobytes() == DATA[3:700]
    assert info.num_bytes == len(DATA)
    assert client.head("x.bin") == info
    assert client.counters.bytes_fetched == 697
    assert client.get("x.bin", 0, 1, info).data.tolist() == [0]


@pytest.mark.parametrize(
    "kind", ["slow_down", "error", "reset", "reset_early", "truncated", "short", "long", "hang", "hang_in_body"]
)
def test_a_passing_fault_is_retried(server: RangeServer, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = kind.startswith("hang")
    patient(monkeypatch, answers=not hangs)
    server.fail(kind, times=2)
    client = client_of(server)
    assert client.get("x.bin", 5, 25).data.tobytes() == DATA[5:25]
    assert client.counters.retries == 2 or (hangs and client.counters.retries > 2)  # a late answer is retried too


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("slow_down", r"503 Service Unavailable SlowDown in .* attempts; check the network"),
        ("truncated", "a broken connection"),
        ("hang", "no complete answer"),
        pytest.param("reset_early", "no connection", marks=pytest.mark.deep),
        pytest.param("short", "another range than requested", marks=pytest.mark.deep),
        pytest.param("hang_in_body", "no complete answer", marks=pytest.mark.deep),
    ],
)
def test_a_lasting_fault_is_an_error_within_the_deadline(
    server: RangeServer, kind: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, answers=not kind.startswith("hang"))
    server.fail(kind, times=None)
    began = time.monotonic()
    with pytest.raises(RemoteError, match=f"cannot read bytes 5..25 of s3://bucket/s/x.bin: ({says})"):
        client_of(server, 1).get("x.bin", 5, 25)
    assert time.monotonic() - began < 10  # far above the deadline of 1: other tests run


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("forbidden", "403 Forbidden AccessDenied; check that the credentials"),
        ("expired", "400 Bad Request ExpiredToken; check that the credentials"),
    ],
)
def test_refused_credentials_are_an_error_at_once(server: RangeServer, kind: Any, says: str) -> None:
    server.fail(kind, times=None)
    client = client_of(server, 60)
    with pytest.raises(RemoteError, match=says):
        client.get("x.bin", 5, 25)
    assert client.counters.requests == 2  # credentials are read again once


def test_renewed_credentials_are_used(server: RangeServer) -> None:
    """Also if they are refused in an attempt after the first."""
    server.fail("slow_down")
    server.fail("expired")
    assert client_of(server).get("x.bin", 0, 2).data.tolist() == [0, 1]


def test_a_missing_object_is_an_error_that_names_it(server: RangeServer) -> None:
    with pytest.raises(CorruptionError, match=r"expected an object, found 404 .*s/y.bin\)"):
        client_of(server).get("y.bin", 0, 1)


def test_a_range_past_the_end_is_an_error_not_fewer_bytes(server: RangeServer) -> None:
    with pytest.raises(CorruptionError, match=f"expected more bytes, found {len(DATA)}"):
        client_of(server).get("x.bin", len(DATA) - 1, len(DATA) + 1)


def test_a_range_that_begins_past_the_end_is_an_error_that_gives_the_size(server: RangeServer) -> None:
    """The server answers 416, which has no size."""
    client = client_of(server)
    with pytest.raises(CorruptionError, match=f"expected more bytes, found {len(DATA)} .bytes {len(DATA)}..9000 of s3"):
        client.get("x.bin", len(DATA), 9000)
    with pytest.raises(CorruptionError, match=f"expected 9000 bytes, as when .*, found {len(DATA)} bytes"):
        client.get("x.bin", len(DATA), 9000, ObjectInfo(9000, None))


@pytest.mark.parametrize("data", [DATA[::-1], DATA + b"."])
def test_a_replaced_object_is_detected(server: RangeServer, data: bytes) -> None:
    client = client_of(server)
    info = client.head("x.bin")
    server.put("bucket/s/x.bin", data)
    with pytest.raises(CorruptionError, match=r"it was replaced while in use"):
        client.get("x.bin", 0, 4, info)
    with pytest.raises(CorruptionError, match=r"it was replaced while in use"):
        client.get("x.bin", 0, 4, ObjectInfo(info.num_bytes, f"W/{info.etag}"))  # not sent, but compared


def test_a_folder_is_listed_and_read_over_plain_http(server: RangeServer) -> None:
    server.put("bucket/s/deep/y.bin", b"")
    client = client_of(server)
    assert client.list() == {"x.bin": client.head("x.bin")}
    plain = Client(Location.of(f"{server.url}/bucket/s"))
    assert plain.head("x.bin") == client.head("x.bin")
    assert plain.get("x.bin", 1, 3, client.head("x.bin")).data.tolist() == [1, 2]
    with pytest.raises(RemoteError, match="cannot list a folder over http://"):
        plain.list()


def test_a_failure_shows_the_servers_code_and_nothing_else_of_its_answer() -> None:
    answer = (
        "https://host/x?sig=SECRET - Server returned non-2xx status code: 403 Forbidden: <Code>Denied</Code><Key>SECRET"
    )
    failure = failure_of(PermissionError(answer))
    assert (failure.kind, failure.text) == ("denied", "403 Forbidden Denied")
    for text in (
        "SECRET",
        "kind: Timeout SECRET",
        "error sending request SECRET",
        "redirect region SECRET",
        "credential SECRET",
    ):
        assert "SECRET" not in failure_of(RuntimeError(text)).text


def test_a_client_is_pickled_as_its_url(server: RangeServer) -> None:
    client = client_of(server, 5)
    client.get("x.bin", 0, 1)
    copied = pickle.loads(pickle.dumps(client))
    assert (copied.location, copied.deadline) == (client.location, 5)
    assert repr(copied) == "Client('s3://bucket/s')"
    assert copied.get("x.bin", 1, 2).data.tolist() == [1]


def test_a_client_works_in_a_forked_child_and_in_its_child(server: RangeServer) -> None:
    client = client_of(server, 20)
    client.get("x.bin", 0, 1)

    def child(depth: int) -> int:
        code = os.fork()
        if code:
            return os.waitstatus_to_exitcode(os.waitpid(code, 0)[1])
        try:
            ok = client.get("x.bin", 7, 9).data.tolist() == [7, 8]
            ok = ok and (depth == 2 or child(depth + 1) == 0)
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)

    assert child(1) == 0
    assert client.get("x.bin", 3, 4).data.tolist() == [3]


def test_a_child_that_is_forked_while_a_thread_retries_can_retry(server: RangeServer) -> None:
    """A thread that begins to wait holds a lock for a moment; in a child, nobody would release it."""
    server.fail("slow_down")
    client = client_of(server, 20)
    with workers._ending._cond:  # type: ignore[attr-defined]  # as such a thread does
        child = os.fork()
        if not child:
            signal.alarm(30)  # ends a child that waits for ever
            code = 2
            try:
                code = 0 if client.get("x.bin", 7, 9).data.tolist() == [7, 8] and client.counters.retries == 1 else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_FREES = """
import gc, os, sys
from tokenstore.store.remote.client import Client
from tokenstore.store.remote.location import Location

class Probe:
    def __del__(self):
        print("freed in", "the child" if os.getpid() != parent else "the parent", flush=True)

parent = os.getpid()
client = Client(Location.of("s3://bucket/store"))
client._store = Probe()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    del client
    gc.collect()
"""


def test_a_child_never_frees_what_obstore_made_in_its_parent() -> None:
    """Freeing waits for locks of threads that do not exist in the child: about one fork in a hundred waited for ever."""
    ended = subprocess.run([sys.executable, "-c", _FREES], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "freed in the parent\n"), ended.stderr


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("obstore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(TokenStoreError, match=r"pip install 'tokenstore\[remote\]'"):
        Client(Location.of("s3://b/x")).get("x", 0, 1)


def test_options_come_from_arguments_then_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path))
    monkeypatch.setenv("TOKENSTORE_CACHE_LIMIT", "1.5 GB")
    found = RemoteOptions(transport="spans").resolved()
    assert (found.cache, found.cache_limit, found.transport, found.deadline) == (tmp_path, 1_500_000_000, "spans", 120)
    assert RemoteOptions(cache_limit="2 MiB").resolved().cache_limit == 2 << 20
    assert RemoteOptions(cache_limit=7).resolved().cache_limit == 7
    monkeypatch.setenv("TOKENSTORE_TRANSPORT", "nonsense")
    with pytest.raises(ValueError, match=r"transport: expected one of auto, spans, blocks, mirror, found 'nonsense'"):
        RemoteOptions().resolved()
    for wrong in "x", "-1", "5 bytes", True:
        with pytest.raises(ValueError, match="cache_limit: expected a number of bytes"):
            RemoteOptions(cache_limit=wrong)
