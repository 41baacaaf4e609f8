"""The length index (FMT-9): its bytes, adding it to a store, concurrent writers, and `tokenstore index`."""

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore
from tests.conftest import random_documents, write_store
from tests.support.stores.forge import forge, overwrite
from tests.support.stores.grown import edit_manifest
from tokenstore.builder import BuildOptions, build_store
from tokenstore.errors import CorruptionError, FormatError, StoreBusyError
from tokenstore.order import sorting
from tokenstore.store import length_index, open_store, verify
from tokenstore.store.length_index import add_length_index
from tokenstore.store.work import exclusive_work

ROOT = Path(__file__).resolve().parents[2]
INDEX = [sys.executable, "-m", "tools.index_store"]


def expected_bytes(lengths: Sequence[int]) -> bytes:
    """length_index.bin from the specification: numbers by (tokens, number), zeros up to 8 bytes, then the runs."""
    order = sorted(range(len(lengths)), key=lambda document: (lengths[document], document))
    ordered = sorted(lengths)
    runs = [(length, ordered.index(length)) for length in sorted(set(lengths))]
    numbers = struct.pack(f"<{len(order)}I", *order)
    return numbers + bytes(-len(numbers) % 8) + b"".join(struct.pack("<qq", *run) for run in runs)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def take_away(path: Path) -> None:
    """Remove the length index from a store."""
    (path / "length_index.bin").unlink()
    forge(path, lambda body: body["files"].pop("length_index.bin"))
    (path / "manifest.json").chmod(0o444)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 300 documents in several shards, without a length index."""
    return write_store(tmp_path / "s", random_documents(1, 300, 40), shard_bytes=2000)


# ---- its bytes


def test_the_worked_example(tmp_path: Path) -> None:
    """FMT-9: documents [7, 1] and [5, 5, 1]: 0, 1, then runs (2, 0), (3, 1)."""
    path = write_store(tmp_path / "s", [[7, 1], [5, 5, 1]], vocab_size=8)
    assert add_length_index(path)
    assert (path / "length_index.bin").read_bytes() == struct.pack("<2I4q", 0, 1, 2, 0, 3, 1) == expected_bytes([2, 3])


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=80),
    block=st.sampled_from([1, 7, 1 << 22]),
    long=st.sampled_from([1, 5, 1 << 20]),
    few=st.sampled_from([0, 1 << 20]),
)
def test_random_stores_are_sorted(lengths: list[int], block: int, long: int, few: int) -> None:
    """FMT-9: the file is the sorted list, by kernels and by numpy, for any block size and any limit of long documents; verify agrees."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_index, "_FEW_DOCUMENTS", few)
        patch.setattr(length_index, "_BLOCK", block)
        patch.setattr(sorting, "LONG", long)
        path = write_store(Path(folder) / "s", [[1] * length for length in lengths], length_index=True)
        assert (path / "length_index.bin").read_bytes() == expected_bytes(lengths)
        assert verify(path) == []
        with open_store(path) as store:
            assert store.has_length_index
            order = sorted(range(len(lengths)), key=lambda document: (lengths[document], document))
            assert store.length_index().tolist() == order
            assert store.length_index().dtype == np.uint32
            assert not store.length_index().flags.writeable
            assert [lengths[order[first]] for _, first in store.runs()] == sorted(set(lengths))


def test_documents_of_more_than_a_million_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMT-9: lengths around 2**20, which the kernels count together, some of them equal, between short ones."""
    monkeypatch.setattr(length_index, "_FEW_DOCUMENTS", 0)
    most = 1 << 20
    lengths = [most + 5, 3, most, most - 1, 1, most + 5, most + 1, 3, most, most - 1]
    path = write_store(
        tmp_path / "s", [np.full(length, 7, np.uint16) for length in lengths], shard_bytes=most, length_index=True
    )
    assert (path / "length_index.bin").read_bytes() == expected_bytes(lengths)
    assert verify(path) == []
    plan = tokenstore.Plan.of(path, 1 << 19, 4, num_steps="all_exhausted", last_batch="pad")
    seen = [piece for step in range(plan.num_steps) for row in plan.documents(step) for piece in row]
    assert sum(piece.stop - piece.start for piece in seen) == sum(lengths)


def test_progress_is_reported_to_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document is processed twice; the last call reports the total."""
    monkeypatch.setattr(length_index, "_BLOCK", 100)
    monkeypatch.setattr(length_index, "_FEW_DOCUMENTS", 0)
    calls: list[tuple[int, int]] = []
    add_length_index(path, lambda done, total: calls.append((done, total)))
    assert calls == [(done, 600) for done in range(100, 601, 100)]


@pytest.mark.parametrize("few", [0, 1 << 20])
def test_damaged_boundaries_are_refused(path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: starts that do not increase give no lengths: the error names the file, and nothing is left."""
    monkeypatch.setattr(length_index, "_FEW_DOCUMENTS", few)
    before = {name for name in contents(path) if name != "boundaries.bin"}
    damaged = bytearray((path / "boundaries.bin").read_bytes())
    damaged[80:88] = damaged[160:168]
    overwrite(path / "boundaries.bin", bytes(damaged))
    with pytest.raises(
        CorruptionError, match=r"boundaries\.bin: expected increasing starts, found others .*; run `tokenstore verify"
    ):
        add_length_index(path)
    assert set(contents(path)) == before | {"boundaries.bin"}


# ---- a store that is given one


def test_nothing_but_the_length_index_changes(path: Path) -> None:
    """FMT-9: the digest and all other fields and files are unchanged; the new file is in the manifest, and
    read-only.
    """
    before, manifest = contents(path), open_store(path).manifest
    plan = tokenstore.Plan.of(path, 8, 4, packing="concat", num_steps=9)
    assert add_length_index(path) is True
    after = open_store(path)
    assert after.digest == manifest.digest
    assert {name: entry for name, entry in after.manifest.files.items() if name != "length_index.bin"} == manifest.files
    assert {
        name: data for name, data in contents(path).items() if name not in ("length_index.bin", "manifest.json")
    } == {name: data for name, data in before.items() if name != "manifest.json"}
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o444}
    assert not list(path.parent.glob("s.*"))
    again = tokenstore.Plan.of(path, 8, 4, packing="concat", num_steps=9)
    tokenstore.TokenLoader(again).load_state_dict(plan.state(5))
    assert again.fingerprint == plan.fingerprint


def test_a_second_run_does_nothing(path: Path) -> None:
    """The existing file and the manifest are unchanged."""
    assert add_length_index(path) is True
    before = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in path.iterdir()}
    calls: list[tuple[int, int]] = []
    assert add_length_index(path, lambda done, total: calls.append((done, total))) is False
    assert {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in path.iterdir()} == before
    assert calls == []


def test_an_open_store_is_not_affected(path: Path) -> None:
    """Its manifest has no length index, the new one does; documents are equal; a held array survives a close."""
    held = open_store(path)
    first = held[0].tolist()
    add_length_index(path)
    assert not held.has_length_index
    assert held[0].tolist() == first
    assert len(list(held)) == 300
    with open_store(path) as store:
        order, runs = store.length_index(), store.runs()
    assert sorted(order.tolist()) == list(range(300))
    assert runs[0, 1] == 0


def test_a_build_writes_one(tmp_path: Path) -> None:
    """P8, FMT-9: a build writes the same bytes as add_length_index; repeating it adds one to a store that has none."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": "x" * (7 * i % 23 + 1)}) + "\n" for i in range(100)))
    options = BuildOptions((str(source),), tmp_path / "s", "bytes")
    assert build_store(options).was_there is False
    path = tmp_path / "s"
    built = contents(path)
    assert built["length_index.bin"] == expected_bytes([len(document) for document in open_store(path)])
    take_away(path)
    assert not open_store(path).has_length_index
    assert build_store(options).was_there is True
    assert contents(path).keys() == built.keys()
    assert contents(path)["length_index.bin"] == built["length_index.bin"]
    assert contents(path)["manifest.json"] == built["manifest.json"]
    assert verify(path) == []


# ---- two at once, and none


def test_a_second_writer_is_refused(path: Path) -> None:
    """The store is busy, and the message names the process; the lock ends with the first writer."""
    with exclusive_work(path):
        with pytest.raises(StoreBusyError, match=rf"process {os.getpid()} is writing it"):
            add_length_index(path)
        assert not open_store(path).has_length_index
    assert add_length_index(path)
    assert not path.with_name("s.tokenstore").exists()


def test_the_message_for_a_busy_store_fits_the_command(path: Path) -> None:
    """The remedy is to wait, because `index` has no output."""
    with exclusive_work(path):
        with pytest.raises(StoreBusyError) as error:
            add_length_index(path)
    assert "output" not in str(error.value)


def test_a_store_and_a_link_to_it_have_one_lock(path: Path) -> None:
    """Two writers of one directory exclude each other, whatever path each uses."""
    link = path.parent / "other" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    with exclusive_work(path), pytest.raises(StoreBusyError):
        add_length_index(link)


def test_a_split_is_not_written_while_all_splits_are(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """P8: an append to a folder of splits and an index of one of them would conflict."""
    source = jsonl("in.jsonl", ["a", "b", "c", "d"])
    store = build_store(BuildOptions((str(source),), tmp_path / "store", "bytes", split="a=0.5,b=0.5")).path
    (store / "a" / "length_index.bin").unlink()
    edit_manifest(store / "a", lambda body: body["files"].pop("length_index.bin"))
    with exclusive_work(store), pytest.raises(StoreBusyError):
        add_length_index(store / "a")
    assert add_length_index(store / "a")
    assert sorted(each.name for each in tmp_path.glob("store*/*")) == ["a", "b"]


@pytest.mark.parametrize("kind", ["missing", "empty folder", "file"])
def test_no_store_is_refused_before_a_lock_is_made(tmp_path: Path, kind: str) -> None:
    """FormatError, and nothing is left next to the path."""
    path = tmp_path / "s"
    if kind == "file":
        path.write_text("x")
    elif kind != "missing":
        path.mkdir()
    with pytest.raises(FormatError, match=r"no store at .*: found (nothing|a directory|a file)"):
        add_length_index(path)
    assert [file.name for file in tmp_path.iterdir()] == ([] if kind == "missing" else ["s"])


# ---- the command


def index(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    command = [*INDEX, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_command_writes_once(path: Path) -> None:
    """Exit code 0 and one line per store, as text or JSON; for a store that has an index it says so."""
    other = write_store(path.with_name("t"), [[1], [1, 2], [3]])
    done = index(path, other)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{path}: 300 documents of 40 lengths; length index written in ")
    assert lines[1].startswith(f"{other}: 3 documents of 2 lengths; length index written in ")
    done = index("--json", other, path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [
        {"path": str(other), "written": False, "block_checksums_written": False, "documents": 3, "lengths": 2},
        {"path": str(path), "written": False, "block_checksums_written": False, "documents": 300, "lengths": 40},
    ]


def test_the_command_fails_with_a_message(path: Path) -> None:
    """Exit code 1 if there is no store or it is busy, 2 for a wrong call; no traceback, nothing on standard output."""
    with exclusive_work(path):
        for arguments, code, text in (
            ([path.with_name("none")], 1, "error: no store at "),
            ([path], 1, f"process {os.getpid()} is writing it"),
            (["--jason", path], 2, "--jason"),
        ):
            done = index(*arguments)
            assert done.returncode == code, done
            assert text in done.stderr.replace("\n", " ")
            assert "Traceback" not in done.stderr
            assert done.stdout == ""
