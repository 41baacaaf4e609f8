"""Random records in every format, built, against a simple reader and one call of the tokenizer per text."""

import csv
import gzip
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import tokenstore
from tokenstore.builder import BuildOptions, build_store, pipeline
from tokenstore.builder.reading.units import cut_units

Records = list[dict[str, Any]]
Outcome = tuple[str, list[int] | None]  # "document" or why there is none, and its tokens


def write_jsonl(path: Path, records: Records) -> None:
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    half = len(data) // 2
    if path.suffix == ".gz":
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])
    elif path.suffix == ".zst":
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    path.write_bytes(data)


def write_raw_jsonl(path: Path, records: Records) -> None:
    """No letter is escaped that need not be."""
    lines = (json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") for record in records)
    path.write_bytes(b"\r\n".join(lines))


def write_csv(path: Path, records: Records) -> None:
    with open(path, "w", newline="", encoding="utf-8-sig", errors="surrogatepass") as file:
        rows = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL)
        rows.writerow(("text", "id"))
        rows.writerows((record["text"], record["id"]) for record in records)  # their keys may come in any order


def table(records: Records, text: pa.DataType = pa.string()) -> pa.Table:  # noqa: B008  # never changed
    """Texts that are not UTF-8 are written as a careless writer would: as bytes in a string column."""
    texts = [None if r["text"] is None else r["text"].encode("utf-8", "surrogatepass") for r in records]
    column = pa.array(texts, pa.binary())
    if text == pa.string():
        column = pa.Array.from_buffers(text, len(column), column.buffers())
    elif text != pa.binary():
        column = column.cast(text)
    return pa.table({"text": column, "id": pa.array([r["id"] for r in records], pa.string())})


def write_parquet(**options: object) -> Callable[[Path, Records], None]:
    return lambda path, records: parquet.write_table(table(records), path, row_group_size=3, **options)


def write_binary_parquet(path: Path, records: Records) -> None:
    parquet.write_table(table(records, pa.binary()), path, compression="zstd")


def write_arrow(new: Callable) -> Callable[[Path, Records], None]:
    def write(path: Path, records: Records) -> None:
        made = table(records)
        with pa.OSFile(str(path), "wb") as raw, new(raw, made.schema) as out:
            out.write_table(made, max_chunksize=4)

    return write


def read_jsonl(path: Path) -> Iterable[dict[str, Any]]:
    """A record per line, by the standard library, which accepts lone surrogates; they are rejected below."""
    opened = {".gz": gzip.decompress, ".zst": _unzstd}.get(path.suffix, bytes)(path.read_bytes())
    return [json.loads(line.decode("utf-8", "surrogatepass")) for line in opened.split(b"\n") if line.strip()]


def _unzstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as stream:
        return stream.read()


def read_csv(path: Path) -> Iterable[dict[str, Any]]:
    with open(path, newline="", encoding="utf-8-sig", errors="surrogatepass") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def read_table(path: Path) -> Iterable[dict[str, Any]]:
    if path.suffix == ".parquet":
        made = parquet.read_table(path)
    else:
        opened = pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream
        made = opened(pa.BufferReader(path.read_bytes())).read_all()
    ids = made["id"].to_pylist()
    raw = [chunk.view(pa.binary()) if chunk.type == pa.string() else chunk for chunk in made["text"].chunks]
    texts = [text for chunk in raw for text in chunk.to_pylist()]
    return [{"text": text if text is None else text.decode("utf-8", "surrogatepass"), "id": id} for text, id in zip(texts, ids, strict=True)]  # fmt: skip


FORMATS: dict[str, tuple[Callable[[Path, Records], None], Callable[[Path], Iterable[dict[str, Any]]]]] = {
    "a.jsonl": (write_jsonl, read_jsonl),
    "raw.jsonl": (write_raw_jsonl, read_jsonl),
    "a.jsonl.gz": (write_jsonl, read_jsonl),
    "a.json.zst": (write_jsonl, read_jsonl),
    "a.csv": (write_csv, read_csv),
    "a.tsv": (write_csv, read_csv),
    "a.parquet": (write_parquet(compression="snappy", write_page_checksum=True), read_table),
    "v2.parquet": (write_parquet(use_dictionary=False, data_page_version="2.0"), read_table),
    "binary.parquet": (write_binary_parquet, read_table),
    "stream.arrow": (write_arrow(pa.ipc.new_stream), read_table),
    "file.arrow": (write_arrow(pa.ipc.new_file), read_table),
}

letters = st.one_of(
    st.characters(exclude_categories=()),  # lone surrogates too
    st.sampled_from('\0\n\r\t",\\ \u0085\u2028\u2029\ufeff\ud800é🦊a'),
)
texts = st.one_of(st.none(), st.text(letters, max_size=12), st.sampled_from(["<|endoftext|>", "", " ", "plain words"]))
ids = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=5), st.just("ü" * 9)
)
records = st.lists(st.fixed_dictionaries({"text": texts, "id": ids}), min_size=1, max_size=12)


def expected(path: Path, read: Callable[[Path], Iterable[dict[str, Any]]], tokenizer: Any, end: int) -> list[Outcome]:
    """The document or reason for each record, by the simplest means: the tokenizer's library, one text per call."""
    outcomes: list[Outcome] = []
    for record in read(path):
        text = record["text"]
        if text is None or any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            outcomes.append(("bad", None))
        elif not text:
            outcomes.append(("empty", None))
        else:
            outcomes.append((record["id"], [*tokenizer.encode(text, add_special_tokens=False).ids, end]))
    return outcomes


def check(folder: Path, name: str, made: Records, tokenizer_file: Path, num_units: int, patch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Write, build and compare one file."""
    from tokenizers import Tokenizer

    write, read = FORMATS[name]
    write(folder / name, made)
    boring = Tokenizer.from_file(str(tokenizer_file))
    boring.encode_special_tokens = True
    end = boring.token_to_id("<|endoftext|>")
    outcomes = expected(folder / name, read, boring, end)
    unit_bytes = max(1, (folder / name).stat().st_size // num_units)
    patch.setattr(pipeline, "cut_units", lambda files: cut_units(files, unit_bytes))
    options = BuildOptions((str(folder / name),), folder / "store", str(tokenizer_file), id_field="id", max_bad=99)
    good = [(number, *outcome) for number, outcome in enumerate(outcomes, 1) if outcome[1] is not None]
    if not good:
        with pytest.raises(tokenstore.TokenStoreError, match="expected at least one, found none"):
            build_store(options)
        return
    result = build_store(options)
    with tokenstore.open_store(result.path) as store:
        found = [(store.origin(i).record, store.id(i), document.tolist()) for i, document in enumerate(store)]
    assert found == good
    kinds = Counter("documents" if ids else kind for kind, ids in outcomes)
    assert Counter(result.counts) == Counter({"input files": 1, **kinds})
    rejects = [] if result.rejects is None else [json.loads(line)["record"] for line in result.rejects.read_text().splitlines()]  # fmt: skip
    assert rejects == [number for number, (kind, ids) in enumerate(outcomes, 1) if ids is None and kind == "bad"]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=10)
@given(made=records, num_units=st.sampled_from([1, 3, 8]))
def test_a_store_equals_the_output_of_a_simple_reader_and_tokenizer(
    name: str, made: Records, num_units: int, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8, P9: the same tokens, ids and record numbers, whatever the units; bad and empty records are counted."""
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), name, made, tokenizer_file, num_units, monkeypatch)


@pytest.mark.deep
@pytest.mark.parametrize("name", FORMATS)
@given(made=records, num_units=st.sampled_from([1, 3, 8]))
def test_a_store_equals_the_output_of_a_simple_reader_for_many_inputs(
    name: str, made: Records, num_units: int, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8, P9: the same, with more examples."""
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), name, made, tokenizer_file, num_units, monkeypatch)
