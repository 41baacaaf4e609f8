"""Origins and ids (FMT-11, FMT-12): where each document came from, and what its users call it."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.grown import ALL, Document, Kind, check_documents, contents, documents_of, rewrite, write
from tests.support.stores.masked import REST
from tokenstore.errors import BuildError, CorruptionError
from tokenstore.format.layout import MAX_ID_BYTES
from tokenstore.store import Origin, open_store, store_files, verify
from tokenstore.store.document_files import Columns
from tokenstore.store.input_list import Inputs
from tokenstore.store.writer import FileWriter

DOCUMENTS = documents_of(1, [3, 1, 40, 7, 2, 2, 9, 30, 1, 5])
TWO = [Document([7, 1], [True] * 2, "one", 3, "a"), Document([5, 5, 1], [True] * 3, "two", 1, "ü")]
PLAIN = Kind(masks=False, origins=False, ids=False, length_index=False)
KINDS = [ALL, Kind(origins=False), Kind(ids=False), PLAIN]


def new_writer(folder: Path, origins: bool = True, ids: bool = True) -> FileWriter:
    return FileWriter(folder, 300, 1 << 20, columns=Columns(origins, ids))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shard_bytes", [1, 40, 1 << 20])
@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_origins_and_ids_are_read_as_written(tmp_path: Path, kind: Kind, shard_bytes: int, at_once: int) -> None:
    """FMT-11, FMT-12: file, record and id of every document, for any batches and any shards."""
    path = write(tmp_path / "s", DOCUMENTS, kind, shard_bytes, at_once)
    with open_store(path) as store:
        check_documents(store, DOCUMENTS, kind)
        check_documents(pickle.loads(pickle.dumps(store)), DOCUMENTS, kind)
    assert verify(path) == []


def test_the_bytes_are_those_of_the_specification(tmp_path: Path) -> None:
    """FMT-11, FMT-12: the worked example, byte by byte."""
    path = write(tmp_path / "s", TWO, Kind(masks=False))
    assert (path / "origins.bin").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (3, 1))
    assert (path / "ids.bin").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (0, 1, 3)) + b"a\xc3\xbc"
    assert sorted(contents(path)) == [
        "boundaries.bin",
        "ids.bin",
        "inputs.jsonl",
        "length_index.bin",
        "manifest.json",
        "origins.bin",
        "tokens-00000.bin",
    ]


def test_they_are_not_part_of_the_identity(tmp_path: Path) -> None:
    """FMT-11: the same tokens are the same store, with or without them, and the other files are identical."""
    with_all = write(tmp_path / "all", DOCUMENTS, Kind(masks=False, length_index=False))
    without = write(tmp_path / "none", DOCUMENTS, PLAIN)
    assert open_store(with_all).digest == open_store(without).digest
    for name in ("boundaries.bin", "inputs.jsonl", "tokens-00000.bin"):
        assert (with_all / name).read_bytes() == (without / name).read_bytes()


def test_an_index_counts_from_the_end_and_is_checked(tmp_path: Path) -> None:
    """As in `store[i]`: negative from the end, others are errors; also in a store without them."""
    for name, kind in (("s", ALL), ("t", PLAIN)):
        store = open_store(write(tmp_path / name, TWO, kind))
        assert store.origin(-1) == store.origin(1) == store.origin(np.int64(1))
        assert store.id(-1) == store.id(1)
        for ask in (store.origin, store.id):
            with pytest.raises(IndexError, match="document: expected one of 2, found 2"):
                ask(2)
            with pytest.raises(TypeError, match="document: expected an integer, found str"):
                ask("0")


def test_an_origin_is_a_value() -> None:
    """Frozen, comparable, hashable."""
    assert Origin("a", 1) == Origin("a", 1)
    assert len({Origin("a", 1), Origin("a", 1), Origin("a", 2)}) == 2
    with pytest.raises(AttributeError):
        Origin("a", 1).record = 2


def test_opening_reads_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening is not slower with origins and ids: nothing of them is mapped, and inputs are read on first use."""
    path = write(tmp_path / "s", DOCUMENTS)
    read: list[str] = []

    class Counted(Inputs):
        def __init__(self, path: Path, *arguments: object, **options: object):
            read.append(path.name)
            super().__init__(path, *arguments, **options)

    monkeypatch.setattr(store_files, "Inputs", Counted)
    store = open_store(path)
    assert read == []
    assert store_files._maps.files(store._owner) == (store.number_of("boundaries.bin"),)
    for i in range(len(store)):
        store.origin(i)
    assert read == ["inputs.jsonl"]


# ---- what a writer refuses


def append(writer: FileWriter, **more: object) -> None:
    writer.append(np.array([1, 2, 3], np.uint32), np.array([1, 2]), **more)


@pytest.mark.parametrize(
    "origins",
    [None, np.array([1]), np.array([1, 2, 3]), np.array([[1, 2]]), np.array([1.0, 2.0]), np.array([True, True])],
    ids=str,
)
def test_origins_are_one_integer_per_document(tmp_path: Path, origins: np.ndarray | None) -> None:
    """FMT-11: one number for each document of the call, in a store that has origins."""
    with new_writer(tmp_path, ids=False) as writer, pytest.raises(ValueError, match=r"origins: expected int64\[2\]"):
        append(writer, origins=origins)


@pytest.mark.parametrize("origins", [np.array([0, 1]), np.array([1, -1]), np.array([1, 1 << 63], np.uint64)], ids=str)
def test_records_are_counted_from_one(tmp_path: Path, origins: np.ndarray) -> None:
    """FMT-11: 0, and numbers that do not fit an int64, are refused."""
    with new_writer(tmp_path, ids=False) as writer, pytest.raises(ValueError, match="record numbers from 1"):
        append(writer, origins=origins)


@pytest.mark.parametrize("ids", [None, [], ["a"], ["a", "b", "c"], "ab"], ids=str)
def test_ids_are_one_string_per_document(tmp_path: Path, ids: object) -> None:
    """FMT-12: one string for each document of the call; a single string is refused."""
    with new_writer(tmp_path, origins=False) as writer, pytest.raises(ValueError, match="ids: expected 2 strings"):
        append(writer, ids=ids)


def test_a_store_without_them_refuses_them(tmp_path: Path) -> None:
    """FMT-11, FMT-12: all documents have them, or none."""
    with new_writer(tmp_path, False, False) as writer:
        with pytest.raises(ValueError, match="origins: expected none, because this store has no origins"):
            append(writer, origins=np.array([1, 2]))
        with pytest.raises(ValueError, match="ids: expected none, because this store has no ids, found 2"):
            append(writer, ids=["a", "b"])


def test_the_limit_of_an_id_is_exact(tmp_path: Path) -> None:
    """FMT-12: 65,535 bytes of UTF-8, not characters."""
    longest = "ü" * (MAX_ID_BYTES // 2) + "x"
    with new_writer(tmp_path, origins=False) as writer:
        with pytest.raises(BuildError, match="id: expected at most 65535 bytes, found 65536 "):
            append(writer, ids=["", longest + "x"])
        append(writer, ids=[longest, ""])
        writer.finish(**REST)
    store = open_store(tmp_path)
    assert [store.id(0), store.id(1)] == [longest, ""]
    assert verify(tmp_path) == []


def test_an_id_is_text(tmp_path: Path) -> None:
    """FMT-12: half a surrogate pair cannot be encoded as UTF-8."""
    with new_writer(tmp_path, origins=False) as writer:
        with pytest.raises(BuildError, match=r"id: cannot encode 'a\\ud800'"):
            append(writer, ids=["b", "a\ud800"])
        with pytest.raises(AttributeError):
            append(writer, ids=["b", 7])


def test_a_refused_call_writes_nothing(tmp_path: Path) -> None:
    """None of its documents is in the store."""
    tokens, lengths = np.array([1, 2, 3], np.uint32), np.array([1, 2])
    sound = {"origins": np.array([8, 9]), "ids": ["a", "b"]}
    with new_writer(tmp_path) as writer:
        for wrong in ({"origins": None}, {"origins": np.array([0, 1])}, {"ids": None}, {"ids": ["a", "\ud800"]}):
            with pytest.raises((ValueError, BuildError)):
                writer.append(tokens, lengths, **{**sound, **wrong})
        with pytest.raises(BuildError, match="token id"):
            writer.append(tokens + np.uint32(300), lengths, **sound)
        writer.append(tokens[:0], lengths[:0])
        writer.append(tokens, lengths, **sound)
        writer.finish(**{**REST, "inputs": b'{"file":"x","documents":2}\n'})
    store = open_store(tmp_path)
    assert [(store.origin(i).record, store.id(i)) for i in range(2)] == [(8, "a"), (9, "b")]
    assert verify(tmp_path) == []


def test_inputs_must_add_up_when_there_are_origins(tmp_path: Path) -> None:
    """FMT-11: the writer refuses inputs that would give documents wrong files; without origins it accepts any."""
    with new_writer(tmp_path, ids=False) as writer:
        append(writer, origins=np.array([1, 2]))
        with pytest.raises(CorruptionError, match=r"inputs, documents: expected 2 over all inputs, found 1"):
            writer.finish(**{**REST, "inputs": b'{"file":"x","documents":1}\n'})
    assert not (tmp_path / "manifest.json").exists()


# ---- inputs.jsonl


def test_inputs_give_the_file_of_every_document(tmp_path: Path) -> None:
    """FMT-11: by cumulative counts; files without documents are allowed, and so is the same file twice."""
    counts = [("a", 0), ("b", 2), ("c", 0), ("c", 0), ("d", 1), ("b", 3), ("e", 0)]
    lines = [json.dumps({"file": file, "documents": count, "bad": 1.5, "more": [{}]}) for file, count in counts]
    (tmp_path / "inputs.jsonl").write_text("\n".join(lines))
    inputs = Inputs(tmp_path / "inputs.jsonl", 6)
    assert [inputs.file_of(i) for i in range(6)] == ["b", "b", "d", "b", "b", "b"]
    assert [inputs.name(i) for i in range(len(inputs))] == [file for file, _ in counts]
    (tmp_path / "inputs.jsonl").write_bytes(b"")
    assert len(Inputs(tmp_path / "inputs.jsonl", 0)) == 0


WRONG = {
    b'{"file":"a","documents":2}\n{"file":"b"': "line 2: expected JSON, found ",
    b"\n": "line 1: expected JSON, found ",
    b"\xff\n": "line 1: expected JSON, found ",
    b"x" * 100_000: "line 1: expected at most 65536 bytes, found more",
    b"[" * 60_000: "line 1: expected JSON, found ",
    b'{"file":"a","documents":' + b"9" * 5000 + b"}": "line 1: expected JSON, found ",
    b"[]\n": 'line 1: expected an object with a string "file", found None',
    b"7\n": "line 1: expected an object",
    b'{"documents":2}': 'line 1: expected an object with a string "file", found None',
    b'{"file":7,"documents":2}': 'line 1: expected an object with a string "file", found 7',
    b'{"file":"a"}': 'line 1: expected "documents" in 0..2, found None',
    b'{"file":"a","documents":true}': 'line 1: expected "documents" in 0..2, found True',
    b'{"file":"a","documents":2.0}': 'line 1: expected "documents" in 0..2, found 2.0',
    b'{"file":"a","documents":NaN}': 'line 1: expected "documents" in 0..2, found nan',
    b'{"file":"a","documents":-1}\n{"file":"a","documents":3}': 'line 1: expected "documents" in 0..2, found -1',
    b'{"file":"a","documents":3}': 'line 1: expected "documents" in 0..2, found 3',
    b'{"file":"a","documents":2,"num_bytes":"7"}': "line 1: expected \"num_bytes\" in 0..2**63, found '7'",
    b'{"file":"a","documents":2,"num_bytes":-1}': 'line 1: expected "num_bytes" in 0..2**63, found -1',
    b'{"file":"a","documents":1}': "documents: expected 2 over all inputs, found 1",
    b'{"file":"a","documents":2}\n{"file":"a","documents":1}': "documents: expected 2 over all inputs, found 3",
    b"": "documents: expected 2 over all inputs, found 0",
}


@pytest.mark.parametrize("data", WRONG, ids=lambda data: str(data[:40]))
def test_invalid_inputs_are_refused(tmp_path: Path, data: bytes) -> None:
    """P9, FMT-11: by `origin` and by verify, with line, rule and file; tokens and ids can still be read."""
    path = rewrite(write(tmp_path / "s", TWO), "inputs.jsonl", data)
    with open_store(path) as store:
        for _ in range(2):
            with pytest.raises(CorruptionError) as caught:
                store.origin(0)
            message = str(caught.value)
            assert message.startswith(f"inputs, {WRONG[data]}")
            assert message.endswith(f"({path / 'inputs.jsonl'}); copy or build the store again")
        assert (store[1].tolist(), store.id(1)) == (TWO[1].tokens, TWO[1].id)
    findings = verify(path)
    assert [(finding.file, finding.place) for finding in findings] == [("inputs.jsonl", "documents")]
    assert message in findings[0].found
