"""Commands on stores at URLs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tests.support.processes.command_lines import ok, run_here
from tests.support.servers.range_server import RangeServer
from tests.support.stores.forge import overwrite
from tokenstore import StoreWriter
from tokenstore.commands.app import app, run
from tokenstore.errors import ConfigError
from tokenstore.store.block_checksums import add_block_checksums

URL = "s3://bucket/web"
DOCUMENTS = random_documents(5, 400, 300)


@pytest.fixture
def served(range_server: RangeServer, make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with end-of-text tokens and block checksums, and a plan over its URL."""
    path = make_store("web", [[*each, 0] for each in DOCUMENTS], eos=True, shard_bytes=50_000, length_index=True)
    add_block_checksums(path)
    range_server.add_folder("bucket/web", path)
    (path.parent / "plan.yaml").write_text(
        f"sequence_length: 64\nglobal_batch_size: 4\nsources:\n  web: {{path: '{URL}'}}\n"
    )
    (path.parent / "local.yaml").write_text("sequence_length: 64\nglobal_batch_size: 4\nsources:\n  web: {path: web}\n")
    monkeypatch.setenv("TOKENSTORE_CACHE", str(path.parent / "unused"))
    monkeypatch.chdir(path.parent)
    return path


def same(*command: object) -> str:
    """The output of a command for the URL, which is that for the folder."""
    remote = ok(*(each if each != "STORE" else URL for each in command), "--cache", "cache")
    local = ok(*(each if each != "STORE" else "web" for each in command))
    assert remote.replace(URL, "web") == local.replace(str(Path("web").absolute()), "web")
    return remote


def test_inspect(served: Path, range_server: RangeServer) -> None:
    """A summary, a document, a search, and the error for a missing document."""
    assert URL in same("inspect", "STORE")
    same("inspect", "STORE", "--document", 7, "--tokens")
    same("inspect", "STORE", "--search-tokens", ",".join(map(str, DOCUMENTS[9][3:6])))
    assert not Path("unused").exists()


def test_inspect_of_a_document_reads_only_that(served: Path, range_server: RangeServer) -> None:
    """The bytes of a document, not of its shard."""
    ok("inspect", URL, "--document", 7)
    fetched = sum(record.num_bytes for record in range_server.gets("tokens-"))
    assert fetched == 2 * (len(DOCUMENTS[7]) + 1) * len(range_server.gets("tokens-"))


def test_plan_trace_and_report(served: Path) -> None:
    """What they print does not depend on where the store is; the URL is shown first, on standard error."""
    assert (
        json.loads(ok("plan", "plan.yaml", "--json"))["plan"]["fingerprint"]
        == json.loads(ok("plan", "local.yaml", "--json"))["plan"]["fingerprint"]
    )
    traced = run_here("trace", "plan.yaml", "--step", 3)
    assert (traced.stdout, traced.stderr) == (ok("trace", "local.yaml", "--step", 3), f"source web: reading {URL}\n")
    assert run_here("report", "plan.yaml").returncode == 0
    assert ok("report", URL).startswith("web.report.html")
    assert "secret" not in Path("web.report.html").read_text()


def test_amend(served: Path) -> None:
    """The plan is read by URL, shown first; a source at another URL can be added. The cache is the one that is named."""
    add = ("--from-step", 3, "--add", f"more={URL}", "--weight", "web=1", "--weight", "more=1", "--cache", "cache")
    result = run_here("amend", "plan.yaml", *add, "-o", "plan2.yaml")
    assert (result.returncode, result.stderr) == (0, f"source web: reading {URL}\n")
    assert f"more: {{path: '{URL}'" in Path("plan2.yaml").read_text()
    assert Path("cache").exists()
    assert not Path("unused").exists()


def test_verify_names_the_same_damage(served: Path, range_server: RangeServer, capsys: pytest.CaptureFixture) -> None:
    """P9: every damage has one place, locally and remotely."""
    assert "no damage found" in ok("verify", URL, "--cache", "cache")
    overwrite(served / "tokens-00001.bin", b"\xff\xff")
    (served / "stray.txt").write_text("mine")
    range_server.add_folder("bucket/web", served)
    outputs = []
    for place in ("web", URL):
        run(app, ["verify", place])
        outputs.append(capsys.readouterr().out.replace(URL, "web"))
    assert outputs[0] == outputs[1]
    assert "tokens-00001.bin: bytes 0.." in outputs[0]
    assert "note: stray.txt is not part of the store" in outputs[0]


@pytest.mark.parametrize(
    "command",
    [
        f"index {URL}",
        f"append {URL} more.txt",
        f"drop {URL} --ids ids.txt",
        f"merge {URL} web -o all",
        f"merge web more -o {URL}",
        f"adopt data -o {URL} --vocab-size 5",
        f"export {URL} --to dolma -o files",
        f"export web --to dolma -o {URL}",
    ],
)
def test_commands_that_write_refuse_urls(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """They say what to do instead, and make no folder `s3:`."""
    monkeypatch.chdir(tmp_path)
    Path("ids.txt").write_text("a\n")
    assert run(app, command.split()) == 2
    name = command.partition(" ")[0]
    assert f"{name}: expected a path on a disk, found the URL {URL}; use a copy on a disk" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ids.txt"]


def test_what_writes_shows_no_secret_of_a_url() -> None:
    """Neither a password nor a query."""
    with pytest.raises(ConfigError, match=r"^writer: expected a path on a disk, found the URL https://host/web;"):
        StoreWriter("https://me:SECRET@host/web?sig=SECRET", vocab_size=5)


def test_errors_have_their_exit_codes(served: Path, range_server: RangeServer, capsys: pytest.CaptureFixture) -> None:
    """A missing store, and refused credentials."""
    assert run(app, ["inspect", "s3://bucket/nothing"]) == 1
    range_server.signed = True
    range_server.fail("forbidden", times=None)
    assert run(app, ["inspect", URL]) == 1
    err = capsys.readouterr().err
    assert "no store at s3://bucket/nothing" in err
    assert "403 Forbidden AccessDenied" in err
