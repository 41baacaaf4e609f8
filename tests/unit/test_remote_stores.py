"""Stores at URLs: they are the store on the disk, and only what is used is fetched."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenstore
from tests.conftest import random_documents
from tests.support.servers.moto_server import moto_server
from tests.support.servers.range_server import RangeServer
from tests.support.stores.grown import ALL, check_documents, documents_of, grow, write
from tokenstore import Plan, RemoteOptions, open_store
from tokenstore.errors import CorruptionError, FormatError, RemoteError, TokenStoreError
from tokenstore.planning.config import PlanConfig
from tokenstore.views.store_summary import summarize_store

DOCUMENTS = random_documents(3, 300, 40)
URL = "s3://bucket/web"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the process, in the test's folder."""
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def served(range_server: RangeServer, make_store: Callable[..., Path]) -> Path:
    """A store on the disk, served as URL."""
    path = make_store("web", DOCUMENTS, shard_bytes=4000, length_index=True)
    range_server.add_folder("bucket/web", path)
    return path


def ranges(server: RangeServer) -> list[tuple[str, str]]:
    """(object, range) of the requests since the last call."""
    log, server.log = server.log, []
    return sorted((record.key.removeprefix("web/"), record.range) for record in log)


def test_opening_takes_two_requests_and_a_document_two_more(range_server: RangeServer, served: Path) -> None:
    """The manifest and the list of objects; then the boundaries and the tokens of one document."""
    store = open_store(URL)
    assert ranges(range_server) == [("", ""), ("manifest.json", "")]
    assert store[1].tolist() == DOCUMENTS[1]
    first = 2 * len(DOCUMENTS[0])
    tokens = f"bytes={first}-{first + 2 * len(DOCUMENTS[1]) - 1}"
    assert ranges(range_server) == [("boundaries.bin", "bytes=8-23"), ("tokens-00000.bin", tokens)]
    assert repr(store).startswith("Store('s3://bucket/web', 300 documents")
    assert (store.url, store.place, store.digest) == (URL, URL, open_store(served).digest)


def test_a_remote_store_is_the_store_on_the_disk(range_server: RangeServer, tmp_path: Path) -> None:
    """Documents, masks, origins, ids and versions, over S3 and plain HTTP."""
    old, new = documents_of(1, [3, 40, 7, 1, 9]), documents_of(2, [5, 5])
    path = write(tmp_path / "all", old, shard_bytes=60)
    grow(path, new, shard_bytes=60)
    range_server.add_folder("bucket/all", path)
    with open_store("s3://bucket/all") as store:
        check_documents(store, old + new, ALL)
        assert store.versions() == [1, 2]
    with open_store("s3://bucket/all", version=1) as store:
        check_documents(store, old, ALL)
    with open_store(f"{range_server.url}/bucket/all") as store:
        check_documents(store, old + new, ALL)
    with pytest.raises(FormatError, match="store version: expected one of 1, 2, found 3"):
        open_store("s3://bucket/all", version=3)


def test_a_real_server(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with moto, whose signatures and answers are not ours."""
    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.add_folder("web", served)
        plan = Plan.of({"web": URL}, 32, 4)
        local = Plan.of({"web": str(served)}, 32, 4)
        assert plan.fingerprint == local.fingerprint
        assert (plan.batch(2)["input_ids"] == local.batch(2)["input_ids"]).all()


def test_google_and_azure(
    range_server: RangeServer, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gs:// and az:// read the same objects, with settings from the environment."""
    fields = {"gcs_base_url": range_server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    (tmp_path / "key.json").write_text(json.dumps({**fields, "private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_PATH", str(tmp_path / "key.json"))
    monkeypatch.setenv("GOOGLE_BASE_URL", range_server.url)  # that it says http:// allows requests without TLS
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{range_server.url}/devstoreaccount1")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    for url in ("gs://bucket/web", "az://bucket/web"):
        assert open_store(url, check="lazy")[7].tolist() == DOCUMENTS[7]


def test_redirects_are_followed(range_server: RangeServer, served: Path) -> None:
    """As on the Hugging Face Hub, where the resolve URL of a file leads to another host, for HEAD and ranges too."""
    other = range_server.url.replace("127.0.0.1", "localhost")
    for file in served.iterdir():
        place = f"{other}/bucket/web/{file.name}"
        range_server.fail("redirect", times=None, method="", key=f"resolve/{file.name}", location=place)
    store = open_store(f"{range_server.url}/bucket/resolve")
    assert store[7].tolist() == DOCUMENTS[7]
    assert store.boundaries()[-1] == open_store(served).boundaries()[-1]
    assert {record.status for record in range_server.log if "resolve" in record.key} == {302}


def test_index_files_are_fetched_once(range_server: RangeServer, served: Path, cache: Path) -> None:
    """P7: a second start takes two requests per store; the cache is a part of the store."""
    options = {"sequence_length": 32, "global_batch_size": 4}
    Plan.of({"web": URL}, **options)
    fetched = {name for name, _ in ranges(range_server)}
    assert fetched == {"", "manifest.json", "boundaries.bin", "length_index.bin"}
    plan = Plan.of({"web": URL}, **options)
    assert ranges(range_server) == [("", ""), ("manifest.json", "")]
    (folder,) = (cache / "index").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["boundaries.bin", "length_index.bin", "manifest.json"]
    assert all((folder / file.name).read_bytes() == (served / file.name).read_bytes() for file in folder.iterdir())
    again = pickle.loads(pickle.dumps(plan))
    assert again.stores["web"].place == URL
    assert again.fingerprint == Plan.of({"web": str(served)}, **options).fingerprint


def test_a_summary_fetches_what_it_shows(range_server: RangeServer, served: Path) -> None:
    """Runs of lengths and the largest documents, no token."""
    summary = summarize_store(open_store(URL))
    assert summary.path == URL
    assert summary.lengths == summarize_store(open_store(served)).lengths
    assert not range_server.gets("tokens-")


def test_options_are_kept_by_a_pickle(served: Path, tmp_path: Path) -> None:
    """The cache folder travels with a store; no secret does."""
    store = open_store(URL, remote=RemoteOptions(cache=tmp_path / "other"))
    again = pickle.loads(data := pickle.dumps(store))
    assert again.path == store.path
    assert again.path.parents[1] == tmp_path / "other"
    assert b"secret" not in data


def test_objects_of_another_size_are_refused_at_open(range_server: RangeServer, served: Path) -> None:
    """As on a disk; without a list, when the object is first used."""
    range_server.put("bucket/web/tokens-00000.bin", b"short")
    with pytest.raises(
        CorruptionError, match=r"object size: expected \d+ bytes, found 5 bytes \(s3://bucket/web/tokens-0"
    ):
        open_store(URL)
    range_server.objects.delete("bucket", "web/tokens-00000.bin")
    with pytest.raises(CorruptionError, match=r"found none \(s3://bucket/web/tokens-00000\.bin\)"):
        open_store(URL)
    range_server.fail("forbidden", key="", times=None, method="GET", only_lists=True)
    store = open_store(URL)
    with pytest.raises(CorruptionError, match=r"expected an object, found 404"):
        _ = store[0]


def test_a_replaced_store_is_noticed(range_server: RangeServer, served: Path) -> None:
    """FMT-8: a token object with another entity tag is not read."""
    store = open_store(URL)
    assert store[0].tolist() == DOCUMENTS[0]
    range_server.put("bucket/web/tokens-00000.bin", (served / "tokens-00000.bin").read_bytes()[::-1])
    with pytest.raises(CorruptionError, match="it was replaced while in use"):
        _ = store[0]


def test_a_damaged_index_file_is_refused(range_server: RangeServer, served: Path, cache: Path) -> None:
    """Checksums are compared when a file is fetched; nothing damaged stays in the cache."""
    range_server.fail("flipped", key="boundaries")
    with pytest.raises(CorruptionError, match=r"expected the checksum .* \(s3://bucket/web/boundaries\.bin\)"):
        open_store(URL).boundaries()
    assert not list(cache.rglob("boundaries*"))
    assert open_store(URL).boundaries()[1] == len(DOCUMENTS[0])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/nothing", "no store at s3://bucket/nothing: found no manifest.json; give the URL"),
        ("s3://other/web", "no store at s3://other/web"),
        ("s3://user:word@bucket/web", "found one with them"),
        ("https://host/web?X-Amz-Signature=secret", "found one with them"),
        ("file:///etc", "expected a URL of s3://, gs://, az://, http://, https://, found file://"),
        ("ftp://host/web", "expected a URL of"),
    ],
)
def test_urls_that_are_no_store(range_server: RangeServer, url: str, message: str) -> None:
    """A clear error, and no secret in it."""
    with pytest.raises(FormatError, match=message.replace(".", r"\.").replace("?", r"\?")) as raised:
        open_store(url)
    assert not {"word", "secret"} & set(str(raised.value).replace("/", " ").replace("=", " ").split())


def test_wrong_credentials_are_named(range_server: RangeServer, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to check, and shows no credential."""
    range_server.signed = True
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong-key")
    with pytest.raises(RemoteError, match=r"403 Forbidden InvalidAccessKeyId.*credentials") as raised:
        open_store(URL)
    assert "wrong-key" not in str(raised.value)


def test_a_path_object_is_no_url(served: Path) -> None:
    """Path() makes one slash of two; the error says so."""
    with pytest.raises(FormatError, match="pass a str, not a Path"):
        open_store(Path(URL))


def test_urls_in_plan_files_are_not_relative_to_them(served: Path, tmp_path: Path) -> None:
    """Nor is `~` expanded there."""
    (tmp_path / "plan.yaml").write_text(
        f"sequence_length: 32\nglobal_batch_size: 4\nsources:\n  web: {{path: '{URL}'}}\n  disk: {{path: web}}\n"
    )
    config = PlanConfig.load(tmp_path / "plan.yaml")
    assert (config.sources["web"].path, config.sources["disk"].path) == (URL, str(tmp_path / "web"))
    with pytest.warns(UserWarning, match="are the same store"):
        assert Plan(config).stores["web"].url == URL


def test_a_cache_that_cannot_be_written(served: Path, cache: Path) -> None:
    """The error names the folder and the option."""
    cache.write_text("a file")
    with pytest.raises(
        TokenStoreError, match=r"cache: cannot write .*; free space there, or choose another folder with"
    ):
        open_store(URL)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(TokenStoreError, match=r"pip install 'tokenstore\[remote\]'"):
        tokenstore.open_store(URL)
