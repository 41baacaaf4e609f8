"""Stores that are written to object storage appear complete, or not at all."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tokenstore
from tests.support.servers.range_server import RangeServer
from tokenstore.errors import ConfigError, RemoteError, StoreBusyError
from tokenstore.store.remote import upload
from tokenstore.store.remote.client import Client
from tokenstore.store.remote.location import Location
from tokenstore.store.remote.upload import CLAIM_NAME, upload_store

Made = Callable[..., Path]


@pytest.fixture
def client(range_server: RangeServer) -> Client:
    """A client of an empty place, which gives up after four seconds."""
    return Client(Location.of("s3://bucket/stores/web"), 4)


@pytest.fixture
def store(make_store: Made, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several shards, which are uploaded in parts."""
    monkeypatch.setattr(upload, "_PART_BYTES", 5 << 20)
    return make_store("web", [[i % 250] * 40 for i in range(60)], shard_bytes=900)


@pytest.fixture
def other(make_store: Made) -> Path:
    """Another store."""
    return make_store("other", [[1, 2, 3]])


def there(server: RangeServer) -> dict[str, bytes]:
    """All objects of the place."""
    return {key.rpartition("/")[2]: bytes(found.data) for key, found in server.objects.buckets["bucket"].items()}


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_is_copied_and_its_manifest_is_last(range_server: RangeServer, client: Client, store: Path) -> None:
    """P8: the commit is one request, made when all other objects are there."""
    seen: list[tuple[int, int]] = []
    assert upload_store(store, client, progress=lambda *at: seen.append(at))
    assert there(range_server) == contents(store)
    total = sum(len(data) for name, data in contents(store).items() if name != "manifest.json")
    assert seen[-1] == (total, total)
    puts = [record.key.rpartition("/")[2] for record in range_server.log if record.method == "PUT"]
    assert puts[0] == CLAIM_NAME
    assert puts[-1] == "manifest.json"
    assert not upload_store(store, client)


@pytest.mark.parametrize("kind", ["slow_down", "error", "reset_early", "expired"])
@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_faults_that_pass_do_not_matter(
    range_server: RangeServer, client: Client, store: Path, kind: str, method: str
) -> None:
    """Each request is repeated; the objects are those of the store."""
    range_server.fail(kind, times=1 if kind == "expired" else 2, method=method)
    assert upload_store(store, client)
    assert there(range_server) == contents(store)


@pytest.mark.parametrize("after", range(0, 22, 3))
def test_an_upload_that_ends_early_leaves_no_store_and_is_continued(
    range_server: RangeServer, client: Client, store: Path, other: Path, after: int
) -> None:
    """P8: whatever request was the last. Nobody else can write to the place meanwhile."""
    upload_store(store, client)
    range_server.objects.buckets["bucket"].clear()
    range_server.fail("forbidden", times=None, method="PUT", after=after)
    with contextlib.suppress(RemoteError):
        upload_store(store, client)
        assert there(range_server) == contents(store)
    assert ("manifest.json" in there(range_server)) == (CLAIM_NAME not in there(range_server) and after > 0)
    range_server.faults.clear()
    if CLAIM_NAME in there(range_server):
        with pytest.raises(StoreBusyError, match="another store is being uploaded"):
            upload_store(other, client)
    upload_store(store, client)
    assert there(range_server) == contents(store)


def test_another_store_is_replaced_only_on_request(
    range_server: RangeServer, client: Client, store: Path, other: Path
) -> None:
    """The old manifest is removed first: at no time does a manifest list objects of another store."""
    upload_store(other, client)
    with pytest.raises(ConfigError, match=r"holds another store .*--overwrite"):
        upload_store(store, client)
    assert there(range_server) == contents(other)
    assert upload_store(store, client, overwrite=True)
    assert contents(store).items() <= there(range_server).items()


def test_objects_of_others_are_not_mixed_in(range_server: RangeServer, client: Client, store: Path) -> None:
    """A place that holds something else is refused, and left as it was."""
    range_server.put("bucket/stores/web/notes.txt", b"mine")
    with pytest.raises(ConfigError, match=r"holds other objects, such as notes\.txt"):
        upload_store(store, client)
    assert there(range_server) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("same", [True, False])
def test_of_two_that_commit_at_once_one_wins(
    range_server: RangeServer, client: Client, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """The same store twice is one store. Another one is an error of the second, which replaces nothing."""
    real = upload._commit

    def commit(client: Client, manifest: bytes, digest: str) -> None:
        monkeypatch.setattr(upload, "_commit", real)
        winner = store if same else other
        range_server.put("bucket/stores/web/manifest.json", (winner / "manifest.json").read_bytes())
        real(client, manifest, digest)

    monkeypatch.setattr(upload, "_commit", commit)
    if same:
        assert upload_store(store, client)
        assert there(range_server) == contents(store)
    else:
        with pytest.raises(StoreBusyError, match="another process has committed another store"):
            upload_store(store, client)
        assert there(range_server)["manifest.json"] == (other / "manifest.json").read_bytes()


def test_a_web_server_is_no_output(store: Path) -> None:
    """It has no conditional writes."""
    with pytest.raises(ConfigError, match="cannot write to https://"):
        upload_store(store, Client(Location.of("https://example.org/web")))


@pytest.fixture
def moto() -> Iterator[Client]:
    """A client of a real S3 server."""
    from tests.support.servers.moto_server import moto_server

    with moto_server() as server, pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment.items():
            patched.setenv(name, value)
        yield Client(Location.of("s3://bucket/stores/web"), 20)


def test_a_real_server_takes_a_store(moto: Client, store: Path, other: Path, tmp_path: Path) -> None:
    """Conditional writes and multipart uploads as S3 does them."""
    assert upload_store(store, moto)
    assert not upload_store(store, moto)
    with pytest.raises(ConfigError, match="holds another store"):
        upload_store(other, moto)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, info in moto.list().items():
        data = moto.get(name, 0, info.num_bytes).data.tobytes() if info.num_bytes else b""
        (copy / name).write_bytes(data)
    assert tokenstore.verify(copy) == []
    assert contents(copy) == contents(store)


def test_equal_tokens_do_not_make_equal_stores(range_server: RangeServer, client: Client, tmp_path: Path) -> None:
    """Stores with other ids have the same digest. An upload of one does not continue that of the other."""
    for name in ("one", "two"):
        with tokenstore.StoreWriter(tmp_path / name, "bytes", ids=True) as writer:
            for i in range(3):
                writer.write("text", id=f"{name} {i}")
    one, two = tmp_path / "one", tmp_path / "two"
    range_server.fail("forbidden", times=None, method="PUT", key="manifest")
    with pytest.raises(RemoteError):
        upload_store(one, client)
    range_server.faults.clear()
    with pytest.raises(StoreBusyError, match="another store is being uploaded"):
        upload_store(two, client)
    assert upload_store(two, client, overwrite=True)
    assert there(range_server) == contents(two)
    assert upload_store(one, client, overwrite=True)
    assert there(range_server) == contents(one)
