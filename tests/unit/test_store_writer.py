"""The writer of a store: where shards end, what is refused, what is left if it stops."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.stores.forge import replace
from tests.support.stores.masked import REST
from tokenstore.errors import BuildError, FormatError
from tokenstore.format.manifest_file import decode_manifest
from tokenstore.store import open_store, verify
from tokenstore.store.writer import FileWriter


def expected_shards(lengths: list[int], target: int) -> list[list[int]]:
    """FMT-2 one document at a time: a new shard before the document that would make this one too large."""
    shards: list[list[int]] = [[]]
    for length in lengths:
        if shards[-1] and sum(shards[-1]) + length > target:
            shards.append([])
        shards[-1].append(length)
    return shards


@given(
    st.lists(st.one_of(st.integers(1, 12), st.integers(1, 60)), min_size=1, max_size=40),
    st.integers(0, 90),
    st.data(),
)
@example([10, 10, 10], 40, None)
@example([100], 2, None)
@example([1, 100, 1], 20, None)
def test_a_document_never_straddles_shards(lengths: list[int], shard_bytes: int, data: st.DataObject | None) -> None:
    """FMT-2, P8: shards end where the rule says, for any batches; only a larger document makes a larger shard;
    documents are read as written.
    """
    documents = np.split(np.arange(sum(lengths), dtype=np.uint32) % 300, np.cumsum(lengths)[:-1])
    cuts = sorted({0, len(lengths), *(data.draw(st.sets(st.integers(0, len(lengths)), max_size=5)) if data else ())})
    with tempfile.TemporaryDirectory() as folder:
        with FileWriter(Path(folder), 300, shard_bytes) as writer:
            for first, stop in itertools.pairwise(cuts):
                writer.append(np.concatenate(documents[first:stop]), np.array(lengths[first:stop]))
            manifest = writer.finish(**REST)
        target = max(1, shard_bytes // 2)
        shards = expected_shards(lengths, target)
        assert [shard.num_documents for shard in manifest.shards] == [len(shard) for shard in shards]
        assert all(sum(shard) <= target or len(shard) == 1 for shard in shards)
        assert decode_manifest((Path(folder) / "manifest.json").read_bytes(), folder) == manifest
        assert verify(folder) == []
        with open_store(folder) as store:
            assert [d.tolist() for d in store] == [d.tolist() for d in documents]


@pytest.mark.parametrize("vocab_size", [1, 8, 256, 65_535, 65_536, 65_537, (1 << 32) - 1])
@pytest.mark.parametrize("over", [0, 1, 65_536, 1 << 32])
def test_an_id_outside_the_vocabulary_is_refused_and_never_wraps(tmp_path: Path, vocab_size: int, over: int) -> None:
    """P9: an id that would wrap in uint16 or uint32 is refused before any of its batch is written."""
    with FileWriter(tmp_path, vocab_size, 1 << 20) as writer:
        writer.append(np.array([vocab_size - 1], np.uint64), np.array([1]))
        with pytest.raises(BuildError, match=rf"expected token ids below {vocab_size}, found {vocab_size + over};"):
            writer.append(np.array([0, 0, vocab_size + over, 0], np.uint64), np.array([1, 3]))
        assert (writer.num_tokens, writer.num_documents) == (1, 1)
        writer.finish(**REST)
    with open_store(tmp_path) as store:
        assert [d.tolist() for d in store] == [[vocab_size - 1]]


@pytest.mark.parametrize(
    "tokens", [np.array([5, -1]), np.array([-1, -1], np.int32), np.array([1.0, 0.5]), np.array([True])]
)
def test_tokens_that_are_not_unsigned_integers_are_refused(tmp_path: Path, tokens: np.ndarray) -> None:
    """P9: a negative id would wrap and a fraction be truncated: the dtype is refused, whatever the values."""
    with FileWriter(tmp_path, 65_536, 1 << 20) as writer:
        with pytest.raises(TypeError, match=f"tokens: expected unsigned integers, found {tokens.dtype}"):
            writer.append(tokens, np.array([tokens.size]))
        assert writer.num_tokens == 0


@pytest.mark.parametrize("lengths", [[3], [1], [1, 0, 1], [3, -1], [0], [2, 0]])
def test_lengths_that_do_not_fit_the_tokens_are_refused(tmp_path: Path, lengths: list[int]) -> None:
    """FMT-3: documents have at least one token, and their lengths add up to the tokens."""
    with FileWriter(tmp_path, 8, 1 << 20) as writer:
        with pytest.raises(ValueError, match="lengths: expected 2 tokens in documents of at least 1"):
            writer.append(np.array([1, 2], np.uint16), np.array(lengths))
        assert writer.num_documents == 0


def test_a_store_needs_a_document(tmp_path: Path) -> None:
    """An empty batch does not count; nothing that opens is left."""
    with FileWriter(tmp_path, 8, 1 << 20) as writer:
        writer.append(np.array([], np.uint16), np.array([], np.int64))
        with pytest.raises(BuildError, match="documents: there are none to write"):
            writer.finish(**REST)
    with pytest.raises(FormatError, match=r"without manifest\.json"):
        open_store(tmp_path)


def test_nothing_is_a_store_before_the_manifest_is_written(tmp_path: Path) -> None:
    """FMT-7: the manifest is written last, so a writer that stops at any point leaves nothing that opens."""
    with FileWriter(tmp_path, 8, 4) as writer:
        for _ in range(5):
            writer.append(np.array([1, 2], np.uint16), np.array([2]))
        with pytest.raises(FormatError, match=r"without manifest\.json"):
            open_store(tmp_path)


def test_a_finished_store_has_no_leftovers_and_cannot_be_written(store_path: Path) -> None:
    """FMT-1, P9: exactly the files of the manifest, all of them read-only."""
    with open_store(store_path) as store:
        names = {"manifest.json", *store.manifest.files, *(shard.file for shard in store.shards())}
    assert {file.name for file in store_path.iterdir()} == names
    assert all(file.stat().st_mode & 0o777 == 0o444 for file in store_path.iterdir())


def test_side_files_are_listed_in_the_manifest(tmp_path: Path) -> None:
    """FMT-4: a side file is stored unchanged, with size and checksum; verify detects a change."""
    with FileWriter(tmp_path, 8, 1 << 20) as writer:
        writer.append(np.array([1, 2], np.uint16), np.array([2]))
        writer.add_file("tokenizer.json", b'{"made": "up"}')
        manifest = writer.finish(**{**REST, "inputs": b'{"file": "a.txt"}\n'})
    assert sorted(manifest.files) == ["boundaries.bin", "inputs.jsonl", "tokenizer.json"]
    assert (tmp_path / "inputs.jsonl").read_bytes() == b'{"file": "a.txt"}\n'
    assert verify(tmp_path) == []
    replace(tmp_path / "tokenizer.json", b'{"made": "UP"}')
    assert [finding.file for finding in verify(tmp_path)] == ["tokenizer.json"]
