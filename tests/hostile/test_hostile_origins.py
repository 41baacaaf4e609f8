"""Damaged and forged origins, ids, inputs and versions (P9): a TokenStoreError that names the file, or sound data."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.forge import flip, overwrite, replace
from tests.support.stores.grown import ALL, check_documents, documents_of, edit_manifest, grow, rewrite, write
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.format.layout import MAX_ID_BYTES
from tokenstore.store import open_store, verify, versions

DOCUMENTS = documents_of(1, [3, 1, 9, 7, 2])
MORE = documents_of(2, [4, 1])
NEW = ("origins.bin", "ids.bin", "inputs.jsonl")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of five documents with all optional files."""
    return write(tmp_path / "s", DOCUMENTS)


def read_all(path: Path) -> int:
    """Read everything of every document; returns the number of errors, each of which names the file."""
    messages = []
    with open_store(path) as store:
        for i in range(len(store)):
            for ask in (store.origin, store.id):
                try:
                    ask(i)
                except CorruptionError as error:
                    messages.append(str(error))
            assert store[i].tolist() == (DOCUMENTS + MORE)[i].tokens
    assert all(str(path) in message and any(name.split(".")[0] in message for name in NEW) for message in messages)
    return len(messages)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.deep)])
def test_any_flipped_bit_is_found(path: Path, name: str, version: int, step: int) -> None:
    """P9: verify names the file; reads return data or a CorruptionError, and tokens are not affected."""
    if version == 2:
        grow(path, MORE)
        stem, ending = name.split(".")
        name = f"{stem}-v2.{ending}"
    sound = (path / name).read_bytes()
    for bit in range(0, 8 * len(sound), step):
        overwrite(path / name, flip(sound, bit))
        assert {finding.file for finding in verify(path)} == {name}
        read_all(path)
    overwrite(path / name, sound)
    assert verify(path) == []
    check_documents(open_store(path), DOCUMENTS + (MORE if version == 2 else []))


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("more", [-10_000, -8, -1, 1, 4096])
def test_a_file_of_a_wrong_size_is_refused_at_open(path: Path, name: str, more: int) -> None:
    """P9: truncated, empty or longer; with check="lazy", when it is first used."""
    data = (path / name).read_bytes()
    replace(path / name, (data + bytes(4096))[: max(len(data) + more, 0)])
    with pytest.raises(CorruptionError, match=f"file size: expected {len(data)} bytes") as caught:
        open_store(path)
    assert str(path / name) in str(caught.value)
    store = open_store(path, check="lazy")
    for ask in (store.id,) if name == "ids.bin" else (store.origin,):
        with pytest.raises(CorruptionError, match="file size: expected"):
            ask(0)
    assert [finding.file for finding in verify(path)] == [name]


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NEW)
def test_a_pipe_or_device_is_refused(path: Path, kind: str, name: str) -> None:
    """P9: without blocking, and without reading forever."""
    (path / name).unlink()
    KINDS[kind](path / name)
    with pytest.raises(TokenStoreError, match=name):
        open_store(path)
    store = open_store(path, check="lazy")
    with pytest.raises(TokenStoreError, match=name):
        (store.id if name == "ids.bin" else store.origin)(0)
    assert [finding.file for finding in verify(path)] == [name]


# ---- forged, with checksums that fit


BAD = (-(2**63), -1, 1, 2**31, 2**62, 2**63 - 1)


def forged_ids(path: Path) -> Iterator[bytes]:
    """ids.bin with each start set to invalid numbers, swapped starts, a divided character, bytes that are not UTF-8."""
    data = (path / "ids.bin").read_bytes()
    places = 8 * (len(DOCUMENTS) + 1)
    starts = np.frombuffer(data[:places], "<i8")
    for i in range(starts.size):
        for bad in {*BAD, int(starts[-1]) + 1} - {int(starts[i])}:
            wrong = starts.copy()
            wrong[i] = bad
            yield wrong.tobytes() + data[places:]
    yield starts[::-1].tobytes() + data[places:]
    for byte in (0x80, 0xC0, 0xFF):
        yield data[:places] + bytes([byte]) * (len(data) - places)


def test_forged_ids_are_found(path: Path) -> None:
    """P9, FMT-12: ids out of order, outside the file, or not UTF-8 raise a CorruptionError; verify reports each
    once.
    """
    number = 0
    for data in list(forged_ids(path)):
        number += 1
        rewrite(path, "ids.bin", data)
        findings = verify(path)
        sound = read_all(path) == 0
        assert {finding.file for finding in findings} == {"ids.bin"} or (sound and findings == [])
        assert len(findings) <= 2
    assert number > 30


@pytest.mark.parametrize("where", range(4))
def test_an_id_that_splits_a_character_is_found(tmp_path: Path, where: int) -> None:
    """FMT-12: all bytes together can be UTF-8 although one id is not; empty ids next to it do not hide it."""
    path = write(tmp_path / "s", [document._replace(id="☃") for document in DOCUMENTS[:4]])
    starts = np.array([0, 3, 6, 9, 12], "<i8")
    starts[1:][: where + 1] = 4
    starts[1 : where + 1] = 0
    rewrite(path, "ids.bin", starts.tobytes() + "☃☃☃☃".encode())
    findings = [finding for finding in verify(path) if finding.expected == "UTF-8"]
    assert [finding.file for finding in findings] == ["ids.bin"]
    store = open_store(path)
    with pytest.raises(CorruptionError, match=rf"id of document {where}: expected UTF-8, found .*ids\.bin"):
        store.id(where)
    assert findings[0].place == f"id of document {where}"


@pytest.mark.parametrize("ends", [(1, 12), (0, 11), (0, 13)])
def test_ids_must_fill_their_file(tmp_path: Path, ends: tuple[int, int]) -> None:
    """FMT-12: from the first byte to the last."""
    path = write(tmp_path / "s", [document._replace(id="abc") for document in DOCUMENTS[:4]])
    starts = np.array([ends[0], 3, 6, 9, ends[1]], "<i8")
    rewrite(path, "ids.bin", starts.tobytes() + b"abc" * 4)
    assert [finding.file for finding in verify(path)] == ["ids.bin"] * (2 if ends[1] == 13 else 1)
    assert verify(path)[0].place == "ends"


def test_an_id_longer_than_allowed_is_found(tmp_path: Path) -> None:
    """FMT-12: one id of 65,536 bytes where two ids share that many."""
    path = write(tmp_path / "s", [document._replace(id="x" * (MAX_ID_BYTES // 2 + 1)) for document in DOCUMENTS[:2]])
    size = (path / "ids.bin").stat().st_size - 24
    assert size == MAX_ID_BYTES + 1
    rewrite(path, "ids.bin", np.array([0, 0, size], "<i8").tobytes() + b"x" * size)
    with pytest.raises(CorruptionError, match="id of document 1: expected at most 65535"):
        open_store(path).id(1)
    assert [finding.place for finding in verify(path)] == ["id of document 1"]


@pytest.mark.parametrize("bad", [0, -1, -(2**63)])
def test_a_record_below_one_is_found(path: Path, bad: int) -> None:
    """FMT-11: by verify and when it is read; other documents are not affected."""
    records = np.array([document.record for document in DOCUMENTS], "<i8")
    records[3] = bad
    rewrite(path, "origins.bin", records.tobytes())
    assert [(finding.file, finding.place, finding.found) for finding in verify(path)] == [
        ("origins.bin", "document 3", str(bad))
    ]
    store = open_store(path)
    with pytest.raises(CorruptionError, match=rf"document 3: expected the number of a record, from 1, found {bad} "):
        store.origin(3)
    assert store.origin(4).record == DOCUMENTS[4].record


# ---- forged manifests


def move(body: dict, old: str, new: str) -> None:
    body["files"][new] = body["files"].pop(old)


def add(body: dict, name: str, num_bytes: int = 0) -> None:
    body["files"][name] = {"num_bytes": num_bytes, "checksum": "0" * 32}


ONE_VERSION = "files: expected files of one version"
FORGED: dict[str, tuple[Callable[[dict], object], str]] = {
    "order of version 3": (lambda body: move(body, "length_index-v2.bin", "length_index-v3.bin"), ONE_VERSION),
    "order of version 1": (lambda body: move(body, "length_index-v2.bin", "length_index.bin"), ONE_VERSION),
    "ids of version 1": (lambda body: move(body, "ids-v2.bin", "ids.bin"), ONE_VERSION),
    "ids of two versions": (lambda body: add(body, "ids-v7.bin"), ONE_VERSION),
    "inputs of version 1": (lambda body: move(body, "inputs-v2.jsonl", "inputs.jsonl"), ONE_VERSION),
    "boundaries of version 3": (lambda body: move(body, "boundaries-v2.bin", "boundaries-v3.bin"), ONE_VERSION),
    "two boundaries": (lambda body: add(body, "boundaries.bin", 80), ONE_VERSION),
    "no boundaries": (lambda body: body["files"].pop("boundaries-v2.bin"), r"files\[boundaries.bin\]: expected"),
    "boundaries of version 1 by number": (
        lambda body: move(body, "boundaries-v2.bin", "boundaries-v1.bin"),
        r"files\[boundaries.bin\]: expected",
    ),
    "boundaries of version 02": (
        lambda body: move(body, "boundaries-v2.bin", "boundaries-v02.bin"),
        r"files\[boundaries.bin\]: expected",
    ),
    "boundaries of another size": (
        lambda body: body["files"]["boundaries-v2.bin"].update(num_bytes=64),
        r"files\[boundaries-v2.bin\]: expected 72 bytes",
    ),
    "origins of another size": (
        lambda body: body["files"]["origins-v2.bin"].update(num_bytes=64),
        r"files\[origins-v2.bin\]: expected a size for 7 documents",
    ),
    "ids too small": (
        lambda body: body["files"]["ids-v2.bin"].update(num_bytes=63),
        r"files\[ids-v2.bin\]: expected a size for 7 documents",
    ),
    "ids too large": (
        lambda body: body["files"]["ids-v2.bin"].update(num_bytes=64 + 7 * MAX_ID_BYTES + 1),
        r"files\[ids-v2.bin\]: expected a size for 7 documents",
    ),
    "origins without inputs": (
        lambda body: body["files"].pop("inputs-v2.jsonl"),
        r"files: expected inputs-v2.jsonl, because there are origins",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_manifest_is_refused(path: Path, what: str) -> None:
    """P9, FMT-13: names of several versions or impossible sizes are refused at open, although checksum and digest
    match.
    """
    grow(path, MORE)
    edit, message = FORGED[what]
    edit_manifest(path, edit)
    with pytest.raises(CorruptionError, match=f"manifest {message}") as caught:
        open_store(path)
    assert str(path / "manifest.json") in str(caught.value)
    assert len(verify(path)) == 1


@pytest.mark.parametrize("name", ["boundaries", "length_index", "origins", "ids"])
def test_a_first_version_lists_no_file_of_a_second(path: Path, name: str) -> None:
    """FMT-13: such a name in a manifest of version 1 is refused, so no append ever collides with it."""
    edit_manifest(path, lambda body: add(body, f"{name}-v2.bin"))
    with pytest.raises(CorruptionError, match="manifest files: expected files of one version"):
        open_store(path)


def test_a_damaged_old_manifest_affects_only_its_version(path: Path) -> None:
    """P9: opening that version is refused, for any flipped bit; other versions open."""
    grow(path, MORE)
    sound = (path / "manifest-v1.json").read_bytes()
    for bit in range(0, 8 * len(sound), 101):
        replace(path / "manifest-v1.json", flip(sound, bit))
        with pytest.raises(TokenStoreError, match=r"manifest-v1\.json"):
            open_store(path, version=1)
    check_documents(open_store(path), DOCUMENTS + MORE)
    assert versions(path) == [1, 2]
    replace(path / "manifest-v1.json", sound)
    assert verify(path, version=1) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_manifest_that_is_not_a_file_is_refused(path: Path, kind: str) -> None:
    """P9: with a message, without blocking."""
    grow(path, MORE)
    (path / "manifest-v1.json").unlink()
    KINDS[kind](path / "manifest-v1.json")
    with pytest.raises(TokenStoreError, match=r"manifest-v1\.json|expected one of 2, found 1"):
        open_store(path, version=1)
    check_documents(open_store(path), DOCUMENTS + MORE, ALL)
