"""Writes records to files of every format, and builds them: one store or one per split, each verified."""

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

import tokenstore
from tokenstore.builder import BuildOptions, BuildResult, build_store

SPLITS = "train=0.5,test=0.3,other=0.2"


def write_records(path: Path, records: Sequence[Any]) -> Path:
    """Write dicts as records; to .jsonl also bytes as they are, and None as an empty line.

    A .parquet file gets row groups of two rows, an .arrow file batches of three.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = "".join(path.suffixes)
    if ending in (".jsonl", ".jsonl.gz"):
        data = b"".join(_line(record) + b"\n" for record in records)
        path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    elif ending == ".csv":
        with open(path, "w", newline="") as file:
            rows = csv.DictWriter(file, list(records[0]))
            rows.writeheader()
            rows.writerows(records)
    elif ending == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(records)), path, row_group_size=2)
    else:
        table = pa.Table.from_pylist(list(records))
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as out:
            out.write_table(table, max_chunksize=3)
    return path


def _line(record: Any) -> bytes:
    if record is None or isinstance(record, bytes):
        return record or b""
    return json.dumps(record, ensure_ascii=False).encode()


def build_stores(output: Path, *inputs: Path, note: Callable = print, **options: object) -> BuildResult:
    """Build with the bytes tokenizer by default, and verify every store."""
    wanted = BuildOptions(tuple(map(str, inputs)), output, **{"tokenizer": "bytes", **options})
    result = build_store(wanted, note=note)
    for store in result.splits or (result,):
        assert tokenstore.verify(store.path) == []
    return result


def all_files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(path: Path) -> list[tuple[list[int], list[bool], str | None, tuple[str, int] | None]]:
    """(tokens, loss mask, id, origin) of every document of a store."""
    with tokenstore.open_store(path) as store:
        origins = [store.origin(i) for i in range(len(store))]
        return [
            (store[i].tolist(), store.loss_mask(i).tolist(), store.id(i), origin and (origin.file, origin.record))
            for i, origin in enumerate(origins)
        ]


def texts_of(path: Path) -> list[str]:
    """The texts of a store of the bytes tokenizer that ends documents with the eos token."""
    with tokenstore.open_store(path) as store:
        return [bytes(document[:-1].tolist()).decode() for document in store]


def json_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
