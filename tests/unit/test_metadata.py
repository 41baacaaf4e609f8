"""Metadata and inputs of documents (FMT-16, FMT-17): types, batches, growth, damage."""

import contextlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.stores.grown import rewrite
from tests.support.stores.masked import REST
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import METADATA_BATCH
from tokenstore.store import Origin, open_store, verify
from tokenstore.store.document_files import Columns
from tokenstore.store.metadata import encode_metadata
from tokenstore.store.next_version import commit_append
from tokenstore.store.writer import FileWriter


def fill(writer: FileWriter, rows: Sequence[Sequence[Any]], **more: np.ndarray) -> None:
    ones = np.ones(len(rows), np.int64)
    writer.append(ones.astype(np.uint32), ones, metadata=[encode_metadata(row) for row in rows], **more)


def write(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.mkdir()
    with FileWriter(path, 300, 1 << 20, columns=Columns(metadata=tuple(names))) as writer:
        fill(writer, rows)
        writer.finish(**REST)
    return path


VALUES = [
    ([1, -(2**63), None], "int64"),
    ([1, 0.5, None], "double"),
    ([True, None], "bool"),
    (["a", "☃\x00\n", ""], "large_string"),
    ([None, None], "large_string"),
    ([1, "a", None], "large_string"),
    ([{"b": [1, {"c": None}]}, [], 7], "large_string"),
    ([2**63, 1], "large_string"),
    ([True, 1], "large_string"),
]


@pytest.mark.parametrize(("values", "kind"), VALUES)
def test_values_are_read_as_they_were_written(tmp_path: Path, values: list, kind: str) -> None:
    """FMT-16: one Arrow type per column; mixed and nested values are JSON inside."""
    path = write(tmp_path / "s", ["a.b"], [[value] for value in values])
    with open_store(path) as store:
        assert [store.metadata(i) for i in range(len(values))] == [{"a.b": value} for value in values]
        assert store.metadata(-1) == pickle.loads(pickle.dumps(store)).metadata(len(values) - 1)
    with pa.OSFile(str(path / "metadata.arrow")) as file:
        assert str(pa.ipc.open_file(file).schema.field("a.b").type) == kind
    assert verify(path) == []


def test_batches_have_the_size_of_the_specification(tmp_path: Path) -> None:
    """FMT-16: only the last batch is smaller."""
    count = 2 * METADATA_BATCH + 5
    path = write(tmp_path / "s", ["n"], [[i] for i in range(count)])
    with open_store(path) as store:
        for i in (0, METADATA_BATCH - 1, METADATA_BATCH, count - 1):
            assert store.metadata(i) == {"n": i}
    with pa.OSFile(str(path / "metadata.arrow")) as raw:
        file = pa.ipc.open_file(raw)
        assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [
            METADATA_BATCH,
            METADATA_BATCH,
            5,
        ]


def test_a_store_without_metadata_has_none(make_store: Any) -> None:
    with open_store(make_store("s", [[1]])) as store:
        assert (store.metadata(0), store.has_metadata, store.metadata_columns) == (None, False, ())


def test_types_widen_when_a_store_grows(tmp_path: Path) -> None:
    """FMT-13, FMT-16: the next version has the same columns; the old one is unchanged."""
    path = write(tmp_path / "s", ["x", "y"], [[1, "a"], [2, None]])
    working = tmp_path / "w"
    working.mkdir()
    with open_store(path) as base, FileWriter.extending(base, working, 1 << 20) as writer:
        fill(writer, [[0.5, 3]])
        writer.finish(REST["inputs"])
    commit_append(path, working)
    with open_store(path) as new, open_store(path, version=1) as old:
        assert [new.metadata(i) for i in range(3)] == [{"x": 1.0, "y": "a"}, {"x": 2.0, "y": None}, {"x": 0.5, "y": 3}]
        assert old.metadata(0) == {"x": 1, "y": "a"}
    assert verify(path) == []


def arrow(table: pa.Table, rows: int = METADATA_BATCH) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


JSON_FIELD = pa.schema([pa.field("n", pa.large_string(), metadata={"tokenstore": "json"})])
WRONG = {
    "no arrow": b"x" * 1000,
    "too few rows": arrow(pa.table({"n": [1, 2]})),
    "more rows": arrow(pa.table({"n": [1, 2, 3, 4]})),
    "another number of batches": arrow(pa.table({"n": [1, 2, 3]}), 2),
    "another type": arrow(pa.table({"n": pa.array([b"a", b"b", b"c"])})),
    "a column twice": arrow(pa.Table.from_arrays([pa.array([1, 2, 3])] * 2, ["n", "n"])),
    "no json": arrow(pa.table({"n": pa.array(["1", "{", "2"], pa.large_string())}, schema=JSON_FIELD)),
    "nested json": arrow(pa.table({"n": pa.array(["1", "[" * 60_000, "2"], pa.large_string())}, schema=JSON_FIELD)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_forged_metadata_are_refused_and_found(tmp_path: Path, wrong: str) -> None:
    """FMT-16, P9: an Arrow file of another shape is a CorruptionError, never a crash; tokens can still be read."""
    path = rewrite(write(tmp_path / "s", ["n"], [[1], [2], [3]]), "metadata.arrow", WRONG[wrong])
    with open_store(path) as store:
        assert store[0].tolist() == [1]
        with pytest.raises(CorruptionError, match=r"metadata: .*metadata\.arrow"):
            [store.metadata(i) for i in range(3)]
    assert [finding.file for finding in verify(path)] == ["metadata.arrow"]


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    """P9: any damaged byte gives values or a CorruptionError."""
    path = write(tmp_path / "s", ["n", "t"], [[i, "text" * i] for i in range(20)])
    sound = (path / "metadata.arrow").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(sound), 150).tolist():
        data = bytearray(sound)
        data[place] ^= int(rng.integers(1, 256))
        rewrite(path, "metadata.arrow", bytes(data))
        with open_store(path) as store:
            with contextlib.suppress(CorruptionError):
                [store.metadata(i) for i in range(20)]


def shuffled(path: Path, inputs: Sequence[int], counts: Sequence[int]) -> Path:
    path.mkdir()
    with FileWriter(path, 300, 1 << 20, columns=Columns(origins=True, shuffled=True)) as writer:
        ones = np.ones(len(inputs), np.int64)
        writer.append(ones.astype(np.uint32), ones, origins=np.arange(1, len(inputs) + 1), inputs=np.array(inputs))
        lines = [
            json.dumps({"documents": count, "file": f"f{i}"}, separators=(",", ":")) + "\n"
            for i, count in enumerate(counts)
        ]
        writer.finish(**{**REST, "inputs": "".join(lines).encode()})
    return path


def test_shuffled_documents_name_their_inputs(tmp_path: Path) -> None:
    """FMT-17: the input of a document is that of its number."""
    path = shuffled(tmp_path / "s", [2, 0, 2, 1], [1, 1, 2])
    with open_store(path) as store:
        assert [store.origin(i) for i in range(4)] == [
            Origin("f2", 1),
            Origin("f0", 2),
            Origin("f2", 3),
            Origin("f1", 4),
        ]
    assert verify(path) == []


@pytest.mark.parametrize(("inputs", "counts"), [([0, 1], [2]), ([-1 & 0, 0], [1, 1]), ([0, 2**40], [1, 1])])
def test_wrong_inputs_of_documents_are_found(tmp_path: Path, inputs: list, counts: list) -> None:
    """FMT-17, P9: a number without a line is an error where it is read; verify finds other counts too."""
    path = shuffled(tmp_path / "s", inputs, counts)
    assert [finding.file for finding in verify(path)] == ["document_inputs.bin"]
    with open_store(path) as store:
        if max(inputs) >= len(counts):
            with pytest.raises(CorruptionError, match="expected one of"):
                store.origin(1)
