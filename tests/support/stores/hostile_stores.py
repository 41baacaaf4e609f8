"""Small stores to be damaged, and what an error about the damage must say (P9)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenstore
from tests.conftest import random_documents, write_store
from tests.support.stores.forge import flip
from tokenstore.errors import TokenStoreError
from tokenstore.store import open_store, verify


def make_small(path: Path, vocab_size: int = 300) -> Path:
    """30 documents of 1..20 tokens in 4 shards, one lookup entry."""
    shard_bytes = 100 * (2 if vocab_size <= 65_536 else 4)
    return write_store(path, random_documents(1, 30, 20, vocab_size), vocab_size, shard_bytes)


def make_wide(path: Path) -> Path:
    """The same in uint32."""
    return make_small(path, 70_000)


def make_long(path: Path) -> Path:
    """12 documents of up to 5,000 tokens in 3 shards, 6 lookup entries."""
    return write_store(path, [*random_documents(2, 11, 2000), [7] * 5000], shard_bytes=15_000)


STORES = {"small": make_small, "wide": make_wide, "long": make_long}


def check_message(error: object, *parts: object) -> None:
    """A message says what is wrong, where, and what to do."""
    text = str(error)
    frame = r"expected .*, found .*\(.*\); [\w`]|no store at .*: found .*; \w|cannot .*: .*; \w|is not finished; \w|\(.*\); (the file|run `)"
    assert re.search(frame, text, re.DOTALL), text
    assert all(str(part) in text for part in parts), text
    assert len(text) < 1000


def refused(path: Path, *parts: object) -> TokenStoreError:
    """Opening the store is refused in every way there is, naming path and `parts`; verify reports the same, and returns."""
    with pytest.raises(TokenStoreError) as caught:
        open_store(path)
    check_message(caught.value, path, *parts)
    with pytest.raises(TokenStoreError):
        tokenstore.Plan.of(path, sequence_length=8, global_batch_size=4, num_steps=1, packing="concat")
    findings = verify(path)
    assert any(all(str(part) in str(finding) for part in parts) for finding in findings), findings
    return caught.value


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def flips(path: Path, name: str, all_bits: bool) -> Iterator[bytes]:
    """The file with one bit turned over: every bit, or in every byte one at random."""
    sound = (path / name).read_bytes()
    rng = np.random.default_rng(len(sound))
    for byte in range(len(sound)):
        for bit in range(8) if all_bits else (int(rng.integers(8)),):
            yield flip(sound, 8 * byte + bit)
