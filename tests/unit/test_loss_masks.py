"""Loss masks (FMT-10): the bits a writer makes, what a reader gives, identity, and what open and verify find wrong."""

import itertools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forge import flip, overwrite, replace, seal
from tests.masked import (
    REST,
    Documents,
    bits_by_hand,
    digest_of,
    edit_manifest,
    mask_files,
    random_masked,
    rewrite_mask,
    write_masked,
)
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import Finding, open_store, verify
from tokenstore.store.order_file import add_order
from tokenstore.store.writer import StoreWriter

T, F = True, False
# In shards of at most 10 tokens: three documents of 10, one of 3 that begins inside a byte of the stream, one of 11 that is
# larger than a shard, and two of 8 together
SMALL = Documents(
    [[7] * 3, [6], [5] * 6, [4] * 3, [3] * 11, [2], [1] * 7],
    [[T, F, F], [T], [F, F, T, T, F, T], [F, F, T], [T] * 10 + [F], [F], [T] * 7],
)
SMALL_BITS = {
    "mask-00000.bin": bytes([0b11001001, 0b00000010]),
    "mask-00001.bin": bytes([0b00000100]),
    "mask-00002.bin": bytes([0b11111111, 0b00000011]),
    "mask-00003.bin": bytes([0b11111110]),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store of SMALL."""
    return write_masked(tmp_path / "small", SMALL, shard_bytes=20)


# ---- the writer


def test_the_bits_of_a_small_store(small: Path) -> None:
    """FMT-10: one file a shard, token t at bit t mod 8 from the lowest of byte t div 8, 0 behind the last token."""
    assert mask_files(small) == SMALL_BITS
    files = json.loads((small / "manifest.json").read_bytes())["files"]
    assert {name: entry["num_bytes"] for name, entry in files.items() if name in SMALL_BITS} == {
        name: len(data) for name, data in SMALL_BITS.items()
    }
    assert {file.name for file in small.iterdir()} == {
        *files,
        "manifest.json",
        *(f"tokens-{i:05d}.bin" for i in range(4)),
    }
    assert all(file.stat().st_mode & 0o777 == 0o444 for file in small.iterdir())


@pytest.mark.parametrize("at_once", range(2, 8))
def test_the_files_do_not_depend_on_how_documents_come(tmp_path: Path, small: Path, at_once: int) -> None:
    """FMT-10: documents given one by one or several at once, across shards, are the same store."""
    other = write_masked(tmp_path / "other", SMALL, shard_bytes=20, at_once=at_once)
    assert {file.name: file.read_bytes() for file in other.iterdir()} == {
        file.name: file.read_bytes() for file in small.iterdir()
    }


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    shard_tokens=st.integers(1, 40),
    at_once=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_every_shard_has_the_bits_of_its_documents(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int, at_once: int, seed: int
) -> None:
    """FMT-10, FMT-2: wherever shards begin, inside a byte of the stream or not; and every mask comes back."""
    documents = random_masked(seed, lengths)
    path = write_masked(
        tmp_path_factory.mktemp("masks") / "s", documents, shard_bytes=2 * shard_tokens, at_once=at_once
    )
    with open_store(path) as store:
        firsts = [shard.first_document for shard in store.shards()] + [len(store)]
        cut = [documents.masks[first:stop] for first, stop in itertools.pairwise(firsts)]
        assert list(mask_files(path).values()) == [bits_by_hand(masks) for masks in cut]
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == documents.masks
        assert store.manifest.digest == digest_of(json.loads((path / "manifest.json").read_bytes()))
    assert verify(path) == []


def test_a_mask_where_none_is_expected_is_refused(tmp_path: Path) -> None:
    """FMT-10: for all shards or none: a store without masks takes none, and goes on without."""
    tokens, lengths, mask = np.array([1, 2, 3], np.uint16), np.array([1, 2]), np.array([T, F, T])
    with StoreWriter(tmp_path, 8, 1 << 20) as writer:
        with pytest.raises(ValueError, match=r"mask: expected none, as this store has no masks, found \(3,\)"):
            writer.append(tokens, lengths, mask)
        assert (writer.num_tokens, writer.num_documents) == (0, 0)
        writer.append(tokens, lengths)
        assert not writer.finish(**REST).has_masks
    assert mask_files(tmp_path) == {}


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (None, "None"),
        (np.array([T, F]), r"\(2,\)"),
        (np.array([T, F, T, T]), r"\(4,\)"),
        (np.array([[T, F, T]]), r"\(1, 3\)"),
        (np.array(T), r"\(\)"),
        (np.empty(0, np.bool_), r"\(0,\)"),
    ],
)
def test_a_missing_mask_or_one_of_another_shape_is_refused(tmp_path: Path, mask: np.ndarray, found: str) -> None:
    """FMT-10: a bit for every token: nothing of such a batch is kept, and the writer goes on."""
    tokens, lengths = np.array([1, 2, 3], np.uint16), np.array([1, 2])
    with StoreWriter(tmp_path, 8, 1 << 20, masks=True) as writer:
        with pytest.raises(ValueError, match=rf"mask: expected bool\[3\], found {found}$"):
            writer.append(tokens, lengths, mask)
        assert (writer.num_tokens, writer.num_documents) == (0, 0)
        writer.append(tokens, lengths, np.array([F, F, T]))
        assert writer.finish(**REST).has_masks
    assert mask_files(tmp_path) == {"mask-00000.bin": b"\x04"}


def test_no_documents_need_no_mask(tmp_path: Path) -> None:
    """An empty batch is none, with a mask or without."""
    with StoreWriter(tmp_path, 8, 1 << 20, masks=True) as writer:
        writer.append(np.empty(0, np.uint16), np.empty(0, np.int64))
        writer.append(np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.bool_))
        writer.append(np.array([1], np.uint16), np.array([1]), np.array([T]))
        writer.finish(**REST)
    assert mask_files(tmp_path) == {"mask-00000.bin": b"\x01"}


# ---- the reader


def test_masks_come_back_by_document(small: Path) -> None:
    """FMT-10: bool[n] of its own of each document, counted from either end, one-token documents and the last included."""
    with open_store(small) as store:
        assert store.manifest.has_masks
        for i, mask in enumerate(SMALL.masks):
            for index in (i, i - len(store), np.int64(i)):
                found = store.loss_mask(index)
                assert found.dtype == np.bool_
                assert found.tolist() == mask
            found[:] = False  # a copy
            assert store.loss_mask(i).tolist() == mask
        assert store.loss_mask(-1).tolist() == [T] * 7


@pytest.mark.parametrize("index", [7, -8, 10**30])
def test_a_mask_of_no_document_is_an_index_error(small: Path, index: int) -> None:
    """A document that is not there has no mask; in a store without masks neither."""
    with open_store(small) as store, pytest.raises(IndexError):
        store.loss_mask(index)
    bare = write_masked(small.parent / "bare", SMALL, masks=False)
    with open_store(bare) as store, pytest.raises(IndexError):
        store.loss_mask(index)


@pytest.mark.parametrize("index", ["0", 1.0, None, slice(0, 2)])
def test_a_mask_by_no_integer_is_a_type_error(small: Path, index: object) -> None:
    """As for documents: an index is an integer."""
    with open_store(small) as store, pytest.raises(TypeError):
        store.loss_mask(index)


def test_without_masks_every_token_is_to_be_learned(tmp_path: Path) -> None:
    """FMT-10: a store without masks learns all."""
    with open_store(write_masked(tmp_path / "s", SMALL, shard_bytes=20, masks=False)) as store:
        assert not store.manifest.has_masks
        for i, tokens in enumerate(SMALL.tokens):
            found = store.loss_mask(i)
            assert found.dtype == np.bool_
            assert found.tolist() == [True] * len(tokens)


def test_masks_survive_pickling_and_an_order_file(small: Path) -> None:
    """FMT-9, FMT-10: an order file added later leaves masks and digest as they are."""
    with open_store(small) as store:
        digest = store.digest
    assert add_order(small)
    with pickle.loads(pickle.dumps(open_store(small))) as store:
        assert (store.has_order, store.manifest.has_masks, store.digest) == (True, True, digest)
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == SMALL.masks
    assert mask_files(small) == SMALL_BITS


# ---- identity


def test_masks_are_part_of_the_identity(tmp_path: Path, small: Path) -> None:
    """FMT-5: with masks, without, and with each other mask are different stores; the same masks are the same store."""
    stores = {"small": SMALL}
    for i, mask in enumerate(SMALL.masks):
        masks = [*SMALL.masks[:i], [not bit for bit in mask[:1]] + mask[1:], *SMALL.masks[i + 1 :]]
        stores[f"first of {i}"] = Documents(SMALL.tokens, masks)
    stores["all"] = Documents(SMALL.tokens, [[T] * len(mask) for mask in SMALL.masks])
    paths = {
        name: write_masked(tmp_path / name, made, shard_bytes=20) for name, made in stores.items() if made != SMALL
    }
    paths |= {"small": small, "without": write_masked(tmp_path / "without", SMALL, shard_bytes=20, masks=False)}
    digests = {name: open_store(path).digest for name, path in paths.items()}
    assert len(set(digests.values())) == len(paths)
    assert open_store(write_masked(tmp_path / "again", SMALL, shard_bytes=20)).digest == digests["small"]


def test_the_digest_is_what_the_specification_says(small: Path) -> None:
    """FMT-5: the checksums of the masks, in order, stand beside those of the shards; the order decides."""
    body = json.loads((small / "manifest.json").read_bytes())
    assert body["digest"] == open_store(small).digest == digest_of(body)
    one, other = (body["files"][name] for name in ("mask-00000.bin", "mask-00002.bin"))
    assert one["num_bytes"] == other["num_bytes"]
    body["files"]["mask-00000.bin"], body["files"]["mask-00002.bin"] = other, one
    assert digest_of(body) != body["digest"]


def test_a_digest_that_leaves_masks_out_is_refused(small: Path) -> None:
    """FMT-5, P9: masks replaced together with their checksums, under the digest of before, are another store."""
    body = json.loads((small / "manifest.json").read_bytes())
    rewrite_mask(small, 0, bytes(2))
    edited = json.loads((small / "manifest.json").read_bytes())
    assert edited["digest"] != body["digest"]
    replace(small / "manifest.json", seal(edited, body["digest"]))
    with pytest.raises(CorruptionError, match="manifest digest: expected"):
        open_store(small)


# ---- what open refuses

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "expected {0.name}, found none"),
    "empty": (lambda path: replace(path, b""), "file size: expected {1} bytes, found 0"),
    "a byte less": (lambda path: replace(path, path.read_bytes()[:-1]), "file size: expected {1} bytes, found {2}"),
    "a byte more": (lambda path: replace(path, path.read_bytes() + b"\0"), "file size: expected {1} bytes, found {3}"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "expected a regular file, found something else"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "expected a regular file, found something else"),
}


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_mask_file_that_is_not_the_shards_is_refused(small: Path, damage: str, number: int) -> None:
    """P9, FMT-10: at open, or where sizes are not looked at then, before a bit of it is read; verify names it."""
    path = small / f"mask-{number:05d}.bin"
    size = path.stat().st_size
    spoil, text = DAMAGE[damage]
    spoil(path)
    text = text.format(path, size, size - 1, size + 1) + rf" \(.*{path.name}\); copy or build"
    with pytest.raises(CorruptionError, match=text):
        open_store(small)
    with open_store(small, check="lazy") as store:
        document = store.shards()[number].first_document
        assert (store[document] == SMALL.tokens[document]).all()
        with pytest.raises(CorruptionError, match=text):
            store.loss_mask(document)
        others = [i for i in range(len(store)) if not 0 <= i - document < store.shards()[number].num_documents]
        assert [store.loss_mask(i).tolist() for i in others] == [SMALL.masks[i] for i in others]
    assert [finding.file for finding in verify(small)] == [path.name]


@pytest.mark.parametrize(
    "number",
    [0, 1, 2, 3],
)
def test_masks_for_only_some_shards_are_refused(small: Path, number: int) -> None:
    """FMT-10: one for every shard or for none, in the manifest as well."""
    edit_manifest(small, lambda body: body["files"].pop(f"mask-{number:05d}.bin"))
    with pytest.raises(
        CorruptionError, match=rf"manifest files\[mask-{number:05d}\.bin\]: expected \d bytes?.*, found None"
    ):
        open_store(small)
    (finding,) = verify(small)
    assert finding.place == "open"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("more", [-1, 1, 2**40])
def test_a_size_that_no_mask_of_the_shard_has_is_refused(small: Path, number: int, more: int) -> None:
    """FMT-10: ceil(num_tokens / 8) bytes, whatever the manifest says."""
    name = f"mask-{number:05d}.bin"
    edit_manifest(small, lambda body: body["files"][name].update(num_bytes=len(SMALL_BITS[name]) + more))
    for check in ("sizes", "lazy"):
        with pytest.raises(
            CorruptionError, match=rf"files\[{name}\]: expected {len(SMALL_BITS[name])} bytes, found FileEntry"
        ):
            open_store(small, check=check)


def test_a_store_whose_masks_are_taken_out_of_the_manifest_is_one_without(tmp_path: Path, small: Path) -> None:
    """FMT-10, FMT-5: masks are optional: files that the manifest does not name are not read, and the digest says so."""
    edit_manifest(small, lambda body: [body["files"].pop(name) for name in SMALL_BITS])
    bare = write_masked(tmp_path / "bare", SMALL, shard_bytes=20, masks=False)
    with open_store(small) as store, open_store(bare) as other:
        assert store.digest == other.digest
        assert store.loss_mask(0).all()


# ---- verify


def test_verify_finds_every_flipped_bit(small: Path) -> None:
    """P9: whichever bit of whichever mask, by its checksum, and it says which file."""
    assert verify(small) == []
    for name, sound in SMALL_BITS.items():
        for bit in range(8 * len(sound)):
            overwrite(small / name, flip(sound, bit))
            (finding,) = verify(small)
            assert (finding.file, finding.place) == (name, f"bytes 0..{len(sound)}")
            assert str(finding).startswith(f"{name}: bytes 0..{len(sound)}: expected checksum ")
        overwrite(small / name, sound)


@pytest.mark.parametrize(
    ("number", "data", "text"),
    [
        (0, [0b11001001, 0b00000110], "byte 1: expected bits from 2 on to be 0, found 00000110"),
        (0, [0b11001001, 0b10000010], "byte 1: expected bits from 2 on to be 0, found 10000010"),
        (1, [0b00001100], "byte 0: expected bits from 3 on to be 0, found 00001100"),
        (2, [0b11111111, 0b11111011], "byte 1: expected bits from 3 on to be 0, found 11111011"),
    ],
)
def test_verify_finds_bits_behind_the_last_token(small: Path, number: int, data: list[int], text: str) -> None:
    """FMT-10, P9: under a checksum that fits; what a reader gives is right all the same."""
    rewrite_mask(small, number, bytes(data))
    name = f"mask-{number:05d}.bin"
    place, rule = text.split(": expected ")
    rule, found = rule.split(", found ")
    assert verify(small) == [Finding(name, place, rule, found)]
    assert [str(finding) for finding in verify(small)] == [f"{name}: {text}"]
    with open_store(small) as store:
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == SMALL.masks


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_verify_accepts_every_mask_of_whole_bytes(small: Path, fill: int) -> None:
    """FMT-10: a shard of a multiple of 8 tokens has no bits behind its last token."""
    rewrite_mask(small, 3, bytes([fill]))
    assert verify(small) == []
    with open_store(small) as store:
        assert store.loss_mask(-1).tolist() == [fill == 0xFF] * 7


def test_verify_lists_damaged_masks_beside_other_damage(small: Path) -> None:
    """P9: all findings, also of bits behind the last token of one mask where another is damaged."""
    rewrite_mask(small, 1, b"\xff")
    overwrite(small / "mask-00000.bin", b"\0")
    (small / "mask-00003.bin").unlink()
    overwrite(small / "tokens-00002.bin", b"\xff")
    assert sorted(finding.file for finding in verify(small)) == [
        "mask-00000.bin",
        "mask-00001.bin",
        "mask-00003.bin",
        "tokens-00002.bin",
    ]


def test_a_disk_that_cannot_be_read_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error when a mask is mapped is a TokenStoreError that names the file."""
    store = open_store(small)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(TokenStoreError, match=r"Input/output error .*mask-00000\.bin"):
        store.loss_mask(0)


def test_a_mask_of_a_shard_that_is_not_there_is_refused(small: Path) -> None:
    """FMT-10: no other name begins with mask-."""
    edit_manifest(small, lambda body: body["files"].update({"mask-00099.bin": body["files"]["mask-00000.bin"]}))
    with pytest.raises(
        CorruptionError, match=r"manifest files: expected one mask for each of 4 shards, found .*mask-00099"
    ):
        open_store(small)


def test_a_mask_is_asked_for_like_a_document(small: Path) -> None:
    """The same indices, and the same messages for others."""
    with open_store(small) as store:
        for index in (len(store), -len(store) - 1):
            with pytest.raises(IndexError, match=rf"document: expected one of {len(store)}, found {index}"):
                store.loss_mask(index)
        with pytest.raises(TypeError, match="document: expected an integer, found slice"):
            store.loss_mask(slice(2))
