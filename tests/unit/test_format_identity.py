"""The digest, a store's identity (FMT-5): what changes it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.manifests import MANIFEST
from tokenstore.format.manifest import FileEntry
from tokenstore.store import open_store


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"other": 1}},
        {"package_versions": {"tokenstore": "9.9"}},
        {"counts": {"documents": 6}},
        {"files": {**MANIFEST.files, "inputs.jsonl": FileEntry(1, "9" * 32), "more.txt": FileEntry(5, "8" * 32)}},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, file=None, engine="other", engine_version="2", pad_id=7)},
        {"shards": tuple(dataclasses.replace(s, file="x" + s.file) for s in MANIFEST.shards)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_covers_only_the_content(changes: dict[str, Any]) -> None:
    """FMT-5: versions, options, counts, names and side files are not part of a store's identity."""
    assert dataclasses.replace(MANIFEST, **changes).digest == MANIFEST.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "uint32"},
        {"vocab_size": 301},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, kind="bytes")},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, sha256=None)},
        {"shards": (dataclasses.replace(MANIFEST.shards[0], checksum="f" * 32), MANIFEST.shards[1])},
        {"shards": (dataclasses.replace(MANIFEST.shards[0], num_tokens=5999), MANIFEST.shards[1])},
        {"shards": MANIFEST.shards[::-1]},
        {"files": {**MANIFEST.files, "boundaries.bin": FileEntry(72, "f" * 32)}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_changes_with_content(changes: dict[str, Any]) -> None:
    """FMT-5: dtype, vocabulary, tokenizer, tokens, their order and the boundaries are a store's identity."""
    assert dataclasses.replace(MANIFEST, **changes).digest != MANIFEST.digest


def test_different_content_has_different_digests(make_store: Callable[..., Path]) -> None:
    """FMT-5: on real stores: equal content has equal digests, every change of content another one."""
    stores = {
        "same": ([[7, 1], [5, 5, 1]], 8),
        "token": ([[7, 1], [5, 6, 1]], 8),
        "boundary": ([[7, 1, 5], [5, 1]], 8),
        "length_index": ([[5, 5, 1], [7, 1]], 8),
        "vocabulary": ([[7, 1], [5, 5, 1]], 9),
        "wide": ([[7, 1], [5, 5, 1]], 65_537),
    }
    digests = {
        name: open_store(make_store(name, documents, vocab_size=v)).digest for name, (documents, v) in stores.items()
    }
    assert len(set(digests.values())) == len(stores)
    assert open_store(make_store("again", [[7, 1], [5, 5, 1]], vocab_size=8)).digest == digests["same"]
