"""Versions (FMT-13): a store grows by appended documents, and every earlier version remains a store."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace as with_fields
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents
from tests.support.stores.forge import flip, replace
from tests.support.stores.grown import (
    ALL,
    Kind,
    check_documents,
    contents,
    documents_of,
    grow,
    inputs_of,
    prepare,
    write,
)
from tests.support.stores.masked import REST
from tokenstore.commands.app import app, run
from tokenstore.errors import BuildError, CorruptionError, FormatError
from tokenstore.store import Store, files, open_store, verify, versions
from tokenstore.store.length_index import add_length_index
from tokenstore.store.next_version import commit_append
from tokenstore.store.writer import FileWriter

STEPS = [documents_of(1, [3, 1, 40, 7]), documents_of(2, [2, 9, 30]), documents_of(3, [1])]
UP_TO = [STEPS[0], STEPS[0] + STEPS[1], STEPS[0] + STEPS[1] + STEPS[2]]
UNORDERED = Kind(length_index=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of three versions."""
    path = write(tmp_path / "s", STEPS[0], shard_bytes=40)
    for documents in STEPS[1:]:
        grow(path, documents, shard_bytes=40)
    return path


def test_every_version_is_a_store(path: Path) -> None:
    """FMT-13: each returns its documents with masks, origins and ids, and is sound."""
    assert versions(path) == [1, 2, 3]
    for version, documents in enumerate(UP_TO, 1):
        with open_store(path, version=version) as store:
            assert store.version == store.manifest.version == version
            check_documents(store, documents)
        assert verify(path, version=version) == []
    with open_store(path) as newest:
        assert newest.version == 3
        check_documents(newest, UP_TO[2])


def test_the_names_are_those_of_the_specification(path: Path) -> None:
    """FMT-13: files of all documents have the version in their name; shards and masks continue; manifests remain."""
    names = {"manifest.json", "manifest-v1.json", "manifest-v2.json"}
    for name in ("boundaries.bin", "length_index.bin", "origins.bin", "ids.bin", "inputs.jsonl"):
        stem, ending = name.split(".")
        names |= {name, f"{stem}-v2.{ending}", f"{stem}-v3.{ending}"}
    number = len(open_store(path).shards())
    names |= {f"{kind}-{i:05d}.bin" for i in range(number) for kind in ("tokens", "mask")}
    assert {file.name for file in path.iterdir()} == names
    assert not any(file.stat().st_mode & 0o222 for file in path.iterdir())


def test_no_file_of_a_version_is_written_again(tmp_path: Path) -> None:
    """FMT-13: after an append every file is byte for byte the same, and the old manifest has its new name."""
    path = write(tmp_path / "s", STEPS[0], shard_bytes=40)
    before = contents(path)
    numbers = {file.name: file.stat().st_ino for file in path.iterdir()}
    grow(path, STEPS[1])
    after = contents(path)
    assert after["manifest-v1.json"] == before.pop("manifest.json")
    for name, data in before.items():
        assert (after[name], (path / name).stat().st_ino) == (data, numbers[name])


def test_a_grown_store_equals_one_written_at_once(tmp_path: Path) -> None:
    """FMT-13: all bytes and the digest are equal if shards end at the same places."""
    path = write(tmp_path / "s", STEPS[0], shard_bytes=1)  # every document in a shard of its own
    for documents in STEPS[1:]:
        grow(path, documents, shard_bytes=1)
    once = contents(write(tmp_path / "once", UP_TO[2], shard_bytes=1))
    assert open_store(path).digest == open_store(tmp_path / "once").digest
    grown = contents(path)
    for name in set(once) - {"manifest.json"}:
        stem, ending = name.split(".")
        assert grown[name if "-" in name else f"{stem}-v3.{ending}"] == once[name]


def test_a_pickle_and_an_open_store_keep_their_version(tmp_path: Path) -> None:
    """FMT-13: neither sees the store grow."""
    path = write(tmp_path / "s", STEPS[0], shard_bytes=40)
    store = open_store(path)
    pickled = pickle.dumps(store)
    grow(path, STEPS[1])
    check_documents(store, STEPS[0])
    check_documents(pickle.loads(pickled), STEPS[0])
    assert pickle.loads(pickle.dumps(open_store(path))).version == 2
    store.close()
    check_documents(store, STEPS[0])


@pytest.mark.parametrize("version", [0, -1, 4, 10**9])
@pytest.mark.parametrize("check", ["sizes", "lazy"])
def test_an_unknown_version_is_refused(path: Path, version: int, check: str) -> None:
    """A FormatError that lists the existing versions; verify reports it too."""
    with pytest.raises(FormatError, match=rf"store version: expected one of 1, 2, 3, found {version} \({path}\)"):
        open_store(path, check, version)
    assert "expected one of 1, 2, 3" in verify(path, version=version)[0].found
    with pytest.raises(TypeError):
        open_store(path, version="2")


def test_removing_an_old_manifest_removes_its_version(path: Path) -> None:
    """And no other version."""
    (path / "manifest-v1.json").unlink()
    assert versions(path) == [2, 3]
    with pytest.raises(FormatError, match="expected one of 2, 3, found 1"):
        open_store(path, version=1)
    check_documents(open_store(path, version=2), UP_TO[1])


def test_a_manifest_under_a_wrong_name_is_refused(path: Path) -> None:
    """P9: the contents of manifest-v1.json must be version 1."""
    replace(path / "manifest-v1.json", (path / "manifest-v2.json").read_bytes())
    with pytest.raises(CorruptionError, match=r"expected version 1 of the store, found 2 \(.*manifest-v1\.json\)"):
        open_store(path, version=1)


def test_leftover_files_are_ignored(path: Path) -> None:
    """FMT-13: files of a killed append are not seen by any version, nor by verify, and the next append replaces
    them.
    """
    for name in (
        "boundaries-v4.bin",
        "tokens-00099.bin",
        "manifest-v3.json",
        "manifest-v3.json.tokenstore-tmp",
        "manifest-v9.json",
    ):
        (path / name).write_bytes(b"left over")
    assert versions(path) == [1, 2, 3]
    assert [verify(path, version=version) for version in (None, 1, 2, 3)] == [[]] * 4
    grow(path, STEPS[1])
    check_documents(open_store(path), UP_TO[2] + STEPS[1])
    check_documents(open_store(path, version=3), UP_TO[2])


# ---- the writer


def test_an_append_keeps_omitted_fields(tmp_path: Path) -> None:
    """Tokenizer, document endings and informational fields are those of the base, unless given."""
    path = write(tmp_path / "s", STEPS[0])
    (working := tmp_path / "w").mkdir()
    with open_store(path) as base, FileWriter.extending(base, working, 40) as writer:
        writer.append(*_one(), np.array([True]), np.array([1]), ["x"])
        manifest = writer.finish(b'{"file":"x","documents":1}\n', counts={"documents": 5})
    assert manifest.counts == {"documents": 5}
    assert (manifest.tokenizer, manifest.options, manifest.package_versions) == (REST["tokenizer"], {}, {})


def _one() -> tuple[np.ndarray, np.ndarray]:
    return np.array([1], np.uint32), np.array([1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tokenizer": with_fields(REST["tokenizer"], sha256="0")},
            "tokenizer.sha256: expected None as in the extended store",
        ),
        (
            {"tokenizer": with_fields(REST["tokenizer"], kind="huggingface")},
            "tokenizer.kind: expected 'bytes' as in the extended store",
        ),
        (
            {"tokenizer": with_fields(REST["tokenizer"], eos_id=1)},
            "tokenizer.eos_id: expected None as in the extended store",
        ),
        ({"ends_with_eos": True}, "ends_with_eos: expected False as in the extended store"),
    ],
)
def test_an_append_with_another_tokenizer_is_refused(tmp_path: Path, fields: dict, message: str) -> None:
    """FMT-13: all versions have the same tokenizer and document endings."""
    base = open_store(write(tmp_path / "s", STEPS[0], Kind(False, False, False, False)))
    working = tmp_path / "w"
    working.mkdir()
    with FileWriter.extending(base, working, 40) as writer:
        writer.append(*_one())
        with pytest.raises(ValueError, match=message):
            writer.finish(b"", **fields)


def test_an_append_has_the_optional_files_of_its_base(tmp_path: Path) -> None:
    """FMT-13: masks, origins and ids for all documents or none; at least one document; no file twice."""
    working = tmp_path / "w"
    for kind in (ALL, Kind(False, False, False, False)):
        base = open_store(write(tmp_path / str(kind), STEPS[0], kind))
        working.mkdir()
        with FileWriter.extending(base, working, 40) as writer:
            assert (writer.num_documents, writer.num_tokens) == (4, 51)
            with pytest.raises(BuildError, match="documents: there are none to write"):
                writer.finish(b"")
            for wrong in ((None, np.array([1]), ["x"]), (np.array([True]), None, None)):
                with pytest.raises(ValueError, match="expected"):
                    writer.append(*_one(), *wrong)
            if kind.masks:
                with pytest.raises(ValueError, match=r"file: the store already has a file 'mask-00000\.bin'"):
                    writer.add_file("mask-00000.bin", b"")
        shutil.rmtree(working)


@pytest.mark.parametrize("name", ["boundaries.bin", "origins.bin", "ids.bin", "inputs.jsonl"])
def test_an_append_does_not_hide_damage(tmp_path: Path, name: str) -> None:
    """P9: contents copied into new files, with new checksums, are compared with the old checksums."""
    path = write(tmp_path / "s", STEPS[0])
    data = (path / name).read_bytes()
    for damaged, message in (
        (flip(data, 8 * len(data) - 3), "file: expected the checksum"),
        (data[:-1], "file size: expected"),
    ):
        shutil.rmtree(tmp_path / "w", ignore_errors=True)
        (tmp_path / "w").mkdir()
        base = open_store(path, check="lazy")
        replace(path / name, damaged)
        with pytest.raises(CorruptionError, match=message) as caught:
            FileWriter.extending(base, tmp_path / "w", 40)
        assert str(path / name) in str(caught.value)
        replace(path / name, data)


def test_only_the_successor_of_the_newest_version_is_committed(path: Path) -> None:
    """FMT-13: what continues an older version or another store changes nothing."""
    before = contents(path)
    other = write(path.with_name("other"), STEPS[1])
    grow(other, STEPS[0])
    working = prepare(other, STEPS[2])  # version 3 of another store
    wrong: list[Callable[[], object]] = [lambda: working, lambda: other, lambda: _extension(path, 1)]
    for make in wrong:
        with pytest.raises(CorruptionError, match=r"append: version \d+ with .* does not continue version 3"):
            commit_append(path, make())
    working = prepare(path, STEPS[1])
    (working / "ids-v4.bin").unlink()
    with pytest.raises(CorruptionError, match=r"file: expected ids-v4\.bin, found none"):
        commit_append(path, working)
    assert contents(path) == before


def _extension(path: Path, version: int) -> Path:
    working = path.with_name("w")
    working.mkdir()
    with open_store(path, version=version) as base, FileWriter.extending(base, working, 40) as writer:
        writer.append(*_one(), np.array([True]), np.array([1]), ["x"])
        writer.finish(b'{"file":"x","documents":1}\n')
    return working


def test_memory_is_bounded_while_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of all documents are copied in blocks."""
    path = write(tmp_path / "s", documents_of(5, [1] * 3000), Kind(masks=False, length_index=False), at_once=500)
    monkeypatch.setattr("tokenstore.store.output._BLOCK", 64)
    grow(path, STEPS[1], Kind(masks=False))
    assert verify(path) == []
    assert open_store(path).id(3000) == STEPS[1][0].id


# ---- length indexes of versions


def test_every_version_can_get_a_length_index(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """FMT-9, FMT-13: the newest by default, or an older one in its own manifest; by the function and the command."""
    path = write(tmp_path / "s", STEPS[0], UNORDERED)
    grow(path, STEPS[1], UNORDERED)
    assert add_length_index(path)
    assert not add_length_index(path)
    assert [open_store(path, version=version).has_length_index for version in (1, 2)] == [False, True]
    newest = (path / "manifest.json").read_bytes()
    assert run(app, ["index", str(path), "--version", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(path),
        "written": True,
        "block_checksums_written": True,
        "documents": 4,
        "lengths": 4,
    }
    assert (path / "manifest.json").read_bytes() == newest
    for version in (1, 2):
        check_documents(open_store(path, version=version), UP_TO[version - 1])
        assert verify(path, version=version) == []
    assert run(app, ["index", str(path), "--version", "3"]) == 1
    assert "expected one of 1, 2, found 3" in capsys.readouterr().err


def test_a_killed_append_does_not_lose_a_length_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMT-13: a copy of the manifest left by a killed append is neither read nor kept by the next one."""
    path = write(tmp_path / "s", STEPS[0], UNORDERED)
    replace(path / "manifest-v1.json", (path / "manifest.json").read_bytes())
    add_length_index(path)
    assert open_store(path, version=1).has_length_index
    grow(path, STEPS[1])
    check_documents(open_store(path, version=1), STEPS[0])


def test_verify_takes_a_version(path: Path, capsys: pytest.CaptureFixture) -> None:
    """`tokenstore verify STORE --version N` checks only that version's files."""
    replace(path / "ids-v2.bin", flip((path / "ids-v2.bin").read_bytes(), 0))
    expected = {None: 0, 1: 0, 2: 4, 3: 0}
    for version, code in expected.items():
        options = [] if version is None else ["--version", str(version)]
        assert run(app, ["verify", str(path), *options]) == code
        out = capsys.readouterr().out
        assert ("ids-v2.bin: bytes" if code else "no damage found") in out
    assert run(app, ["verify", str(path), "--version", "4"]) == 1
    assert "store version: expected one of 1, 2, 3, found 4" in capsys.readouterr().err


def test_maps_of_versions_are_not_mixed_up(path: Path) -> None:
    """Maps are known by path: three versions read in turns return their own data."""
    stores: list[Store] = [open_store(path, version=version) for version in (1, 2, 3)]
    for i in range(len(UP_TO[2])):
        for store, documents in zip(stores, UP_TO, strict=True):
            if i < len(documents):
                assert (store[i].tolist(), store.id(i)) == (documents[i].tokens, documents[i].id)


def test_the_second_of_two_concurrent_appends_is_refused(path: Path) -> None:
    """Both were prepared from one version."""
    working = prepare(path, STEPS[1])
    os.rename(working, working.with_name("first"))
    second = prepare(path, STEPS[2])
    commit_append(path, working.with_name("first"))
    with pytest.raises(CorruptionError, match="does not continue version 4"):
        commit_append(path, second)
    check_documents(open_store(path), UP_TO[2] + STEPS[1])


def test_files_are_moved_and_not_copied(tmp_path: Path) -> None:
    """The new files are those that were written and synced next to the store."""
    path = write(tmp_path / "s", STEPS[0])
    working = prepare(path, STEPS[1])
    numbers = {file.name: file.stat().st_ino for file in working.iterdir()}
    commit_append(path, working)
    assert {name: (path / name).stat().st_ino for name in numbers} == numbers
    assert list(working.iterdir()) == []


def test_a_store_without_inputs_can_grow(tmp_path: Path) -> None:
    """FMT-4: its list of inputs is empty."""
    documents = random_documents(1, 5, 9)
    path = tmp_path / "s"
    path.mkdir()
    with FileWriter(path, 300, 40) as writer:
        for document in documents:
            writer.append(np.array(document, np.uint32), np.array([len(document)]))
        writer.finish(**REST)
    grow(path, STEPS[1], Kind(False, False, False))
    store = open_store(path)
    assert [d.tolist() for d in store] == documents + [d.tokens for d in STEPS[1]]
    assert (path / "inputs-v2.jsonl").read_bytes() == inputs_of(STEPS[1])
    assert files.regular_size(path / "inputs.jsonl") == 0
