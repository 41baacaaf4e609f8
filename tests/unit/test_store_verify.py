"""`verify`: nothing in a sound store, every damaged file otherwise, also if checksums match."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.forge import forge, overwrite, replace
from tokenstore.store import verify
from tokenstore.store.verify import unlisted_files


def test_verify_finds_nothing_in_a_sound_store(store_path: Path) -> None:
    """P9: [] if sound; the bytes reported as progress add up to the files."""
    seen: list[int] = []
    assert verify(store_path, seen.append) == []
    assert sum(seen) == sum(file.stat().st_size for file in store_path.iterdir() if file.name != "manifest.json")


def test_verify_lists_every_damaged_file_at_once(store_path: Path) -> None:
    """P9: each finding has the file, the place, what was expected and what was found."""
    overwrite(store_path / "tokens-00000.bin", b"\xff")
    replace(store_path / "tokens-00001.bin", b"short")
    (store_path / "tokens-00002.bin").unlink()
    overwrite(store_path / "boundaries.bin", bytes(8) + b"\1")
    found = {finding.file: str(finding) for finding in verify(store_path)}
    assert sorted(found) == ["boundaries.bin", "tokens-00000.bin", "tokens-00001.bin", "tokens-00002.bin"]
    assert "expected checksum" in found["tokens-00000.bin"]
    assert "bytes, found 5" in found["tokens-00001.bin"]
    assert "tokens-00002.bin: file: expected a readable file, found" in found["tokens-00002.bin"]


def test_files_that_no_version_lists_are_reported(store_path: Path) -> None:
    """P9: a file that is not part of the store is not damage, but is named."""
    assert unlisted_files(store_path) == []
    (store_path / "tokens-00009.bin").write_bytes(b"mine")
    (store_path / "notes").mkdir()
    assert unlisted_files(store_path) == ["notes", "tokens-00009.bin"]
    assert verify(store_path) == []


def test_verify_of_what_cannot_be_opened_is_one_finding(tmp_path: Path) -> None:
    """P9: verify raises nothing: a path without a store is a finding with the error's text."""
    (finding,) = verify(tmp_path / "nothing")
    assert (finding.file, finding.place) == (str(tmp_path / "nothing"), "open")
    assert "found nothing" in finding.found


def rewrite(store: Path, name: str, data: bytes) -> None:
    """Change a file and its entry in the manifest, as only a faulty writer would."""
    import xxhash

    replace(store / name, data)

    def edit(body: dict) -> None:
        entries = {**body["files"], **{shard["file"]: shard for shard in body["shards"]}}
        entries[name]["checksum"] = xxhash.xxh3_128(data).hexdigest()

    forge(store, edit)


def boundaries(store: Path) -> np.ndarray:
    return np.frombuffer((store / "boundaries.bin").read_bytes(), "<i8").copy()


@pytest.mark.parametrize(
    ("numbers", "place"),
    [
        ([0, 2, 2, 9, 0], "document 1: expected an end in 3..9, found 2"),
        ([0, 7, 5, 9, 0], "document 1: expected an end in 8..9, found 5"),
        ([0, -5, 5, 9, 0], "document 0: expected an end in 1..9, found -5"),
        ([0, 20, 25, 9, 0], "document 0: expected an end in 1..9, found 20"),
        ([0, 2, 5, 9, 1], "lookup entry 0: expected 0, found 1"),
        ([0, 2, 5, 9, -1], "lookup entry 0: expected 0, found -1"),
        ([0, 2, 6, 9, 0], "document 2: expected to begin shard tokens-00001.bin at 5, found 6"),
    ],
)
def test_verify_checks_boundaries_with_a_matching_checksum(
    make_store: Callable[..., Path], numbers: list[int], place: str
) -> None:
    """P9, FMT-3: starts rise, the lookup follows from them, and shards begin where the manifest says."""
    store = make_store("small", [[1, 2], [3, 4, 5], [6, 7, 8, 9]], shard_bytes=10)
    rewrite(store, "boundaries.bin", np.array(numbers, "<i8").tobytes())
    assert [str(finding) for finding in verify(store)] == [f"boundaries.bin: {place}"]


def test_verify_is_not_fooled_by_starts_whose_differences_overflow(make_store: Callable[..., Path]) -> None:
    """P9: starts 0, 2**62, -2**63, -2**62, 8 rise by 2**62 each in int64 arithmetic, and are damage, also if the
    lookup is what a binary search over them finds.
    """
    store = make_store("small", [[1, 2]] * 4)
    rewrite(store, "boundaries.bin", np.array([0, 2**62, -(2**63), -(2**62), 8, 3], "<i8").tobytes())
    assert [finding.file for finding in verify(store)] == ["boundaries.bin"]


def test_verify_in_small_blocks_finds_the_same(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: damage at the borders of verify's blocks is found, and a huge start there costs no memory."""
    store = make_store("long", [[1] * 900] * 40, shard_bytes=9000)
    sound = boundaries(store)
    for block in (1, 2, 3, 7, 40, 41):
        monkeypatch.setattr(sys.modules["tokenstore.store.verify"], "_BLOCK", block)
        rewrite(store, "boundaries.bin", sound.tobytes())
        assert verify(store) == []
        for index, value in ((2, 2**62), (3, 2**62), (7, -1), (14, 2**40), (21, int(sound[20])), (44, 3), (41, 1)):
            damaged = sound.copy()
            damaged[index] = value
            rewrite(store, "boundaries.bin", damaged.tobytes())
            assert {finding.file for finding in verify(store)} == {"boundaries.bin"}


def test_verify_finds_ids_outside_the_vocabulary(make_store: Callable[..., Path]) -> None:
    """P9, FMT-8: although the file is what its writer wrote."""
    store = make_store("small", [[1, 2], [3, 4, 5]])
    rewrite(store, "tokens-00000.bin", np.array([1, 2, 300, 4, 65_535], "<u2").tobytes())
    assert [str(finding) for finding in verify(store)] == [
        "tokens-00000.bin: token 2 (and 1 more near it): expected an id below 300, found 300"
    ]


def test_verify_finds_documents_without_their_end_of_text(make_store: Callable[..., Path]) -> None:
    """P9, FMT-2: if ends_with_eos is true, all documents end with that token."""
    documents = [[5, 0], [0], [7, 8, 0], [9, 0]]
    store = make_store("eos", documents, eos=True, shard_bytes=6)
    assert verify(store) == []
    bad = make_store("bad", [[5, 0], [3], [7, 8, 0], [9, 4]], eos=True, shard_bytes=6)
    assert [(f.file, f.place, f.found) for f in verify(bad)] == [
        ("tokens-00000.bin", "token 2 (and 0 more)", "3"),
        ("tokens-00002.bin", "token 1 (and 0 more)", "4"),
    ]
