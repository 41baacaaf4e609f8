"""Stores that have sizes and no data: for plans over more tokens than any disk here holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokenstore.format.layout import BOUNDARIES_NAME, boundaries_bytes, shard_name
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry

SHARD_TOKENS = 1 << 29


def manifest(num_tokens: int, num_documents: int) -> Manifest:
    """A manifest of equal documents in shards of 2**29 tokens."""
    shards, token = [], 0
    count = -(-num_tokens // SHARD_TOKENS)
    for i in range(count):
        size = min(SHARD_TOKENS, num_tokens - token)
        first, stop = num_documents * i // count, num_documents * (i + 1) // count
        shards.append(ShardEntry(shard_name(i), size * 2, size, token, stop - first, first, f"{i}"))
        token += size
    files = {BOUNDARIES_NAME: FileEntry(boundaries_bytes(num_documents, num_tokens), f"{num_documents}")}
    tokenizer = TokenizerEntry("bytes", None, None, None, None, None, "tests", "1")
    return Manifest("uint16", 300, num_tokens, num_documents, False, tokenizer, tuple(shards), files, {}, {}, {})


class VirtualStore:
    """What a Plan asks of a Store before it reads."""

    has_length_index = False
    url = None
    token_files = None

    def __init__(self, name: str, num_tokens: int, num_documents: int):
        self.path = Path("/virtual") / name
        self.manifest = replace(manifest(num_tokens, num_documents), package_versions={"name": name})
        self.num_tokens, self.vocab_size, self.dtype = num_tokens, 300, np.dtype("<u2")
        self.digest = f"{name}-{num_tokens}"

    def __len__(self) -> int:
        return self.manifest.num_documents

    def number_of(self, name: str) -> int:
        return len(self.manifest.shards)  # the boundaries: there is no other file

    def shards(self) -> tuple[ShardEntry, ...]:
        return self.manifest.shards


@pytest.fixture
def virtual_stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, VirtualStore]:
    """A dict: put VirtualStores in, and plans over the paths that are its keys use them."""
    stores: dict[str, VirtualStore] = {}
    monkeypatch.setattr("tokenstore.planning.feasibility.open_store", lambda path, **options: stores[str(path)])
    return stores
