"""FMT-14: shards that begin after a header, dtypes larger than needed, and adopted.json."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.support.stores.manifests import MANIFEST, PLACE
from tokenstore import open_store
from tokenstore.errors import CorruptionError
from tokenstore.format.adopted import Adopted, AdoptedFile, decode_adopted, encode_adopted
from tokenstore.format.manifest import FileEntry, Manifest
from tokenstore.format.manifest_file import decode_manifest, encode_manifest

FILES = {**MANIFEST.files, "adopted.json": FileEntry(100, "5" * 32)}
ADOPTED = Adopted("llmc", "eos", "start", 7, (AdoptedFile("tokens-00000.bin", (), 1, 2, 3),))


def shards(manifest: Manifest, **fields: Any) -> Manifest:
    return replace(manifest, shards=(replace(manifest.shards[0], **fields), *manifest.shards[1:]))


def decoded(manifest: Manifest) -> Manifest:
    return decode_manifest(encode_manifest(manifest), PLACE)


def test_only_an_adopted_store_has_shards_that_begin_after_a_header() -> None:
    """FMT-14: first_byte is a multiple of the size of the dtype, and counts in num_bytes."""
    made = shards(replace(MANIFEST, files=FILES), first_byte=1024, num_bytes=13024)
    assert decoded(made).shards[0].first_byte == 1024
    with pytest.raises(CorruptionError, match="first_byte: expected 0, because the store is not adopted, found 1024"):
        decoded(shards(MANIFEST, first_byte=1024, num_bytes=13024))
    with pytest.raises(CorruptionError, match="first_byte: expected a multiple of 2, found 3"):
        decoded(shards(replace(MANIFEST, files=FILES), first_byte=3, num_bytes=12003))
    with pytest.raises(CorruptionError, match="num_bytes = "):
        decoded(shards(replace(MANIFEST, files=FILES), first_byte=1024))


def test_only_an_adopted_store_may_have_a_larger_dtype_than_it_needs() -> None:
    """FMT-2, FMT-14: 300 ids fit in uint16, but an adopted file may hold them as uint32."""
    wide = replace(
        MANIFEST, dtype="uint32", shards=tuple(replace(s, num_bytes=2 * s.num_bytes) for s in MANIFEST.shards)
    )
    assert decoded(replace(wide, files=FILES)).dtype == "uint32"
    with pytest.raises(CorruptionError, match="dtype: expected uint16 for 300 ids, found uint32"):
        decoded(wide)
    with pytest.raises(CorruptionError, match="dtype: expected uint32 for 70000 ids, found uint16"):
        decoded(replace(MANIFEST, files=FILES, vocab_size=70_000))


def test_a_huge_adopted_json_is_not_read() -> None:
    """Its size is limited by the number of shards."""
    with pytest.raises(CorruptionError, match="at most 3072, found 3073"):
        decoded(replace(MANIFEST, files={**FILES, "adopted.json": FileEntry(3073, "5" * 32)}))


def test_adopted_json_is_decoded_as_it_was_encoded() -> None:
    """FMT-14: every field."""
    assert decode_adopted(encode_adopted(ADOPTED), "place") == ADOPTED


@pytest.mark.parametrize(
    "edit",
    [
        {"format": "mds"},
        {"cut": None},
        {"eos_at": 5},
        {"eos_id": -1},
        {"eos_id": True},
        {"files": {}},
        {"files": [{}]},
        {"extra": 1},
        {"files": [{"shard": 5, "index": [], "device": 1, "inode": 1, "modified": 1}]},
        {"files": [{"shard": "x", "index": ["a"] * 5, "device": 1, "inode": 1, "modified": 1}]},
        {"files": [{"shard": "x", "index": [5], "device": 1, "inode": 1, "modified": 1}]},
        {"files": [{"shard": "x", "index": [], "device": 1.5, "inode": 1, "modified": 1}]},
        {"files": [{"shard": "x", "index": [], "device": 1, "inode": 1, "modified": 1 << 64}]},
    ],
)
def test_a_damaged_adopted_json_is_refused(edit: dict) -> None:
    """FMT-14: every field has a type and a range."""
    with pytest.raises(CorruptionError, match=r"adopted: expected .* \(place\); adopt the files again"):
        decode_adopted(json.dumps({**json.loads(encode_adopted(ADOPTED)), **edit}).encode(), "place")
    with pytest.raises(CorruptionError, match="adopted: expected"):
        decode_adopted(b"[" * 100_000, "place")


@pytest.fixture
def adopted(make_store: Callable[..., Path]) -> Path:
    """A store whose first shard has a header of 8 bytes, and an adopted.json with its identity."""
    path = make_store("s", [[7, 1], [5, 5, 1]], vocab_size=8)
    shard = path / "tokens-00000.bin"
    data = b"a header" + shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data)
    found = shard.stat()
    entry = AdoptedFile(shard.name, (), found.st_dev, found.st_ino, found.st_mtime_ns)
    record = encode_adopted(replace(ADOPTED, files=(entry,)))
    (path / "adopted.json").write_bytes(record)
    manifest = decode_manifest((path / "manifest.json").read_bytes(), "place")
    files = {**manifest.files, "adopted.json": FileEntry(len(record), xxhash.xxh3_128_hexdigest(record))}
    made = replace(manifest, files=files)
    made = shards(made, first_byte=8, num_bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_bytes(encode_manifest(made))
    return path


def test_tokens_are_read_from_the_first_byte_on(adopted: Path) -> None:
    """FMT-14: the header is not part of any document."""
    with open_store(adopted) as store:
        assert [document.tolist() for document in store] == [[7, 1], [5, 5, 1]]
        assert store.shard(0).tolist() == np.array([7, 1, 5, 5, 1]).tolist()


def test_a_linked_file_that_was_written_to_is_found_at_open(adopted: Path) -> None:
    """FMT-14: the same inode with another time is an error; a copy of the store has no recorded inode."""
    shard = adopted / "tokens-00000.bin"
    os.utime(shard, ns=(1, 1))
    with pytest.raises(CorruptionError, match=r"modification time \d+ ns, as when it was adopted, found 1 ns"):
        open_store(adopted)
    data = shard.read_bytes()
    shard.rename(adopted.parent / "other")
    shard.write_bytes(data)
    assert len(open_store(adopted)) == 2
