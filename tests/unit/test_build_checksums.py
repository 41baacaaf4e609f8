"""Detection of changed inputs: checksums in inputs.jsonl, and those kept of large inputs."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from tests.support.stores.building import Build, as_bytes, documents, left_behind
from tokenstore.builder import append_store, pipeline
from tokenstore.builder.reading import checksums
from tokenstore.builder.reading.units import Slice
from tokenstore.errors import BadRecordsError, ConfigError


def rows(store: Path) -> list[dict]:
    return [json.loads(line) for line in (store / "inputs.jsonl").read_bytes().splitlines()]


def edit(path: Path, old: bytes = b"first", new: bytes = b"FIRST", back: bool = False) -> None:
    """Write different bytes of the same length; with `back`, restore the modification time."""
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + (0 if back else 10**9)))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("unit", [40, 64, 1 << 20])
def test_the_checksum_does_not_depend_on_how_an_input_is_cut(
    build: Build, tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, unit: int
) -> None:
    """P8: it is the checksum of the blocks' checksums, whichever slice reads a block. Empty files have the one of b""."""
    monkeypatch.setattr(checksums, "BLOCK", 64)
    data = b"".join(b'{"text": "line %d"}\n' % i for i in range(100))
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.txt").write_bytes(b"")
    small_units(unit)
    store = build(tmp_path / "a.jsonl", tmp_path / "b.txt").path
    blocks = [xxhash.xxh3_128_digest(data[at : at + 64]) for at in range(0, len(data), 64)]
    assert [row["checksum"] for row in rows(store)] == [
        xxhash.xxh3_128_hexdigest(b"".join(blocks)),
        xxhash.xxh3_128_hexdigest(b""),
    ]


@pytest.mark.parametrize(("start", "stop"), [(0, 1000), (0, 128), (128, 512), (70, 130), (65, 100), (960, 1000)])
def test_checksums_made_while_reading_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, stop: int
) -> None:
    """P8: however much is read, in pieces of any size, from any place, also backwards."""
    monkeypatch.setattr(checksums, "BLOCK", 64)
    path = tmp_path / "a"
    path.write_bytes(bytes(range(250)) * 4)
    for seek, size, count in [(start, 7, 300), (max(start - 1, 0), 100, 3), (0, 1000, 2), (start, 64, 0), (500, 33, 4)]:
        with checksums.HashedInput(path, 1000, start, stop) as file:
            for place in (seek, start):
                file.seek(place)
                for _ in range(count):
                    file.read(size)
        assert file.digests() == checksums.block_hashes(path, start, stop)


def test_an_input_is_read_once(
    build: Build, tmp_path: Path, small_units: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksums are made while it is read: over a network, reading takes longest."""
    opened: list[object] = []
    real = checksums.open_input
    monkeypatch.setattr(checksums, "open_input", lambda path: opened.append(path) or real(path))
    monkeypatch.setattr(checksums, "BLOCK", 64)
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"text": "line %d"}\n' % i for i in range(30)))
    small_units(128)
    build(tmp_path / "a.jsonl")
    assert len(opened) == -(-(tmp_path / "a.jsonl").stat().st_size // 128)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_an_input_edited_to_the_same_size_is_detected(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, large: bool, back: bool
) -> None:
    """Also if its modification time is restored, and if its checksum was kept."""
    monkeypatch.setattr(checksums, "_CHEAP", 1 if large else 1 << 30)
    source = jsonl("a.jsonl", ["first", "second"])
    result = build(source)
    assert left_behind(result.path) == (["inputs.json"] if large else [])
    edit(source, back=back)
    with pytest.raises(ConfigError, match=r"a\.jsonl changed since the store was built: same size"):
        build(source)
    edit(source, b"FIRST", b"first")
    assert build(source).was_there


def test_large_inputs_that_did_not_change_are_not_read_again(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size, inode and times show it. A copied or touched input is read once more, and its checksum kept from then on."""
    monkeypatch.setattr(checksums, "_CHEAP", 1)
    source = jsonl("a.jsonl", ["first", "second"])
    build(source)
    read: list[Path] = []
    real = checksums.block_hashes
    monkeypatch.setattr(checksums, "block_hashes", lambda path, *place: read.append(path) or real(path, *place))
    assert build(source).was_there
    assert read == []
    os.utime(source)
    assert build(source).was_there
    assert build(source).was_there
    assert read == [source]


@pytest.mark.parametrize("failure", ["the disk is full", "an input is removed"])
def test_failing_to_keep_checksums_does_not_fail_a_build(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """P8: the store is committed already; the inputs are only read a second time."""
    monkeypatch.setattr(checksums, "_CHEAP", 1)
    source = jsonl("a.jsonl", ["first", "second"])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "inputs.json")

    def remove_first(path: Path) -> checksums.Stamp:
        path.unlink()
        return stamp_of(path)

    stamp_of = checksums.stamp_of
    with monkeypatch.context() as patched:
        if failure == "the disk is full":
            patched.setattr(checksums, "write_atomically", fail)
        else:
            patched.setattr(checksums, "stamp_of", remove_first)
        result = build(source)
    assert documents(result.path) == as_bytes("first", "second")
    assert left_behind(result.path) == []


def test_a_part_with_many_block_checksums_is_reused(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary holds a checksum per block; those of a 9 GB compressed input are within its size limit."""
    monkeypatch.setattr(checksums, "BLOCK", 16)
    first, second = jsonl("in/a.jsonl", ["x" * 60_000, "y"]), jsonl("in/b.jsonl", ["z", b"{"])
    monkeypatch.setattr(pipeline, "cut_units", lambda files: [(Slice(0),), (Slice(1),)])
    with pytest.raises(BadRecordsError):
        build(first, second)
    second.write_bytes(b'{"text": "z"}\n')
    notes: list[str] = []
    build(first, second, note=notes.append)
    assert "resuming: 1 of 2 parts are done" in notes


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a": 1}', b'{"PATH": [[1, 2, 3, 4], "0"]}', b'{"PATH": 7}', b'{"PATH": [["a"], "0"]}']
)
def test_a_damaged_file_of_kept_checksums_is_ignored(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """The inputs are read again."""
    monkeypatch.setattr(checksums, "_CHEAP", 1)
    source = jsonl("a.jsonl", ["first", "second"])
    store = build(source).path
    (Path(f"{store}.tokenstore") / "inputs.json").write_bytes(data.replace(b"PATH", str(source).encode()))
    assert build(source).was_there


def test_an_edited_input_can_be_appended(build: Build, jsonl: Callable[..., Path]) -> None:
    """The same bytes again are refused or do nothing; other bytes under the same name and size are new documents."""
    source = jsonl("a.jsonl", ["first", "second"])
    store = build(source).path
    more = jsonl("b.jsonl", ["third"])
    assert append_store(store, [str(more)]).num_documents == 3
    assert append_store(store, [str(more)]).was_there
    edit(more, b"third", b"THIRD")
    assert append_store(store, [str(more)]).num_documents == 4
    assert append_store(store, [str(more)]).was_there
    assert bytes(documents(store)[-1][:-1]) == b"THIRD"
