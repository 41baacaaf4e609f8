"""Loss masks (FMT-10): the bits a writer makes, what a reader gives, and a store's identity."""

import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.forge import replace, seal
from tests.support.stores.masked import (
    REST,
    SMALL,
    SMALL_BITS,
    Documents,
    F,
    T,
    bits_by_hand,
    digest_of,
    mask_files,
    random_masked,
    rewrite_mask,
    write_masked,
)
from tokenstore.errors import CorruptionError
from tokenstore.store import open_store, verify
from tokenstore.store.length_index import add_length_index
from tokenstore.store.writer import FileWriter

# ---- the writer


def test_the_bits_of_a_small_store(small_masked: Path) -> None:
    """FMT-10: one file a shard, token t at bit t mod 8 from the lowest of byte t div 8, 0 after the last token."""
    assert mask_files(small_masked) == SMALL_BITS
    files = json.loads((small_masked / "manifest.json").read_bytes())["files"]
    assert {name: entry["num_bytes"] for name, entry in files.items() if name in SMALL_BITS} == {
        name: len(data) for name, data in SMALL_BITS.items()
    }
    assert {file.name for file in small_masked.iterdir()} == {
        *files,
        "manifest.json",
        *(f"tokens-{i:05d}.bin" for i in range(4)),
    }
    assert all(file.stat().st_mode & 0o777 == 0o444 for file in small_masked.iterdir())


@pytest.mark.parametrize("at_once", range(2, 8))
def test_the_files_do_not_depend_on_how_documents_come(tmp_path: Path, small_masked: Path, at_once: int) -> None:
    """FMT-10: documents given one by one or several at once, across shards, are the same store."""
    other = write_masked(tmp_path / "other", SMALL, shard_bytes=20, at_once=at_once)
    assert {file.name: file.read_bytes() for file in other.iterdir()} == {
        file.name: file.read_bytes() for file in small_masked.iterdir()
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
        starts = [shard.first_document for shard in store.shards()] + [len(store)]
        cut = [documents.masks[first:stop] for first, stop in itertools.pairwise(starts)]
        assert list(mask_files(path).values()) == [bits_by_hand(masks) for masks in cut]
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == documents.masks
        assert store.manifest.digest == digest_of(json.loads((path / "manifest.json").read_bytes()))
    assert verify(path) == []


def test_a_mask_where_none_is_expected_is_refused(tmp_path: Path) -> None:
    """FMT-10: for all shards or none: a store without masks takes none, and gets none."""
    tokens, lengths, mask = np.array([1, 2, 3], np.uint16), np.array([1, 2]), np.array([T, F, T])
    with FileWriter(tmp_path, 8, 1 << 20) as writer:
        with pytest.raises(ValueError, match=r"mask: expected none, because this store has no masks, found \(3,\)"):
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
    """FMT-10: a bit for every token: nothing of such a batch is kept, and the writer continues."""
    tokens, lengths = np.array([1, 2, 3], np.uint16), np.array([1, 2])
    with FileWriter(tmp_path, 8, 1 << 20, masks=True) as writer:
        with pytest.raises(ValueError, match=rf"mask: expected bool\[3\], found {found}$"):
            writer.append(tokens, lengths, mask)
        assert (writer.num_tokens, writer.num_documents) == (0, 0)
        writer.append(tokens, lengths, np.array([F, F, T]))
        assert writer.finish(**REST).has_masks
    assert mask_files(tmp_path) == {"mask-00000.bin": b"\x04"}


def test_no_documents_need_no_mask(tmp_path: Path) -> None:
    """An empty batch is none, with a mask or without."""
    with FileWriter(tmp_path, 8, 1 << 20, masks=True) as writer:
        writer.append(np.empty(0, np.uint16), np.empty(0, np.int64))
        writer.append(np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.bool_))
        writer.append(np.array([1], np.uint16), np.array([1]), np.array([T]))
        writer.finish(**REST)
    assert mask_files(tmp_path) == {"mask-00000.bin": b"\x01"}


# ---- the reader


def test_masks_come_back_by_document(small_masked: Path) -> None:
    """FMT-10: bool[n] of its own of each document, counted from either end, one-token documents and the last included."""
    with open_store(small_masked) as store:
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
def test_a_mask_of_no_document_is_an_index_error(small_masked: Path, index: int) -> None:
    """A document that is not there has no mask; in a store without masks neither."""
    with open_store(small_masked) as store, pytest.raises(IndexError):
        store.loss_mask(index)
    bare = write_masked(small_masked.parent / "bare", SMALL, masks=False)
    with open_store(bare) as store, pytest.raises(IndexError):
        store.loss_mask(index)


@pytest.mark.parametrize("index", ["0", 1.0, None, slice(0, 2)])
def test_a_mask_by_no_integer_is_a_type_error(small_masked: Path, index: object) -> None:
    """As for documents: an index is an integer."""
    with open_store(small_masked) as store, pytest.raises(TypeError):
        store.loss_mask(index)


def test_without_masks_every_token_is_in_the_loss(tmp_path: Path) -> None:
    """FMT-10: a store without masks learns all."""
    with open_store(write_masked(tmp_path / "s", SMALL, shard_bytes=20, masks=False)) as store:
        assert not store.manifest.has_masks
        for i, tokens in enumerate(SMALL.tokens):
            found = store.loss_mask(i)
            assert found.dtype == np.bool_
            assert found.tolist() == [True] * len(tokens)


def test_masks_survive_pickling_and_an_order_file(small_masked: Path) -> None:
    """FMT-9, FMT-10: a length index added later leaves masks and digest as they are."""
    with open_store(small_masked) as store:
        digest = store.digest
    assert add_length_index(small_masked)
    with pickle.loads(pickle.dumps(open_store(small_masked))) as store:
        assert (store.has_length_index, store.manifest.has_masks, store.digest) == (True, True, digest)
        assert [store.loss_mask(i).tolist() for i in range(len(store))] == SMALL.masks
    assert mask_files(small_masked) == SMALL_BITS


# ---- identity


def test_masks_are_part_of_the_identity(tmp_path: Path, small_masked: Path) -> None:
    """FMT-5: with masks, without, and with each other mask are different stores; the same masks are the same store."""
    stores = {"small": SMALL}
    for i, mask in enumerate(SMALL.masks):
        masks = [*SMALL.masks[:i], [not bit for bit in mask[:1]] + mask[1:], *SMALL.masks[i + 1 :]]
        stores[f"first of {i}"] = Documents(SMALL.tokens, masks)
    stores["all"] = Documents(SMALL.tokens, [[T] * len(mask) for mask in SMALL.masks])
    paths = {
        name: write_masked(tmp_path / name, made, shard_bytes=20) for name, made in stores.items() if made != SMALL
    }
    paths |= {"small": small_masked, "without": write_masked(tmp_path / "without", SMALL, shard_bytes=20, masks=False)}
    digests = {name: open_store(path).digest for name, path in paths.items()}
    assert len(set(digests.values())) == len(paths)
    assert open_store(write_masked(tmp_path / "again", SMALL, shard_bytes=20)).digest == digests["small"]


def test_the_digest_is_what_the_specification_says(small_masked: Path) -> None:
    """FMT-5: the checksums of the masks, in order, are in the digest with those of the shards; the order decides."""
    body = json.loads((small_masked / "manifest.json").read_bytes())
    assert body["digest"] == open_store(small_masked).digest == digest_of(body)
    one, other = (body["files"][name] for name in ("mask-00000.bin", "mask-00002.bin"))
    assert one["num_bytes"] == other["num_bytes"]
    body["files"]["mask-00000.bin"], body["files"]["mask-00002.bin"] = other, one
    assert digest_of(body) != body["digest"]


def test_a_digest_that_leaves_masks_out_is_refused(small_masked: Path) -> None:
    """FMT-5, P9: masks replaced together with their checksums, under the digest of before, are another store."""
    body = json.loads((small_masked / "manifest.json").read_bytes())
    rewrite_mask(small_masked, 0, bytes(2))
    edited = json.loads((small_masked / "manifest.json").read_bytes())
    assert edited["digest"] != body["digest"]
    replace(small_masked / "manifest.json", seal(edited, body["digest"]))
    with pytest.raises(CorruptionError, match="manifest digest: expected"):
        open_store(small_masked)


def test_a_mask_is_asked_for_like_a_document(small_masked: Path) -> None:
    """The same indices, and the same messages for others."""
    with open_store(small_masked) as store:
        for index in (len(store), -len(store) - 1):
            with pytest.raises(IndexError, match=rf"document: expected one of {len(store)}, found {index}"):
                store.loss_mask(index)
        with pytest.raises(TypeError, match="document: expected an integer, found slice"):
            store.loss_mask(slice(2))
