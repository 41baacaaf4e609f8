"""Inputs of every format for stores that are appended to, and everything a store records about its documents."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import zstandard
from pyarrow import parquet

from tests.data.texts import TEXTS
from tokenstore.store import open_store


def rows(batch: int, count: int = 9) -> list[dict[str, Any]]:
    """Records that can be read as texts, tokens or conversations, all different."""
    return [
        {
            "text": f"{batch}.{number} {TEXTS[(5 * batch + number) % len(TEXTS)]}" if number != 4 else "",
            "id": f"{batch}-{number}",
            "number": number,
            "input_ids": [batch, number, *range(number + 1)],
            "labels": [-100, number, *range(number + 1)],
            "messages": [
                {"role": "user", "content": f"{batch} {number}?"},
                {"role": "assistant", "content": TEXTS[number]},
            ],
        }
        for number in range(count)
    ]


def write_rows(path: Path, values: Sequence[dict[str, Any]]) -> Path:
    """Write the rows in the format of the path's ending; a text file has the text of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    plain = [{name: value for name, value in row.items() if not isinstance(value, list)} for row in values]
    if path.suffix in (".parquet", ".arrow"):
        table = pyarrow.Table.from_pylist(list(values))
        if path.suffix == ".parquet":
            parquet.write_table(table, path, row_group_size=4)
        else:
            with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
    elif path.suffix in (".csv", ".tsv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(plain[0]), delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(plain)
    else:
        data = values[0]["text"].encode() if ".txt" in path.suffixes else lines
        pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
        path.write_bytes(pack(data))
    return path


def known(path: Path, version: int | None = None) -> dict[str, Any]:
    """Everything a store records about its documents and inputs."""
    with open_store(path, version=version) as store:
        manifest = store.manifest
        lines = store.file("inputs.jsonl").read_bytes().splitlines()
        return {
            "documents": [document.tolist() for document in store],
            "origins": [store.origin(i) for i in range(len(store))],
            "ids": [store.id(i) for i in range(len(store))],
            "masks": [store.loss_mask(i).tolist() for i in range(len(store))],
            "length_index": store.length_index().tolist(),
            "counts": manifest.counts,
            "inputs": [json.loads(line) for line in lines],
            "same": (manifest.options, vars(manifest.tokenizer), manifest.package_versions, manifest.ends_with_eos),
            "has": (manifest.has_masks, manifest.has_origins, manifest.has_ids),
        }


def stores_of(path: Path) -> list[Path]:
    """The store at a path, or those of its splits."""
    return [path] if (path / "manifest.json").exists() else sorted(path.iterdir())


def whole_tree(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
