"""Rows of tables: .parquet, Arrow streams and files (.arrow, as Hugging Face `save_to_disk` writes them), .csv and .tsv.

One column is read and no other. Every row is a record, also one without text.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tokenstore.build.units import Slice
from tokenstore.errors import BuildError

_BATCH_ROWS = 256  # some megabytes at worst for usual documents
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MARK = "\ufeff"


def table_rows(path: Path, ending: str, part: Slice, field: str, done: Callable[[int], None]) -> Iterator[bytes | None]:
    """The column `field` of a .parquet or .arrow file, row by row.

    Args:
        part: of a .parquet file the row groups that begin in its bytes, of another the whole file.
        field: a column, or `a.b` for field b of column a.
        done: called with how many bytes of the slice are read, about.
    Returns: bytes, which need not be UTF-8, or None for a null.
    Raises: BuildError: a damaged file, no such column, or one that holds no text.
    """
    import pyarrow

    batches = _parquet_batches if ending == ".parquet" else _arrow_batches
    try:
        for batch in batches(path, part, field, done):
            yield from _values(batch, field, path)
    except (pyarrow.ArrowException, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise BuildError(
            f"input: expected a whole {ending} file, found {text} ({path}); fetch it again or leave it out"
        ) from error


def _parquet_batches(path: Path, part: Slice, field: str, done: Callable[[int], None]) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        starts = [_first_byte(file.metadata.row_group(i)) for i in range(file.num_row_groups)]
        stop = path.stat().st_size if part.stop is None else part.stop
        groups = [i for i, start in enumerate(starts) if part.start <= start < stop]
        total = max(sum(file.metadata.row_group(i).num_rows for i in groups), 1)
        columns = [field] if _is_there(file.schema_arrow, field) else []
        if not columns:
            raise _no_column(field, file.schema_arrow.names, path)
        rows = 0
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
            rows += batch.num_rows
            done((stop - part.start) * rows // total)
            yield batch


def _first_byte(group: Any) -> int:
    """Where a row group begins in the file."""
    column = group.column(0)
    return min(x for x in (column.dictionary_page_offset, column.data_page_offset) if x is not None)


def _arrow_batches(path: Path, part: Slice, field: str, done: Callable[[int], None]) -> Iterator[Any]:
    import pyarrow

    with pyarrow.OSFile(str(path)) as raw:
        size = raw.size()
        is_file = raw.read(6) == b"ARROW1"
        if not is_file:
            raw.seek(max(size - len(_STREAM_END), 0))
            if raw.read() != _STREAM_END:  # pyarrow takes a stream that was cut between two batches for a whole one
                raise pyarrow.ArrowInvalid("the end of the file before the end of the stream")
        raw.seek(0)
        reader = pyarrow.ipc.open_file(raw) if is_file else pyarrow.ipc.open_stream(raw)
        if not _is_there(reader.schema, field):
            raise _no_column(field, reader.schema.names, path)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            done(raw.tell())
            yield batch


def _is_there(schema: Any, field: str) -> bool:
    if field in schema.names:
        return True
    names = field.split(".")
    if names[0] not in schema.names:
        return False
    kind = schema.field(names[0]).type
    for name in names[1:]:
        if not hasattr(kind, "get_field_index") or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def _no_column(field: str, names: list[str], path: Path) -> BuildError:
    return BuildError(f"text field: expected one of the columns {names}, found {field!r} ({path}); give --text-field")


def _values(batch: Any, field: str, path: Path) -> Iterator[bytes | None]:
    """The values of one column as bytes: a string column need not hold UTF-8, and one bad row must not stop the others."""
    import pyarrow
    from pyarrow import compute

    names = [field] if field in batch.schema.names else field.split(".")
    column = batch.column(names[0])
    if len(names) > 1:
        column = compute.struct_field(column, names[1:])
    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    if pyarrow.types.is_null(kind):
        yield from [None] * len(column)
        return
    tests = ("is_string", "is_large_string", "is_binary", "is_large_binary", "is_string_view", "is_binary_view")
    if not any(getattr(pyarrow.types, test)(kind) for test in tests):
        raise BuildError(f"text field: expected a column of text, found {field!r} of type {kind} ({path})")
    if kind != column.type:
        column = column.dictionary_decode()
    yield from column.cast(pyarrow.large_binary()).to_pylist()


def csv_rows(stream: BinaryIO, delimiter: str, field: str, path: Path) -> Iterator[bytes | ValueError]:
    """The column `field` of a .csv or .tsv file with a header line, row by row; a ValueError for a row of another width."""
    csv.field_size_limit(sys.maxsize)
    # Bytes that are not UTF-8 stay what they are, so that only their own row is bad
    text = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        header = [name.removeprefix(_MARK) if i == 0 else name for i, name in enumerate(header)]
        if header.count(field) != 1:
            raise _no_column(field, header, path)
        at = header.index(field)
        for row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                yield ValueError(f"expected {len(header)} fields, found {len(row)}")
            else:
                yield row[at].encode("utf-8", "surrogateescape")
    except csv.Error as error:
        raise BuildError(
            f"input: expected rows of a .csv file, found {error} after line {rows.line_num} ({path}); mend it or leave it out"
        ) from error
    finally:
        text.detach()  # whoever opened the stream closes it
