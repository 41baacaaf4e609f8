"""Block checksums: written by builds and appends, added by `tokenstore index`, used by `verify` to name the place (FMT-15)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.processes.command_lines import ok
from tests.support.stores.forge import overwrite
from tests.support.stores.grown import rewrite
from tests.support.stores.masked import Documents, write_masked
from tokenstore.builder import BuildOptions, append_store, build_store
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import BLOCK_CHECKSUMS_NAME, CHECKSUM_BLOCK
from tokenstore.store import Store, open_store, verify
from tokenstore.store.block_checksums import add_block_checksums
from tokenstore.store.block_hasher import BlockHasher

DOCUMENTS = [[7] * 20_000, [3] * 30_000, [5] * 60_000, [9] * 100]  # 220 KB: four blocks


def blocks_of(data: bytes) -> list[int]:
    """The checksums of FMT-15, by a plain twin."""
    return [xxhash.xxh3_64_intdigest(data[at : at + CHECKSUM_BLOCK]) for at in range(0, len(data), CHECKSUM_BLOCK)]


def check_checksums(store: Store) -> None:
    """The checksums of every shard and mask are those of its bytes, and the file has no others."""
    expected = []
    for number, shard in enumerate(store.shards()):
        for file, name in [(number, shard.file), (store.mask_number(number), f"mask-{number:05d}.bin")]:
            if file < len(store.shards()) or store.manifest.has_masks:
                expected.append(blocks_of((store.path / name).read_bytes()))
                assert store.block_checksums(file).tolist() == expected[-1]
    data = np.frombuffer(store.file(BLOCK_CHECKSUMS_NAME).read_bytes(), "<u8")
    assert data.tolist() == [checksum for file in expected for checksum in file]


@given(st.binary(max_size=3 * CHECKSUM_BLOCK // 1000), st.lists(st.integers(1, 100), max_size=20))
def test_data_in_parts_of_any_size_gives_the_same_checksums(seed: bytes, cuts: list[int]) -> None:
    """FMT-15: blocks do not depend on how the data arrives."""
    data, hasher, start = seed * 1000, BlockHasher(), 0
    for cut in cuts:
        hasher.update(data[start : start + cut * 1500])
        start += cut * 1500
    hasher.update(data[start:])
    assert hasher.digests().tolist() == blocks_of(data)


@pytest.fixture
def path(make_store: Callable[..., Path]) -> Path:
    """A store with block checksums."""
    path = make_store("s", DOCUMENTS)
    assert add_block_checksums(path)
    return path


def test_they_are_added_once_and_leave_the_digest(make_store: Callable[..., Path]) -> None:
    """FMT-15: for every shard of a finished store."""
    path = make_store("s", DOCUMENTS, shard_bytes=70_000)
    with open_store(path) as store:
        digest = store.digest
        assert store.block_checksums(0) is None
    seen: list[tuple[int, int]] = []
    assert add_block_checksums(path, lambda done, total: seen.append((done, total)))
    assert not add_block_checksums(path)
    assert seen[-1] == (220_200, 220_200)
    with open_store(path) as store:
        assert store.digest == digest
        assert len(store.shards()) == 4
        check_checksums(store)
    assert verify(path) == []


def test_masks_have_checksums_too(tmp_path: Path) -> None:
    """FMT-15: those of a shard's mask follow those of the shard."""
    path = write_masked(tmp_path / "m", Documents([[i] * 9 for i in range(1, 9)], [[True] * 9] * 8), shard_bytes=40)
    assert add_block_checksums(path)
    with open_store(path) as store:
        assert len(store.shards()) > 2
        check_checksums(store)


def test_builds_and_appends_write_them(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """FMT-15, FMT-13: the checksums of a new version begin with those of the one before."""
    options = {"tokenizer": "bytes", "shard_bytes": 100_000}
    build_store(BuildOptions((str(jsonl("a.jsonl", ["x" * 50_000] * 5)),), tmp_path / "s", **options))
    before = (tmp_path / "s" / BLOCK_CHECKSUMS_NAME).read_bytes()
    append_store(tmp_path / "s", [str(jsonl("b.jsonl", ["y" * 70_000] * 2))])
    with open_store(tmp_path / "s") as store:
        check_checksums(store)
        assert store.file(BLOCK_CHECKSUMS_NAME).name == "block_checksums-v2.bin"
        assert store.file(BLOCK_CHECKSUMS_NAME).read_bytes().startswith(before)


def test_a_damaged_file_does_not_get_checksums(make_store: Callable[..., Path]) -> None:
    """FMT-15: otherwise its damage would have matching ones."""
    path = make_store("s", DOCUMENTS)
    overwrite(path / "tokens-00000.bin", b"\x01")
    with pytest.raises(CorruptionError, match=r"expected the checksum .*tokens-00000\.bin"):
        add_block_checksums(path)
    assert sorted(file.name for file in path.iterdir()) == [
        "boundaries.bin",
        "inputs.jsonl",
        "manifest.json",
        "tokens-00000.bin",
    ]


def damage(file: Path, *places: int) -> None:
    """Change a byte at each of these places."""
    data = bytearray(file.read_bytes())
    for place in places:
        data[place] ^= 1
    overwrite(file, bytes(data))


def test_verify_names_the_damaged_blocks(path: Path) -> None:
    """P9, FMT-15: shard, bytes, tokens and documents of each run of damaged blocks."""
    damage(path / "tokens-00000.bin", 70_000, 150_000, 220_199)
    assert [str(finding) for finding in verify(path)] == [
        "tokens-00000.bin: bytes 65536..220200 (tokens 32768..110100 of the shard, documents 1..4): expected the checksum of"
        " 3 blocks of 65536 bytes, found another"
    ]
    damage(path / "tokens-00000.bin", 150_000)
    assert [finding.place for finding in verify(path)] == [
        "bytes 65536..131072 (tokens 32768..65536 of the shard, documents 1..3)",
        "bytes 196608..220200 (tokens 98304..110100 of the shard, documents 2..4)",
    ]


def test_verify_names_the_place_in_a_mask(tmp_path: Path) -> None:
    """P9, FMT-15: a byte of a mask is eight tokens."""
    path = write_masked(
        tmp_path / "m", Documents([[1] * 600_000, [2] * 10], [[True] * 600_000, [False] * 10]), shard_bytes=1 << 22
    )
    add_block_checksums(path)
    damage(path / "mask-00000.bin", 75_000)
    (finding,) = verify(path)
    assert finding.place == "bytes 65536..75002 (tokens 524288..600010 of the shard, documents 0..2)"


def test_verify_reports_wrong_checksums_of_sound_blocks(path: Path) -> None:
    """P9: a block checksum that is wrong although its file is right, as only a faulty writer would write it."""
    data = bytearray((path / BLOCK_CHECKSUMS_NAME).read_bytes())
    data[9] ^= 1
    rewrite(path, BLOCK_CHECKSUMS_NAME, bytes(data))
    assert [str(finding) for finding in verify(path)] == [
        "block_checksums.bin: checksums of tokens-00000.bin: expected those of its blocks, found others"
    ]


def test_damaged_checksums_do_not_blame_the_shard(path: Path) -> None:
    """P9: the file of checksums is checked first, and not used if it is damaged."""
    damage(path / BLOCK_CHECKSUMS_NAME, 9)
    damage(path / "tokens-00000.bin", 0)
    assert [(finding.file, finding.place) for finding in verify(path)] == [
        ("block_checksums.bin", "bytes 0..32"),
        ("tokens-00000.bin", "bytes 0..220200"),
    ]


def test_a_wrong_size_is_refused_at_open(path: Path) -> None:
    """FMT-15: the number of blocks follows from the sizes of the files."""
    rewrite(path, BLOCK_CHECKSUMS_NAME, bytes(40))
    with pytest.raises(CorruptionError, match=r"files\[block_checksums\.bin\]: expected 32 bytes"):
        open_store(path)


def test_index_adds_both_files(make_store: Callable[..., Path]) -> None:
    """The command; --no-block-checksums reads no token."""
    path = make_store("s", DOCUMENTS)
    assert "block" not in ok("index", path, "--no-block-checksums").split(";", 1)[1]
    out = ok("index", path)
    assert "length index there already; block checksums written in" in out
    assert '"written": false, "block_checksums_written": false' in ok("index", path, "--json")
