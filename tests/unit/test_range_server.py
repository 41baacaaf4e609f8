"""The test server behaves as the S3 server that it stands for. Each test runs against both, except those of faults."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from tests.support.servers.moto_server import moto_server
from tests.support.servers.range_server import RangeServer

DATA = bytes(range(256)) * 4


@pytest.fixture(scope="module", params=["range server", pytest.param("moto", marks=pytest.mark.deep)])
def bucket(request: pytest.FixtureRequest) -> Iterator[S3Store]:
    """A bucket with the object `a/b.bin`."""
    with pytest.MonkeyPatch.context() as patch, moto_server() if request.param == "moto" else RangeServer() as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        store = S3Store("bucket")
        obstore.put(store, "a/b.bin", DATA)
        yield store


def get(store: Any, key: str = "a/b.bin", **options: Any) -> bytes:
    return bytes(obstore.get(store, key, options=options).bytes())


def test_ranges(bucket: S3Store) -> None:
    """Inside, at the end, and past the end, where the answer is short."""
    assert get(bucket, range=(5, 9)) == DATA[5:9]
    assert get(bucket, range={"suffix": 3}) == DATA[-3:]
    assert get(bucket, range={"offset": 1000}) == DATA[1000:]
    assert get(bucket, range=(1000, 2000)) == DATA[1000:]


def test_conditions(bucket: S3Store) -> None:
    """If-Match on reading, If-None-Match on writing."""
    etag = obstore.head(bucket, "a/b.bin")["e_tag"]
    assert get(bucket, range=(0, 2), if_match=etag) == DATA[:2]
    with pytest.raises(PreconditionError):
        get(bucket, if_match='"other"')
    obstore.put(bucket, "new", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(bucket, "new", b"2", mode="create")
    assert get(bucket, "new") == b"1"


def test_lists_and_removal(bucket: S3Store) -> None:
    """Keys in order, prefixes, and a missing key."""
    for number in range(3):
        obstore.put(bucket, f"list/x{number}/y", b"1")
    assert [each["path"] for each in obstore.list(bucket, "list").collect()] == [f"list/x{n}/y" for n in range(3)]
    assert sorted(obstore.list_with_delimiter(bucket, "list")["common_prefixes"]) == [f"list/x{n}" for n in range(3)]
    obstore.copy(bucket, "list/x0/y", "list/z")
    obstore.delete(bucket, ["list/x0/y", "list/x1/y"])
    assert [each["path"] for each in obstore.list(bucket, "list").collect()] == ["list/x2/y", "list/z"]
    with pytest.raises(FileNotFoundError):
        get(bucket, "list/x0/y")


def test_multipart_uploads(bucket: S3Store) -> None:
    """An object above the part size is uploaded in parts."""
    data = os.urandom(11 << 20)
    obstore.put(bucket, "big", data, chunk_size=5 << 20)
    assert get(bucket, "big") == data


@pytest.mark.parametrize("kind", ["slow_down", "error", "reset", "reset_early", "truncated"])
def test_a_client_repeats_requests_that_fail(range_server: RangeServer, kind: Any) -> None:
    """Faults that another attempt cures."""
    range_server.put("bucket/a", DATA)
    range_server.fail(kind, key="a")
    assert get(S3Store("bucket"), "a", range=(5, 9)) == DATA[5:9]
    assert len(range_server.gets()) == 2


@pytest.mark.parametrize(("kind", "expected"), [("short", DATA[4:6]), ("shifted", DATA[5:8] + DATA[4:5])])
def test_wrong_bytes_reach_a_client(range_server: RangeServer, kind: Any, expected: bytes) -> None:
    """Faults that only a reader's own checks detect."""
    range_server.put("bucket/a", DATA)
    range_server.fail(kind)
    assert get(S3Store("bucket"), "a", range=(4, 8)) == expected


def test_signatures(range_server: RangeServer) -> None:
    """A server that demands them refuses other keys and anonymous requests."""
    range_server.put("bucket/a", DATA)
    range_server.signed = True
    assert get(S3Store("bucket"), "a") == DATA
    for options in ({"access_key_id": "x", "secret_access_key": "y"}, {"skip_signature": True}):
        with pytest.raises(PermissionDeniedError):
            get(S3Store("bucket", **options), "a")


def test_clients_of_other_stores_can_read(range_server: RangeServer, tmp_path: Path) -> None:
    """Plain HTTP, Google and Azure."""
    range_server.put("bucket/a", DATA)
    http, url = {"allow_http": True}, range_server.url
    key = f'{{"gcs_base_url":"{url}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}'
    (tmp_path / "key.json").write_text(key)
    azure = {"account_name": "devstoreaccount1", "endpoint": f"{url}/devstoreaccount1", "skip_signature": True}
    for store in (
        HTTPStore(f"{url}/bucket", client_options=http),
        GCSStore("bucket", service_account_path=str(tmp_path / "key.json"), client_options=http),
        AzureStore("bucket", **azure, client_options=http),
    ):
        assert get(store, "a", range=(5, 9)) == DATA[5:9]
