"""Metadata: columns of values beside the documents, as an Arrow file (FMT-16).

While a store is written, the values are JSON lines in a second file, because the types of the columns are known only at the end:
a column of integers in a thousand files may hold a string in the last one.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenstore.errors import BuildError, CorruptionError, require
from tokenstore.format.layout import MAX_METADATA_BYTES, METADATA_BATCH
from tokenstore.format.manifest import FileEntry
from tokenstore.store.output import Output
from tokenstore.store.writing import remove

if TYPE_CHECKING:
    import numpy as np

_JSON = {b"tokenstore": b"json"}  # metadata of a text column that holds JSON
_LARGEST_INT = 1 << 63
_KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "text"}


def kind_of(value: object) -> str:
    """The kind of a JSON value: bool, int, float, text, json (anything else) or null."""
    if value is None:
        return "null"
    if type(value) is int and not -_LARGEST_INT <= value < _LARGEST_INT:
        return "json"
    return _KINDS.get(type(value), "json")


def common_kind(kinds: set[str]) -> str:
    """The kind of a column whose values have these kinds."""
    found = kinds - {"null"}
    if found == {"int", "float"}:
        return "float"
    return found.pop() if len(found) == 1 else "json" if found else "text"


def encode_metadata(values: Sequence[Any]) -> bytes:
    """The JSON list of a document's values; ValueError for values that JSON does not have."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class MetadataOutput:
    """The metadata of a new store: lines of JSON until `close`, which writes the Arrow file."""

    def __init__(self, path: Path, columns: Sequence[str], buffer_bytes: int = 1 << 20):
        require("pyarrow", f"metadata: {path.name}", "build")  # now, not after all documents are written
        self.columns = tuple(columns)
        self.path = path
        self._lines = Output(path.with_name(path.name + ".part"), buffer_bytes)
        self._kinds: list[set[str]] = [set() for _ in self.columns]

    def write(self, rows: Sequence[bytes]) -> None:
        """Append rows, each a JSON list with a value per column.

        Raises:
            BuildError: a row has more than MAX_METADATA_BYTES bytes.
        """
        if rows and len(longest := max(rows, key=len)) > MAX_METADATA_BYTES:
            raise BuildError(
                f"metadata: expected at most {MAX_METADATA_BYTES} bytes per document, found {len(longest)}"
                f" ({longest[:60]!r}...); keep fewer or shorter fields"
            )
        for values in json.loads(b"[" + b",".join(rows) + b"]"):
            for kinds, value in zip(self._kinds, values, strict=True):
                kinds.add(kind_of(value))
        self._lines.write(b"".join(row + b"\n" for row in rows))

    def empty_columns(self) -> list[str]:
        """The columns without any value."""
        return [name for name, kinds in zip(self.columns, self._kinds, strict=True) if kinds <= {"null"}]

    def close(self) -> FileEntry:
        """Write the Arrow file. Returns its size and checksum."""
        import pyarrow

        self._lines.close()
        kinds = [common_kind(kinds) for kinds in self._kinds]
        schema = _schema(self.columns, kinds)
        output = Output(self.path)
        with output, open(self._lines.path, "rb") as lines:
            sink = pyarrow.PythonFile(_Sink(output), mode="w")
            with pyarrow.ipc.new_file(sink, schema) as file:
                while rows := list(islice(lines, METADATA_BATCH)):
                    columns = zip(*map(json.loads, rows), strict=True)
                    arrays = [
                        pyarrow.array([_stored(value, kind) for value in column], schema.field(i).type)
                        for i, (column, kind) in enumerate(zip(columns, kinds, strict=True))
                    ]
                    file.write_batch(pyarrow.record_batch(arrays, schema=schema))
            entry = output.close()
        remove(self._lines.path)
        return entry

    def abandon(self) -> None:
        """Close the file without raising."""
        self._lines.abandon()

    def __enter__(self) -> "MetadataOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()


class _Sink:
    """An `Output` with the methods that pyarrow calls."""

    closed = False

    def __init__(self, output: Output):
        self._output = output

    def write(self, data: Any) -> int:
        """Append bytes."""
        self._output.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing: `Output.close` flushes."""

    def close(self) -> None:
        """Nothing: the `Output` is closed by its owner."""


def _schema(columns: Sequence[str], kinds: Sequence[str]) -> Any:
    import pyarrow

    types = {"bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    return pyarrow.schema(
        [
            pyarrow.field(name, types.get(kind, pyarrow.large_string()), metadata=_JSON if kind == "json" else None)
            for name, kind in zip(columns, kinds, strict=True)
        ]
    )


def _stored(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return float(value) if kind == "float" else value


class MetadataReader:
    """Reads rows of a metadata file. Nothing in it is trusted: every batch is validated before it is used.

    Args:
        data: uint8[n], all bytes of the file.
        num_documents: of the store.
        path: of the file, for messages.

    Raises:
        CorruptionError: the file is damaged.
    """

    def __init__(self, data: "np.ndarray", num_documents: int, path: Path):
        require("pyarrow", f"metadata: {path}", "build")
        import pyarrow

        self.path, self._num_documents = path, num_documents
        try:
            self._file = pyarrow.ipc.open_file(pyarrow.py_buffer(data))
            self.columns: tuple[str, ...] = tuple(self._file.schema.names)
            self._is_json = [_holds_json(field) for field in self._file.schema]
            found = self._file.num_record_batches
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise self._damaged("an Arrow file", str(error)) from error
        if found != -(-num_documents // METADATA_BATCH):
            raise self._damaged(f"batches of {METADATA_BATCH} documents for {num_documents}", f"{found} batches")
        if not all(map(self._is_known, self._file.schema)) or len(set(self.columns)) != len(self.columns):
            raise self._damaged("columns of booleans, int64, float64 or text", f"{self._file.schema}")
        self._last: tuple[int, Any] | None = None

    @staticmethod
    def _is_known(field: Any) -> bool:
        return str(field.type) in ("bool", "int64", "double", "large_string")

    def row(self, document: int) -> dict[str, Any]:
        """The values of a document, 0 <= document < num_documents; None where it has none."""
        number, place = divmod(document, METADATA_BATCH)
        if self._last is None or self._last[0] != number:
            self._last = number, self._batch(number)
        batch = self._last[1]
        values = (self._value(batch.column(i)[place].as_py(), i) for i in range(len(self.columns)))
        return dict(zip(self.columns, values, strict=True))

    def rows(self) -> Iterator[list[list[Any]]]:
        """The values of all documents, in blocks of rows."""
        for number in range(self._file.num_record_batches):
            batch = self._batch(number)
            columns = [
                [self._value(value, i) for value in batch.column(i).to_pylist()] for i in range(len(self.columns))
            ]
            yield [list(row) for row in zip(*columns, strict=True)]

    def check(self) -> None:
        """Read everything. CorruptionError if a batch is damaged."""
        for _ in self.rows():
            pass

    def _batch(self, number: int) -> Any:
        import pyarrow

        try:
            batch = self._file.get_batch(number)
            batch.validate(full=True)  # without this, pyarrow follows damaged offsets outside of the file
        except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self._damaged("a sound batch", f"{error} in batch {number}") from error
        expected = min(METADATA_BATCH, self._num_documents - number * METADATA_BATCH)
        if batch.num_rows != expected:
            raise self._damaged(f"{expected} rows in batch {number}", f"{batch.num_rows}")
        return batch

    def _value(self, value: Any, column: int) -> Any:
        if value is None or not self._is_json[column]:
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"JSON in column {self.columns[column]!a}", str(error)[:120]) from error

    def _damaged(self, expected: str, found: str) -> CorruptionError:
        return CorruptionError(
            f"metadata: expected {expected}, found {' '.join(found.split())[:200]} ({self.path}); run `tokenstore verify"
            f" {self.path.parent}`, and copy or build the store again"
        )


def _holds_json(field: Any) -> bool:
    return (field.metadata or {}).get(b"tokenstore") == b"json" and str(field.type) == "large_string"
