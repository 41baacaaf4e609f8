"""The store: what a reader gives, what a writer makes and refuses, how many files stay open, who may build."""

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.forge import forge, overwrite, replace
from tokenstore.errors import BuildError, CorruptionError, FormatError, StoreBusyError, TokenStoreError
from tokenstore.format.manifest import TokenizerEntry, decode_manifest
from tokenstore.store import Store, files, open_store, reader, verify
from tokenstore.store.files import MapCache, exclusive_lock, map_array, max_maps
from tokenstore.store.writer import StoreWriter

DOCUMENTS = random_documents(3, 50, 40)
REST = {
    "inputs": b"",
    "ends_with_eos": False,
    "tokenizer": TokenizerEntry("bytes", None, None, None, None, None, "tests", "1"),
    "options": {},
    "counts": {},
    "versions": {},
}


@pytest.fixture
def path(make_store: Callable[..., Path]) -> Path:
    """A store of DOCUMENTS in shards of about 150 tokens."""
    return make_store("web", DOCUMENTS, shard_bytes=300)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as opened:
        yield opened


def open_files(below: Path) -> int:
    """Descriptors of this process that lead below a folder."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith(str(below))
        except FileNotFoundError:  # the descriptor with which we read the folder
            continue
    return count


# ---- reading


def test_a_store_is_the_sequence_of_its_documents(store: Store) -> None:
    """len, [i], [-i], iteration forwards and backwards give the documents that were written."""
    assert len(store) == len(DOCUMENTS)
    assert [store[i].tolist() for i in range(len(store))] == DOCUMENTS
    assert [store[-i].tolist() for i in range(1, len(store) + 1)] == DOCUMENTS[::-1]
    assert [document.tolist() for document in store] == DOCUMENTS
    assert [document.tolist() for document in reversed(store)] == DOCUMENTS[::-1]
    assert store[np.int64(7)].tolist() == store[np.uint8(7)].tolist() == DOCUMENTS[7]


def test_a_store_tells_what_it_holds(store: Store) -> None:
    """num_tokens, vocab_size, dtype, digest and shards are those of the content."""
    assert store.num_tokens == sum(map(len, DOCUMENTS)) == sum(shard.num_tokens for shard in store.shards())
    assert (store.vocab_size, store.dtype) == (300, np.dtype("<u2"))
    assert store.digest == store.manifest.digest
    assert f"{len(store)} documents" in repr(store)
    assert [store.shard(i).size for i in range(len(store.shards()))] == [s.num_tokens for s in store.shards()]


@pytest.mark.parametrize("index", [50, -51, 10**30, -(10**30)])
def test_a_document_that_is_not_there_is_an_index_error(store: Store, index: int) -> None:
    """An index outside is an IndexError that tells how many documents there are."""
    with pytest.raises(IndexError, match=r"document: expected one of 50, found -?\d+ \(.*web\)"):
        store[index]


@pytest.mark.parametrize("index", [1.0, "1", None, slice(2), [1], np.float32(1)])
def test_an_index_that_is_no_integer_is_a_type_error(store: Store, index: object) -> None:
    """Only integers name documents; a slice would have to copy or to lie."""
    with pytest.raises(TypeError, match="document: expected an integer, found"):
        store[index]


def test_documents_are_views_of_the_map_and_not_copies(store: Store) -> None:
    """Reading a document copies nothing: it lies inside the mapped shard, whose bytes are the file's from byte 0."""
    last = store.shards()[-1]
    document = store[-1]
    assert np.shares_memory(document, store.shard(len(store.shards()) - 1))
    assert document.base is not None
    assert document.dtype == np.dtype("<u2")
    assert store.shard(0).tolist() == np.memmap(store.path / "tokens-00000.bin", "<u2", "r").tolist()
    assert store.shard(len(store.shards()) - 1).tobytes() == (store.path / last.file).read_bytes()


def test_documents_cannot_be_written_to(store: Store) -> None:
    """P9: a view is read-only and cannot be made writeable: no caller damages a store through it."""
    for array in (store[0], store.shard(0), store.boundaries()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.setflags(write=True)


def test_boundaries_are_the_starts_and_then_the_lookup(make_store: Callable[..., Path]) -> None:
    """FMT-3: the mapped index is starts, the total, and one document for every 4,096 tokens."""
    lengths = [5000, 1, 3000, 4096, 2]
    with open_store(make_store("long", [[1] * n for n in lengths])) as store:
        assert store.boundaries().tolist() == [0, 5000, 5001, 8001, 12097, 12099, 0, 0, 3]


def test_ids_up_to_the_vocabulary_come_back_in_both_widths(make_store: Callable[..., Path]) -> None:
    """FMT-2: the largest id of a uint16 and of a uint32 store is read as it was written."""
    for vocab_size, width in ((65_536, 2), (65_537, 4), (1 << 32, 4)):
        documents = [[0, vocab_size - 1], [vocab_size - 1]]
        with open_store(make_store(f"v{vocab_size}", documents, vocab_size=vocab_size)) as store:
            assert [d.tolist() for d in store] == documents
            assert store.dtype.itemsize == width


def test_a_bytes_store_decodes_its_documents(make_store: Callable[..., Path]) -> None:
    """A store needs nothing but itself to give text: UTF-8 of any script, the end-of-text token shown."""
    texts = ["", "plain", "naïve ☃ 漢字 🙂", "a\n\tb"]
    ids = [[*text.encode(), 256] for text in texts]
    with open_store(make_store("text", ids, vocab_size=259)) as store:
        assert [store.decode(i) for i in range(len(store))] == [text + "<|endoftext|>" for text in texts]
        assert store.decode(-1) == texts[-1] + "<|endoftext|>"
        assert store.tokenizer.kind == "bytes"


def test_a_path_may_be_a_string_or_relative(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opened by a relative path stays readable when the process goes elsewhere."""
    monkeypatch.chdir(path.parent)
    store = open_store("web")
    monkeypatch.chdir("/")
    assert store[0].tolist() == DOCUMENTS[0]
    assert store.path == path
    store.close()


# ---- life of a store


def test_a_closed_store_maps_again_when_read(path: Path) -> None:
    """Close gives the descriptors back; arrays held stay valid; reading again maps again."""
    store = open_store(path)
    held = store[3]
    list(store)
    assert open_files(path) > 1 or sys.version_info >= (3, 13)
    store.close()
    del store
    assert held.tolist() == DOCUMENTS[3]
    del held
    assert open_files(path) == 0
    store = open_store(path)
    store.close()
    assert [d.tolist() for d in store] == DOCUMENTS
    store.close()


def test_a_store_is_a_context_manager(path: Path) -> None:
    """Leaving the block closes the store, on an error too."""
    with open_store(path) as store:
        list(store)
    assert open_files(path) == 0

    def fail() -> None:
        with open_store(path) as store:
            list(store)
            raise KeyError("an error of the caller")

    with pytest.raises(KeyError, match="an error of the caller"):
        fail()
    assert open_files(path) == 0


def test_a_pickled_store_is_its_path_and_opens_again(make_store: Callable[..., Path]) -> None:
    """P7: a store of many shards pickles small, also after it was read, and comes back as the same store."""
    path = make_store("many", [[1, 2, 3]] * 500, shard_bytes=1)
    with open_store(path, check="lazy") as store:
        list(store)
        data = pickle.dumps(store)
        assert len(data) < 1024 < 64 * 1024
        again = pickle.loads(data)
        assert (again.path, again.digest, len(again)) == (store.path, store.digest, 500)
        assert again[499].tolist() == [1, 2, 3]


def test_a_pickled_store_keeps_how_it_is_checked(path: Path) -> None:
    """A store opened lazily is opened lazily again; one opened with sizes is checked again."""
    lazy, sizes = (pickle.dumps(open_store(path, check=check)) for check in ("lazy", "sizes"))
    replace(path / "tokens-00001.bin", b"")
    assert len(pickle.loads(lazy)) == 50
    with pytest.raises(CorruptionError, match=r"tokens-00001\.bin"):
        pickle.loads(sizes)


def test_a_store_replaced_by_another_is_read_anew(tmp_path: Path) -> None:
    """P9: opening a store built again under the same name never shows the old bytes, though the old one is still open."""
    path = write_store(tmp_path / "web", [[1, 2], [3]])
    old = open_store(path)
    assert old[0].tolist() == [1, 2]
    shutil.rmtree(path)
    write_store(path, [[4, 5], [6]])
    with open_store(path) as new:
        assert [document.tolist() for document in new] == [[4, 5], [6]]


def test_many_threads_read_one_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be shared among threads, also while its maps come and go."""
    monkeypatch.setattr(reader, "_maps", MapCache(2))
    store = open_store(path)
    order = np.random.default_rng(0).integers(0, len(store), 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: store[i].tolist(), order)) == [DOCUMENTS[i] for i in order]


def test_check_is_one_of_two_words(path: Path) -> None:
    """A wrong argument is a ValueError that names the two that work."""
    with pytest.raises(ValueError, match="check: expected 'sizes' or 'lazy', found 'all'"):
        open_store(path, check="all")


@pytest.mark.parametrize("size", [0, 1, -2, 2])
def test_a_shard_of_another_size_is_seen_at_open_or_when_read(path: Path, size: int) -> None:
    """P9: check="sizes" refuses at open; check="lazy" when the shard is first mapped, and the others can be read."""
    shard = path / "tokens-00001.bin"
    data = shard.read_bytes()
    replace(shard, (data + b"\0\0")[: len(data) + size] if abs(size) == 2 else data[:size])
    message = rf"file size: expected {len(data)} bytes, found \d+ \(.*tokens-00001\.bin\); copy or build"
    with pytest.raises(CorruptionError, match=message):
        open_store(path)
    with open_store(path, check="lazy") as store:
        entry = store.shards()[1]
        assert store[0].tolist() == DOCUMENTS[0]
        assert store[-1].tolist() == DOCUMENTS[-1]
        with pytest.raises(CorruptionError, match=message):
            store[entry.first_document]


# ---- shards


def expected_shards(lengths: list[int], target: int) -> list[list[int]]:
    """FMT-2 in slow motion: a new shard before the document that would make this one too large."""
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
    """FMT-2, P8: shards roll where the rule says, however documents come in batches; only a larger document makes a
    larger shard; what is read is what was written.
    """
    documents = np.split(np.arange(sum(lengths), dtype=np.uint32) % 300, np.cumsum(lengths)[:-1])
    cuts = sorted({0, len(lengths), *(data.draw(st.sets(st.integers(0, len(lengths)), max_size=5)) if data else ())})
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder), 300, shard_bytes) as writer:
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


def test_ten_thousand_shards_need_no_descriptor_each(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: opening maps the boundaries only, however many shards there are."""
    path = make_store("many", [[i % 300] for i in range(300)], shard_bytes=2)
    monkeypatch.setattr(reader, "_maps", MapCache(4))
    with open_store(path) as store:
        assert len(store.shards()) == 300
        assert len(reader._maps._maps) == 1
        assert open_files(path) <= 1


# ---- maps and descriptors


@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_maps_and_descriptors_are_bounded(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    """P7: reading all of a store of many shards keeps no more than the capacity mapped and open, and reads right."""
    documents = [[i, i, 7] for i in range(100)]
    path = make_store("many", documents, shard_bytes=6)
    monkeypatch.setattr(reader, "_maps", MapCache(capacity))
    store = open_store(path)
    most_maps = most_open = 0
    for i in (*range(100), *range(0, 100, 7), *range(99, -1, -1)):
        assert store[i].tolist() == documents[i]
        most_maps = max(most_maps, len(reader._maps._maps))
        most_open = max(most_open, open_files(path))
    assert most_maps == capacity
    assert most_open <= capacity
    store.close()
    assert open_files(path) == 0


def test_the_map_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """The cache keeps what was used last; an array still held stays readable after its map was forgotten."""
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 4)
    cache = MapCache(2)
    dtype = np.dtype("<u2")
    a = cache.get(tmp_path / "a", dtype, 2)
    cache.get(tmp_path / "b", dtype, 2)
    assert cache.get(tmp_path / "a", dtype, 2) is a
    cache.get(tmp_path / "c", dtype, 2)
    assert [path.name for path in cache._maps] == ["a", "c"]
    cache.get(tmp_path / "b", dtype, 2)
    assert [path.name for path in cache._maps] == ["c", "b"]
    assert a.tobytes() == b"aaaa"
    cache.forget(tmp_path)
    assert not cache._maps
    assert a.tobytes() == b"aaaa"


def test_a_failed_map_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    """A file of the wrong size is refused every time it is asked for, and is never kept."""
    (tmp_path / "a").write_bytes(b"123")
    cache = MapCache(2)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="expected 4 bytes, found 3"):
            cache.get(tmp_path / "a", np.dtype("<u2"), 2)
    assert not cache._maps


@pytest.mark.parametrize(("limit", "maps"), [(64, 8), (8, 8), (1024, 128), (4096, 512), (10**6, 512), (-1, 512)])
def test_the_maps_kept_follow_the_descriptor_limit(monkeypatch: pytest.MonkeyPatch, limit: int, maps: int) -> None:
    """P7: an eighth of the process's descriptors, at most 512, at least 8."""
    monkeypatch.setattr(files.resource, "getrlimit", lambda which: (limit, limit))
    assert max_maps() == maps


def test_running_out_of_descriptors_is_told_as_such(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: where no file can be opened any more the error names the file and the limits to look at."""
    store = open_store(path)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(files.mmap, "mmap", refuse)
    with pytest.raises(TokenStoreError, match=r"Too many open files.*tokens-00000\.bin\); check limits on maps"):
        store.shard(0)


def test_a_map_is_exactly_the_file(tmp_path: Path) -> None:
    """FMT-1: every array begins at byte 0 and ends with the file."""
    (tmp_path / "a").write_bytes(np.arange(5, dtype="<u4").tobytes())
    assert map_array(tmp_path / "a", np.dtype("<u4"), 5).tolist() == [0, 1, 2, 3, 4]
    for count in (4, 6):
        with pytest.raises(CorruptionError, match=f"expected {4 * count} bytes, found 20"):
            map_array(tmp_path / "a", np.dtype("<u4"), count)


# ---- writing


@pytest.mark.parametrize("vocab_size", [1, 8, 256, 65_535, 65_536, 65_537, (1 << 32) - 1])
@pytest.mark.parametrize("over", [0, 1, 65_536, 1 << 32])
def test_an_id_outside_the_vocabulary_is_refused_and_never_wraps(tmp_path: Path, vocab_size: int, over: int) -> None:
    """P9: an id that would wrap in uint16 or uint32 is refused before a byte of its batch is kept."""
    with StoreWriter(tmp_path, vocab_size, 1 << 20) as writer:
        writer.append(np.array([vocab_size - 1], np.uint64), np.array([1]))
        with pytest.raises(BuildError, match=rf"expected ids below {vocab_size}, found {vocab_size + over};"):
            writer.append(np.array([0, 0, vocab_size + over, 0], np.uint64), np.array([1, 3]))
        assert (writer.num_tokens, writer.num_documents) == (1, 1)
        writer.finish(**REST)
    with open_store(tmp_path) as store:
        assert [d.tolist() for d in store] == [[vocab_size - 1]]


@pytest.mark.parametrize(
    "tokens", [np.array([5, -1]), np.array([-1, -1], np.int32), np.array([1.0, 0.5]), np.array([True])]
)
def test_tokens_that_are_not_unsigned_integers_are_refused(tmp_path: Path, tokens: np.ndarray) -> None:
    """P9: a negative id would wrap to a large one, a fraction would be cut: the type is refused, whatever the values."""
    with StoreWriter(tmp_path, 65_536, 1 << 20) as writer:
        with pytest.raises(TypeError, match=f"tokens: expected unsigned integers, found {tokens.dtype}"):
            writer.append(tokens, np.array([tokens.size]))
        assert writer.num_tokens == 0


@pytest.mark.parametrize("lengths", [[3], [1], [1, 0, 1], [3, -1], [0], [2, 0]])
def test_lengths_that_do_not_fit_the_tokens_are_refused(tmp_path: Path, lengths: list[int]) -> None:
    """FMT-3: documents have at least one token, and together they are the tokens given."""
    with StoreWriter(tmp_path, 8, 1 << 20) as writer:
        with pytest.raises(ValueError, match="lengths: expected 2 tokens in documents of at least 1"):
            writer.append(np.array([1, 2], np.uint16), np.array(lengths))
        assert writer.num_documents == 0


def test_no_documents_are_no_store(tmp_path: Path) -> None:
    """A store holds at least one document; an empty batch is none; nothing that opens is left."""
    with StoreWriter(tmp_path, 8, 1 << 20) as writer:
        writer.append(np.array([], np.uint16), np.array([], np.int64))
        with pytest.raises(BuildError, match="documents: expected at least one, found none"):
            writer.finish(**REST)
    with pytest.raises(FormatError, match=r"without manifest\.json"):
        open_store(tmp_path)


def test_nothing_is_a_store_before_the_manifest_is_written(tmp_path: Path) -> None:
    """FMT-7: the manifest comes last, so a writer that stops at any point has left nothing that opens."""
    with StoreWriter(tmp_path, 8, 4) as writer:
        for _ in range(5):
            writer.append(np.array([1, 2], np.uint16), np.array([2]))
        with pytest.raises(FormatError, match=r"without manifest\.json"):
            open_store(tmp_path)


def test_a_finished_store_has_no_leftovers_and_cannot_be_written(path: Path) -> None:
    """FMT-1, P9: exactly the files of the manifest, and all of them read-only."""
    with open_store(path) as store:
        names = {"manifest.json", *store.manifest.files, *(shard.file for shard in store.shards())}
    assert {file.name for file in path.iterdir()} == names
    assert all(file.stat().st_mode & 0o777 == 0o444 for file in path.iterdir())


def test_side_files_stand_in_the_manifest(tmp_path: Path) -> None:
    """FMT-4: a side file is kept as it was given, with size and checksum; verify sees a change."""
    with StoreWriter(tmp_path, 8, 1 << 20) as writer:
        writer.append(np.array([1, 2], np.uint16), np.array([2]))
        writer.add_file("tokenizer.json", b'{"made": "up"}')
        manifest = writer.finish(**{**REST, "inputs": b'{"file": "a.txt"}\n'})
    assert sorted(manifest.files) == ["boundaries.bin", "inputs.jsonl", "tokenizer.json"]
    assert (tmp_path / "inputs.jsonl").read_bytes() == b'{"file": "a.txt"}\n'
    assert verify(tmp_path) == []
    replace(tmp_path / "tokenizer.json", b'{"made": "UP"}')
    assert [finding.file for finding in verify(tmp_path)] == ["tokenizer.json"]


# ---- verify


def test_verify_finds_nothing_in_a_sound_store_and_tells_its_progress(path: Path) -> None:
    """P9: [] when sound; the bytes told add up to the files."""
    seen: list[int] = []
    assert verify(path, seen.append) == []
    assert sum(seen) == sum(file.stat().st_size for file in path.iterdir() if file.name != "manifest.json")


def test_verify_lists_every_damaged_file_at_once(path: Path) -> None:
    """P9: several findings, each with file, place, what was expected and what was found."""
    overwrite(path / "tokens-00000.bin", b"\xff")
    replace(path / "tokens-00001.bin", b"short")
    (path / "tokens-00002.bin").unlink()
    overwrite(path / "boundaries.bin", bytes(8) + b"\1")
    found = {finding.file: str(finding) for finding in verify(path)}
    assert sorted(found) == ["boundaries.bin", "tokens-00000.bin", "tokens-00001.bin", "tokens-00002.bin"]
    assert "expected checksum" in found["tokens-00000.bin"]
    assert "bytes, found 5" in found["tokens-00001.bin"]
    assert "tokens-00002.bin: file: expected a readable file, found" in found["tokens-00002.bin"]


def test_verify_of_what_cannot_be_opened_is_one_finding(tmp_path: Path) -> None:
    """P9: verify raises nothing: a path that is no store is a finding with the error's text."""
    (finding,) = verify(tmp_path / "nothing")
    assert (finding.file, finding.place) == (str(tmp_path / "nothing"), "open")
    assert "found nothing" in finding.found


def rewrite(store: Path, name: str, data: bytes) -> None:
    """Change a file and its entry in the manifest: what only a faulty writer would do."""
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
def test_verify_checks_boundaries_whose_checksum_fits(
    make_store: Callable[..., Path], numbers: list[int], place: str
) -> None:
    """P9, FMT-3: starts rise, the lookup is that of the starts, and shards begin where the manifest says."""
    store = make_store("small", [[1, 2], [3, 4, 5], [6, 7, 8, 9]], shard_bytes=10)
    rewrite(store, "boundaries.bin", np.array(numbers, "<i8").tobytes())
    assert [str(finding) for finding in verify(store)] == [f"boundaries.bin: {place}"]


def test_verify_is_not_fooled_by_starts_whose_differences_overflow(make_store: Callable[..., Path]) -> None:
    """P9: starts 0, 2**62, -2**63, -2**62, 8 rise by 2**62 each in int64 arithmetic, and are damage,
    also where the lookup is what a binary search over them would find.
    """
    store = make_store("small", [[1, 2]] * 4)
    rewrite(store, "boundaries.bin", np.array([0, 2**62, -(2**63), -(2**62), 8, 3], "<i8").tobytes())
    assert [finding.file for finding in verify(store)] == ["boundaries.bin"]


def test_verify_in_small_blocks_finds_the_same(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: damage at the joints of the blocks that verify reads is found, and a huge start there costs no memory."""
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


def test_verify_finds_ids_outside_the_vocabulary_whose_checksum_fits(make_store: Callable[..., Path]) -> None:
    """P9: an id that is no id is found though the file is what its writer wrote."""
    store = make_store("small", [[1, 2], [3, 4, 5]])
    rewrite(store, "tokens-00000.bin", np.array([1, 2, 300, 4, 65_535], "<u2").tobytes())
    assert [str(finding) for finding in verify(store)] == [
        "tokens-00000.bin: token 2 (and 1 more near it): expected an id below 300, found 300"
    ]


def test_verify_finds_documents_without_their_end_of_text(make_store: Callable[..., Path]) -> None:
    """P9, FMT-2: in a store that says its documents end with the end-of-text token, all of them do."""
    documents = [[5, 0], [0], [7, 8, 0], [9, 0]]
    store = make_store("eos", documents, eos=True, shard_bytes=6)
    assert verify(store) == []
    bad = make_store("bad", [[5, 0], [3], [7, 8, 0], [9, 4]], eos=True, shard_bytes=6)
    assert [(f.file, f.place, f.found) for f in verify(bad)] == [
        ("tokens-00000.bin", "token 2 (and 0 more)", "3"),
        ("tokens-00002.bin", "token 1 (and 0 more)", "4"),
    ]


# ---- the lock

HOLD = """
import sys
from pathlib import Path
from tokenstore.store.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lock file until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "web.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_builder_is_refused_at_once(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: two builds never write one output: the second is told which process holds it, the first is not disturbed."""
    for _ in range(2):
        with pytest.raises(
            StoreBusyError, match=rf"found process {holder.pid} at work on it \(.*web\.lock\); wait for it"
        ):
            with exclusive_lock(tmp_path / "web.lock"):
                pytest.fail("two holders")
    assert (tmp_path / "web.lock").exists()
    assert holder.poll() is None


def test_the_lock_is_free_when_its_holder_is_done(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: a holder that ends removes the file; the next one gets the lock."""
    holder.communicate()
    assert holder.returncode == 0
    assert not (tmp_path / "web.lock").exists()
    with exclusive_lock(tmp_path / "web.lock"):
        assert (tmp_path / "web.lock").read_text() == str(os.getpid())
    assert not (tmp_path / "web.lock").exists()


def test_the_lock_is_free_when_its_holder_is_killed(tmp_path: Path, holder: subprocess.Popen) -> None:
    """P8: SIGKILL leaves the file behind and no lock: the next build goes on, and removes the file at its end."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "web.lock").exists()
    with exclusive_lock(tmp_path / "web.lock"):
        assert (tmp_path / "web.lock").read_text() == str(os.getpid())
    assert not (tmp_path / "web.lock").exists()


def test_the_lock_is_free_after_an_error_inside(tmp_path: Path) -> None:
    """P8: a build that fails gives the lock back, and can be tried again in the same process."""

    def fail() -> None:
        with exclusive_lock(tmp_path / "web.lock"):
            raise KeyError("an error of the build")

    for _ in range(2):
        with pytest.raises(KeyError, match="an error of the build"):
            fail()
        assert list(tmp_path.iterdir()) == []


def test_a_lock_file_removed_between_opening_and_locking_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: a lock on a file that another holder has just removed is no lock: it is taken again on the file that is there."""
    lock = tmp_path / "web.lock"
    turns = []
    real = files.fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        turns.append(descriptor)
        if len(turns) == 1:
            lock.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(files.fcntl, "flock", remove_first)
    with exclusive_lock(lock):
        assert len(turns) == 2
        monkeypatch.setattr(files.fcntl, "flock", real)
        with pytest.raises(StoreBusyError), exclusive_lock(lock):
            pytest.fail("two holders")
    assert not lock.exists()


def test_a_batch_over_more_shards_than_descriptors_raises_the_soft_limit(make_store: Callable[..., Path]) -> None:
    """A low soft limit on open files is raised to what the system allows; a low hard limit is named in the error."""
    path = make_store("many", [[i % 299 + 1] * 8 for i in range(300)], shard_bytes=16, order=True)
    code = (
        "import resource, sys, tokenstore;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])));"
        "plan = tokenstore.Plan.of(sys.argv[1], sequence_length=8, global_batch_size=300);"
        "print(plan.batch(0)['input_ids'].shape)"
    )
    for hard, text in ((1024, "(300, 8)"), (64, "check limits on maps and open files")):
        done = subprocess.run([sys.executable, "-c", code, str(path), str(hard)], capture_output=True, text=True)
        assert text in done.stdout + done.stderr


def test_a_fork_while_a_thread_maps_does_not_hang_the_child() -> None:
    """The lock on the maps is free in a forked child, whoever held it in the parent."""
    code = (
        "import os, sys; from pathlib import Path; import numpy as np; from tokenstore.store.files import MapCache;"
        "cache = MapCache(4); cache._lock.acquire(); child = os.fork();\n"
        "if child == 0:\n    cache.get(Path(sys.executable), np.dtype('u1'), os.stat(sys.executable).st_size); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "7", done.stderr
