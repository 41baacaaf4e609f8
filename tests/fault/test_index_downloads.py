"""The cache of index files: shared by processes without waiting for the dead, and nothing incomplete ever has its final name."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes.command_lines import ROOT, wait_until
from tests.support.servers.patience import patient
from tests.support.servers.range_server import RangeServer
from tests.support.stores.masked import REST
from tokenstore import open_store
from tokenstore.errors import CorruptionError, RemoteError, TokenStoreError
from tokenstore.store import writing
from tokenstore.store.remote import downloads
from tokenstore.store.writer import FileWriter

URL = "s3://bucket/web"
CHUNK = 16 << 10


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, and chunks so small that the boundaries are a large file. Claims are respected however busy the machine is."""
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENSTORE_DEADLINE", "60")
    monkeypatch.setattr(downloads, "_CHUNK", CHUNK)
    monkeypatch.setattr(downloads, "_LARGE", 2 * CHUNK)
    monkeypatch.setattr(downloads, "_POLL", 0.01)
    monkeypatch.setattr(downloads, "_STALE", 60)
    return tmp_path / "cache"


@pytest.fixture
def impatient(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that are not touched are soon taken over."""
    monkeypatch.setattr(downloads, "_STALE", 0.3)


@pytest.fixture
def served(range_server: RangeServer, tmp_path: Path, cache: Path) -> Path:
    """A store of 20,000 documents: 160 KB of boundaries, ten chunks."""
    big = tmp_path / "big"
    big.mkdir()
    with FileWriter(big, 300, 1 << 20) as writer:
        writer.append(np.ones(20_000, np.uint16), np.ones(20_000, np.int64))
        writer.finish(**REST)
    range_server.add_folder("bucket/web", big)
    return big


def chunks(server: RangeServer) -> int:
    """How many ranges of the boundaries were requested."""
    return len(server.gets("boundaries"))


def files_of(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def test_a_large_file_is_downloaded_by_one_of_many(range_server: RangeServer, served: Path, cache: Path) -> None:
    """Eight threads, each with a store of its own as ranks have, need ten chunks together; all read the same bytes."""
    range_server.latency = 0.02
    found: list[bytes] = []
    ranks = [threading.Thread(target=lambda: found.append(open_store(URL).boundaries().tobytes())) for _ in range(8)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert found == [(served / "boundaries.bin").read_bytes()] * 8
    assert chunks(range_server) == -(-(served / "boundaries.bin").stat().st_size // CHUNK)
    assert files_of(cache) == ["boundaries.bin", "manifest.json"]


@pytest.mark.usefixtures("impatient")
def test_the_claim_of_a_dead_process_is_taken_over(range_server: RangeServer, served: Path, cache: Path) -> None:
    """It is not touched any more, so it is waited for as long as a claim may rest, and no longer."""
    store = open_store(URL)
    claimed = store.path / "boundaries.bin.claim"
    claimed.touch()
    assert store.boundaries()[5] == 5
    assert files_of(cache) == ["boundaries.bin", "manifest.json"]


def test_a_claim_that_is_touched_is_waited_for(served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow download of another process: its file appears, and nothing is downloaded here."""
    monkeypatch.setattr(downloads, "_STALE", 1)
    store = open_store(URL)
    claimed, final = store.path / "boundaries.bin.claim", store.path / "boundaries.bin"
    claimed.touch()

    def other() -> None:
        for _ in range(60):  # longer than an untouched claim would be respected; often, as the machine may be busy
            threading.Event().wait(0.02)
            os.utime(claimed)
        writing.write_shared(final, (served / "boundaries.bin").read_bytes())
        claimed.unlink()

    thread = threading.Thread(target=other)
    thread.start()
    assert store.boundaries()[7] == 7
    thread.join()


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_killed_leaves_nothing_wrong(range_server: RangeServer, served: Path, cache: Path) -> None:
    """Kill -9 in the middle of a download; the next process downloads the file again."""
    range_server.fail("hang", key="boundaries", after=3, times=None)
    code = (
        "import tokenstore; from tokenstore.store.remote import downloads as d;"
        f"d._CHUNK, d._LARGE = {CHUNK}, {2 * CHUNK}; tokenstore.open_store({URL!r}).boundaries()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_until(lambda: chunks(range_server) > 3)
    process.kill()
    process.wait()
    assert "boundaries.bin.claim" in files_of(cache)
    assert "boundaries.bin" not in files_of(cache)
    range_server.faults.clear()
    assert open_store(URL).boundaries().tobytes() == (served / "boundaries.bin").read_bytes()


@pytest.mark.deep
@pytest.mark.usefixtures("impatient")
def test_many_kills_never_leave_a_wrong_byte(range_server: RangeServer, served: Path, cache: Path) -> None:
    """Kill -9 of two ranks at random moments of their downloads, 40 times: what has its final name is whole."""
    range_server.latency, moments = 0.01, np.random.default_rng(0)
    code = (
        "import tokenstore; from tokenstore.store.remote import downloads as d;"
        f"d._CHUNK, d._LARGE, d._STALE, d._IN_FLIGHT = {CHUNK}, {2 * CHUNK}, 0.05, 1;"
        f"tokenstore.open_store({URL!r}).boundaries()"
    )
    whole = (served / "boundaries.bin").read_bytes()
    for _ in range(40):
        before = chunks(range_server)
        ranks = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
        wait_until(lambda ranks=ranks, before=before: chunks(range_server) > before or ranks[0].poll() is not None)
        threading.Event().wait(moments.uniform(0, 0.2))
        for rank in ranks:
            rank.kill()
            rank.wait()
        for file in cache.rglob("boundaries.bin"):
            assert file.read_bytes() == whole
            file.unlink()
    assert open_store(URL).boundaries().tobytes() == whole


@pytest.mark.parametrize("kind", ["slow_down", "error", "reset", "truncated", "short"])
def test_faults_of_a_chunk_are_repeated(range_server: RangeServer, served: Path, cache: Path, kind: str) -> None:
    """The file is whole in the end."""
    range_server.fail(kind, key="boundaries", after=4, times=2)
    assert open_store(URL).boundaries().tobytes() == (served / "boundaries.bin").read_bytes()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("shifted", CorruptionError), ("flipped", CorruptionError), ("forbidden", RemoteError), ("error", RemoteError)],
)
def test_faults_that_remain_end_in_an_error(
    range_server: RangeServer, served: Path, cache: Path, kind: str, error: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the deadline, and nothing is left but the manifest."""
    if kind == "error":
        monkeypatch.setenv("TOKENSTORE_DEADLINE", "1")
        patient(monkeypatch)
    range_server.fail(kind, key="boundaries", after=2, times=None)
    with pytest.raises(error, match="boundaries"):
        open_store(URL).boundaries()
    assert files_of(cache) == ["manifest.json"]


def test_a_full_disk_is_an_error_that_names_the_cache(
    served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is reserved first, so no write to a mapped page fails."""
    store = open_store(URL)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TokenStoreError, match=r"cache: cannot write .*No space left on device; free space there"):
        store.boundaries()
    assert files_of(cache) == ["manifest.json"]


def test_a_cut_file_in_the_cache_is_downloaded_again(served: Path, cache: Path) -> None:
    """After a crash of the machine, say: a file of another size is not used."""
    store = open_store(URL)
    (store.path / "boundaries.bin").write_bytes(b"short")
    assert store.boundaries()[9] == 9


def test_progress_is_reported(served: Path, cache: Path) -> None:
    """The URL, bytes so far, and the total."""
    seen: list[tuple[str, int, int]] = []
    with downloads.reported(lambda url, done, total: seen.append((url, done, total))):
        open_store(URL).boundaries()
    size = (served / "boundaries.bin").stat().st_size
    assert {url for url, _, _ in seen} == {f"{URL}/boundaries.bin"}
    assert seen[-1][1:] == (size, size)
