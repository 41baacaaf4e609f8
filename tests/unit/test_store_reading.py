"""Reading a store."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.opened import DOCUMENTS
from tokenstore.store import Store, open_store


def test_a_store_is_the_sequence_of_its_documents(store: Store) -> None:
    """len, [i], [-i], iteration forwards and backwards return the documents that were written."""
    assert len(store) == len(DOCUMENTS)
    assert [store[i].tolist() for i in range(len(store))] == DOCUMENTS
    assert [store[-i].tolist() for i in range(1, len(store) + 1)] == DOCUMENTS[::-1]
    assert [document.tolist() for document in store] == DOCUMENTS
    assert [document.tolist() for document in reversed(store)] == DOCUMENTS[::-1]
    assert store[np.int64(7)].tolist() == store[np.uint8(7)].tolist() == DOCUMENTS[7]


def test_a_store_has_the_properties_of_its_content(store: Store) -> None:
    """num_tokens, vocab_size, dtype, digest and shards."""
    assert store.num_tokens == sum(map(len, DOCUMENTS)) == sum(shard.num_tokens for shard in store.shards())
    assert (store.vocab_size, store.dtype) == (300, np.dtype("<u2"))
    assert store.digest == store.manifest.digest
    assert f"{len(store)} documents" in repr(store)
    assert [store.shard(i).size for i in range(len(store.shards()))] == [s.num_tokens for s in store.shards()]


@pytest.mark.parametrize("index", [50, -51, 10**30, -(10**30)])
def test_a_document_that_is_not_there_is_an_index_error(store: Store, index: int) -> None:
    """The IndexError says how many documents there are."""
    with pytest.raises(IndexError, match=r"document: expected one of 50, found -?\d+ \(.*web\)"):
        store[index]


@pytest.mark.parametrize("index", [1.0, "1", None, slice(2), [1], np.float32(1)])
def test_an_index_that_is_not_an_integer_is_a_type_error(store: Store, index: object) -> None:
    """Slices are refused, because they would have to copy."""
    with pytest.raises(TypeError, match="document: expected an integer, found"):
        store[index]


def test_documents_are_views_of_the_map_and_not_copies(store: Store) -> None:
    """A document is a part of the mapped shard, whose bytes are the file's from byte 0."""
    last = store.shards()[-1]
    document = store[-1]
    assert np.shares_memory(document, store.shard(len(store.shards()) - 1))
    assert document.base is not None
    assert document.dtype == np.dtype("<u2")
    assert store.shard(0).tolist() == np.memmap(store.path / "tokens-00000.bin", "<u2", "r").tolist()
    assert store.shard(len(store.shards()) - 1).tobytes() == (store.path / last.file).read_bytes()


def test_documents_cannot_be_written_to(store: Store) -> None:
    """P9: a view is read-only and cannot be made writeable, so no caller damages a store through it."""
    for array in (store[0], store.shard(0), store.boundaries()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.setflags(write=True)


def test_boundaries_are_the_starts_and_then_the_lookup(make_store: Callable[..., Path]) -> None:
    """FMT-3: the mapped file is the starts, the total, and one document for every 4,096 tokens."""
    lengths = [5000, 1, 3000, 4096, 2]
    with open_store(make_store("long", [[1] * n for n in lengths])) as store:
        assert store.boundaries().tolist() == [0, 5000, 5001, 8001, 12097, 12099, 0, 0, 3]


def test_the_largest_ids_are_read_as_written(make_store: Callable[..., Path]) -> None:
    """FMT-2: in a uint16 and in a uint32 store."""
    for vocab_size, width in ((65_536, 2), (65_537, 4), (1 << 32, 4)):
        documents = [[0, vocab_size - 1], [vocab_size - 1]]
        with open_store(make_store(f"v{vocab_size}", documents, vocab_size=vocab_size)) as store:
            assert [d.tolist() for d in store] == documents
            assert store.dtype.itemsize == width


def test_a_bytes_store_decodes_its_documents(make_store: Callable[..., Path]) -> None:
    """A store needs no other file to decode: UTF-8 of any script, with the end-of-text token."""
    texts = ["", "plain", "naïve ☃ 漢字 🙂", "a\n\tb"]
    ids = [[*text.encode(), 256] for text in texts]
    with open_store(make_store("text", ids, vocab_size=259)) as store:
        assert [store.decode(i) for i in range(len(store))] == [text + "<|endoftext|>" for text in texts]
        assert store.decode(-1) == texts[-1] + "<|endoftext|>"
        assert store.tokenizer.kind == "bytes"


def test_a_path_may_be_a_string_or_relative(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opened by a relative path stays readable after a change of the working directory."""
    monkeypatch.chdir(store_path.parent)
    store = open_store("web")
    monkeypatch.chdir("/")
    assert store[0].tolist() == DOCUMENTS[0]
    assert store.path == store_path
    store.close()
