"""Loss masks (FMT-10) that are damaged or missing: what open, a reader and `verify` find wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.forge import flip, overwrite, replace
from tests.support.stores.masked import SMALL, SMALL_BITS, edit_manifest, rewrite_mask, write_masked
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import Finding, open_store, verify

# ---- what open refuses

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "expected {0.name}, found none"),
    "empty": (lambda path: replace(path, b""), "file size: expected {1} bytes, found 0"),
    "a byte less": (lambda path: replace(path, path.read_bytes()[:-1]), "file size: expected {1} bytes, found {2}"),
    "a byte more": (lambda path: replace(path, path.read_bytes() + b"\0"), "file size: expected {1} bytes, found {3}"),
    "a folder": (
        lambda path: (path.unlink(), path.mkdir()),
        "expected a regular file of this store, found a (folder|pipe) instead.*",
    ),
    "a pipe": (
        lambda path: (path.unlink(), os.mkfifo(path)),
        "expected a regular file of this store, found a (folder|pipe) instead.*",
    ),
}


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_mask_file_that_is_not_the_shards_is_refused(small_masked: Path, damage: str, number: int) -> None:
    """P9, FMT-10: at open, or where sizes are not looked at then, before a bit of it is read; verify names it."""
    path = small_masked / f"mask-{number:05d}.bin"
    size = path.stat().st_size
    spoil, text = DAMAGE[damage]
    spoil(path)
    text = text.format(path, size, size - 1, size + 1) + rf" \(.*{path.name}\); copy or build"
    with pytest.raises(CorruptionError, match=text):
        open_store(small_masked)
    with open_store(small_masked, check="lazy") as store:
        document = store.shards()[number].first_document
        assert (store[document] == SMALL.tokens[document]).all()
        with pytest.raises(CorruptionError, match=text):
            store.loss_mask(document)
        others = [i for i in range(len(store)) if not 0 <= i - document < store.shards()[number].num_documents]
        assert [store.loss_mask(i).tolist() for i in others] == [SMALL.masks[i] for i in others]
    assert [finding.file for finding in verify(small_masked)] == [path.name]


@pytest.mark.parametrize(
    "number",
    [0, 1, 2, 3],
)
def test_masks_for_only_some_shards_are_refused(small_masked: Path, number: int) -> None:
    """FMT-10: one for every shard or for none, in the manifest as well."""
    edit_manifest(small_masked, lambda body: body["files"].pop(f"mask-{number:05d}.bin"))
    with pytest.raises(
        CorruptionError, match=rf"manifest files\[mask-{number:05d}\.bin\]: expected \d bytes?.*, found None"
    ):
        open_store(small_masked)
    (finding,) = verify(small_masked)
    assert finding.place == "open"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("more", [-1, 1, 2**40])
def test_a_size_that_no_mask_of_the_shard_has_is_refused(small_masked: Path, number: int, more: int) -> None:
    """FMT-10: ceil(num_tokens / 8) bytes, whatever the manifest says."""
    name = f"mask-{number:05d}.bin"
    edit_manifest(small_masked, lambda body: body["files"][name].update(num_bytes=len(SMALL_BITS[name]) + more))
    for check in ("sizes", "lazy"):
        with pytest.raises(
            CorruptionError, match=rf"files\[{name}\]: expected {len(SMALL_BITS[name])} bytes, found FileEntry"
        ):
            open_store(small_masked, check=check)


def test_a_store_whose_masks_are_taken_out_of_the_manifest_is_one_without(tmp_path: Path, small_masked: Path) -> None:
    """FMT-10, FMT-5: masks are optional: files that the manifest does not name are not read, and the digest says so."""
    edit_manifest(small_masked, lambda body: [body["files"].pop(name) for name in SMALL_BITS])
    bare = write_masked(tmp_path / "bare", SMALL, shard_bytes=20, masks=False)
    with open_store(small_masked) as store, open_store(bare) as other:
        assert store.digest == other.digest
        assert store.loss_mask(0).all()


# ---- verify


def test_verify_finds_every_flipped_bit(small_masked: Path) -> None:
    """P9: whichever bit of whichever mask, by its checksum, and it says which file."""
    assert verify(small_masked) == []
    for name, sound in SMALL_BITS.items():
        for bit in range(8 * len(sound)):
            overwrite(small_masked / name, flip(sound, bit))
            (finding,) = verify(small_masked)
            assert (finding.file, finding.place) == (name, f"bytes 0..{len(sound)}")
            assert str(finding).startswith(f"{name}: bytes 0..{len(sound)}: expected checksum ")
        overwrite(small_masked / name, sound)


@pytest.mark.parametrize(
    ("number", "data", "text"),
    [
        (0, [0b11001001, 0b00000110], "byte 1: expected 0 in bits 2 to 7, found 00000110"),
        (0, [0b11001001, 0b10000010], "byte 1: expected 0 in bits 2 to 7, found 10000010"),
        (1, [0b00001100], "byte 0: expected 0 in bits 3 to 7, found 00001100"),
        (2, [0b11111111, 0b11111011], "byte 1: expected 0 in bits 3 to 7, found 11111011"),
    ],
)
def test_verify_finds_bits_after_the_last_token(small_masked: Path, number: int, data: list[int], text: str) -> None:
    """FMT-10, P9: under a checksum that fits; what a reader gives is right all the same."""
    rewrite_mask(small_masked, number, bytes(data))
    name = f"mask-{number:05d}.bin"
    place, rule = text.split(": expected ")
    rule, found = rule.split(", found ")
    assert verify(small_masked) == [Finding(name, place, rule, found)]
    assert [str(finding) for finding in verify(small_masked)] == [f"{name}: {text}"]
    with open_store(small_masked) as store:
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == SMALL.masks


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_verify_accepts_every_mask_of_whole_bytes(small_masked: Path, fill: int) -> None:
    """FMT-10: a shard of a multiple of 8 tokens has no bits after its last token."""
    rewrite_mask(small_masked, 3, bytes([fill]))
    assert verify(small_masked) == []
    with open_store(small_masked) as store:
        assert store.loss_mask(-1).tolist() == [fill == 0xFF] * 7


def test_verify_lists_damaged_masks_beside_other_damage(small_masked: Path) -> None:
    """P9: all findings, also of bits after the last token of one mask where another is damaged."""
    rewrite_mask(small_masked, 1, b"\xff")
    overwrite(small_masked / "mask-00000.bin", b"\0")
    (small_masked / "mask-00003.bin").unlink()
    overwrite(small_masked / "tokens-00002.bin", b"\xff")
    assert sorted(finding.file for finding in verify(small_masked)) == [
        "mask-00000.bin",
        "mask-00001.bin",
        "mask-00003.bin",
        "tokens-00002.bin",
    ]


def test_a_disk_that_cannot_be_read_is_an_error(small_masked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error when a mask is mapped is a TokenStoreError that names the file."""
    store = open_store(small_masked)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(TokenStoreError, match=r"Input/output error .*mask-00000\.bin"):
        store.loss_mask(0)


def test_a_mask_of_a_shard_that_is_not_there_is_refused(small_masked: Path) -> None:
    """FMT-10: no other name begins with mask-."""
    edit_manifest(small_masked, lambda body: body["files"].update({"mask-00099.bin": body["files"]["mask-00000.bin"]}))
    with pytest.raises(
        CorruptionError, match=r"manifest files: expected one mask for each of 4 shards, found .*mask-00099"
    ):
        open_store(small_masked)
