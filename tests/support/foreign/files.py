"""Writers of token files as other tools write them. Every document is a list of ids; EOS ends a document, or begins it."""

import csv
import gzip
import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

EOS = 99
DOCUMENTS = [[5, 7, EOS], [8, EOS], [1, 2, 3, 4, 5, EOS], [6, EOS]]
STARTED = [[EOS, 5, 7], [EOS, 8], [EOS, 1, 2, 3, 4, 5], [EOS, 6]]
CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}
Documents = Sequence[Sequence[int]]


def megatron(
    prefix: Path,
    documents: Documents = DOCUMENTS,
    dtype: str = "<u2",
    cut: int | None = None,
    modes: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> Path:
    """`prefix.bin` and `prefix.idx`. Returns the .bin.

    Args:
        prefix: of both files.
        documents: in the order of the index.
        dtype: of the tokens.
        cut: longest sequence; a longer document is several. Default: a document is a sequence.
        modes: one per sequence.
        order: numbers of the sequences in the order in which they are in the .bin, as after a merge by hand.
    """
    rows = [[list(d[i : i + (cut or len(d) or 1)]) for i in range(0, len(d), cut or len(d) or 1)] for d in documents]
    sequences = [sequence for row in rows for sequence in row]
    pointers, at = [0] * len(sequences), 0
    with open(prefix.with_suffix(".bin"), "wb") as file:
        for number in range(len(sequences)) if order is None else order:
            pointers[number] = at
            at += file.write(np.array(sequences[number], dtype).tobytes())
    borders = np.cumsum([0, *map(len, rows)])
    data = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(sequences), borders.size)
    data += np.array([len(each) for each in sequences], "<i4").tobytes() + np.array(pointers, "<i8").tobytes()
    data += borders.astype("<i8").tobytes() + np.array(modes or [], "i1").tobytes()
    prefix.with_suffix(".idx").write_bytes(data)
    return prefix.with_suffix(".bin")


def datatrove(
    path: Path, documents: Documents = DOCUMENTS, size: int = 2, loss: Documents | None = None, metadata: bool = True
) -> Path:
    """`x.ds`, its index, metadata and loss mask. Returns the .ds."""
    ends = np.cumsum([len(document) for document in documents])
    path.write_bytes(np.concatenate(documents).astype(f"<u{size}").tobytes())
    path.with_name(path.name + ".index").write_bytes(ends.astype("<u8").tobytes())
    if metadata:
        path.with_name(path.name + ".metadata").write_text(f"tools/gpt|x|{size}\n{ends[-1]}\n{ends[-1]} T")
    if loss is not None:
        path.with_name(path.name + ".loss").write_bytes(np.concatenate(loss).astype("u1").tobytes())
    return path


def dolma(path: Path, documents: Documents = DOCUMENTS, dtype: str = "<u2", rows: str | None = "ids") -> Path:
    """`x.npy`, headerless, and `x.csv.gz` with `ids`, with `places` only, or None. Returns the .npy."""
    path.write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    if rows is not None:
        ends = np.cumsum([len(document) for document in documents]).tolist()
        starts = [0, *ends[:-1]]
        table = [[start, end, f"id,{i}", "a.jsonl", i] for i, (start, end) in enumerate(zip(starts, ends, strict=True))]
        write_rows(path, [row if rows == "ids" else row[:2] for row in table])
    return path


def write_rows(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """The .csv.gz of a .npy."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def nanogpt(path: Path, documents: Documents = DOCUMENTS, dtype: str = "<u2") -> Path:
    """A file of tokens alone."""
    path.write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    return path


def llmc(path: Path, documents: Documents = STARTED, header: tuple[int, ...] | None = None, dtype: str = "<u2") -> Path:
    """A file with a header of 256 int32."""
    tokens = np.concatenate(documents).astype(dtype)
    known = (20240520, 1, tokens.size) if dtype == "<u2" else (20240801, 7, tokens.size)
    words = np.zeros(256, "<i4")
    words[: len(header or known)] = header or known
    path.write_bytes(words.tobytes() + tokens.tobytes())
    return path


WRITERS: dict[str, tuple[Callable[..., Path], str, Documents]] = {
    "megatron": (megatron, "x", DOCUMENTS),
    "datatrove": (datatrove, "x.ds", DOCUMENTS),
    "dolma": (dolma, "x.npy", DOCUMENTS),
    "nanogpt": (nanogpt, "x.bin", DOCUMENTS),
    "llmc": (llmc, "x.bin", STARTED),
}
