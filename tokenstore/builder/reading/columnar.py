"""Reads the rows of tables: .parquet; .arrow (streams and files, also of Hugging Face `save_to_disk`); .csv and .tsv.

Only the columns asked for are read. Every row is a record, even without text.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from tokenstore.builder.reading.decompress import Stream
from tokenstore.builder.reading.remote_inputs import InputPath, RemotePath, open_input
from tokenstore.builder.reading.units import Slice
from tokenstore.errors import BuildError, require

_BATCH_ROWS, _BATCH_BYTES = 256, 8 << 20  # rows are read in batches that exceed neither
_MOST_CHARACTERS = 1 << 27  # a field of .csv up to this length is read to its end, so that the next row can be found
_FILE_START = b"ARROW1\x00\x00"
_NOT_UTF8 = "Invalid UTF8"
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

Columns = tuple[str, ...] | None  # None: all
Partition = tuple[tuple[str, str | None], ...]


def table_rows(
    path: InputPath,
    ending: str,
    part: Slice,
    columns: Columns,
    done: Callable[[int], None],
    partition: Partition = (),
) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a .parquet or .arrow file.

    Args:
        path: the file.
        ending: `.parquet` or `.arrow`.
        part: the slice to read: of a .parquet file the row groups placed in it, otherwise the whole file.
        columns: columns, or `a.b` for field b of column a, which is then returned as {"a": {"b": value}}.
        done: called with the approximate number of bytes of the slice read so far.
        partition: columns of a .parquet file that its folders name, and their values.

    Yields:
        A row, or a ValueError for a row whose text is not UTF-8 or whose values Python cannot represent.

    Raises:
        BuildError: the file is damaged, or has no such column.
    """
    require("pyarrow", f"input: {path}", "build")
    import pyarrow

    batches = _parquet_batches if ending == ".parquet" else _arrow_batches
    more = dict(partition)
    names = None if columns is None else tuple(name for name in columns if name not in more)
    try:
        for batch in batches(path, part, names, done):
            for row in _rows(batch):
                yield {**more, **row} if more and isinstance(row, dict) else row
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:  # a name of a column need not be UTF-8
        raise damaged(path, error) from error


def first_bytes(path: InputPath, count: int) -> bytes:
    """The first `count` bytes of a file; b"" if it cannot be read, which is reported when its rows are read."""
    try:
        with io.BufferedReader(open_input(path)) as file:
            return file.read(count)
    except OSError:
        return b""


def damaged(path: InputPath, error: Exception) -> BuildError:
    """The error for an input that its library cannot read to the end."""
    text = " ".join(str(error).split())[:200]
    return BuildError(f"input: {path} is damaged or incomplete ({text}); fetch it again or omit it")


def _source(path: InputPath) -> Any:
    """What pyarrow reads an input from."""
    return io.BufferedReader(open_input(path)) if isinstance(path, RemotePath) else path


def group_slices(path: InputPath) -> list[tuple[Slice, int]]:
    """The row groups of a .parquet file as slices, with the number of rows of each; BuildError for a damaged file."""
    require("pyarrow", f"input: {path}", "build")
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(_source(path)) as file:
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    size = path.stat().st_size
    places = _places(groups, size)
    bounds = zip(pairwise([*places, size]), groups, strict=True)
    return [(Slice(0, start, stop), group.num_rows) for (start, stop), group in bounds if start < stop]


def _parquet_batches(path: InputPath, part: Slice, columns: Columns, done: Callable[[int], None]) -> Iterator[Any]:
    from pyarrow import parquet

    # With these settings at most one column chunk of a row group is in memory
    with parquet.ParquetFile(
        _source(path), page_checksum_verification=True, pre_buffer=False, buffer_size=1 << 20
    ) as file:
        _check_columns(columns, file.schema_arrow, path)
        names = _list(columns, file.schema_arrow)
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        _check_rows("a file", file.metadata.num_rows, sum(group.num_rows for group in groups))
        size = path.stat().st_size
        stop = size if part.stop is None else part.stop
        mine = [i for i, place in enumerate(_places(groups, size)) if part.start <= place < stop]
        total = sum(groups[i].num_rows for i in mine)
        rows = 0
        for i in mine:
            group_bytes = max(groups[i].total_byte_size, 1)
            batch_rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES * groups[i].num_rows // group_bytes))
            for batch in file.iter_batches(batch_rows, row_groups=[i], columns=names, use_threads=False):
                rows += batch.num_rows
                done((stop - part.start) * rows // max(total, 1))
                yield batch
        _check_rows("its row groups", total, rows)


def _places(groups: Sequence[Any], size: int) -> list[int]:
    """A byte position in the file for each row group, in order, that says to which slice the group belongs.

    Computed from the groups' sizes, as offsets in a damaged file may be anything.
    """
    sizes = [max(group.total_byte_size, 0) + 1 for group in groups]
    total = max(sum(sizes), 1)
    return [size * before // total for before in accumulate(sizes[:-1], initial=0)] if sizes else []


def _check_rows(where: str, expected: int, found: int) -> None:
    import pyarrow

    if found != expected:
        raise pyarrow.ArrowInvalid(f"{found} rows in {where} of {expected}")


def _list(columns: Columns, schema: Any) -> list[str] | None:
    """The columns to read. Of a path into a list, the column that holds the list."""
    return None if columns is None else [_readable(name, schema) for name in columns]


def _readable(name: str, schema: Any) -> str:
    if name in schema.names or not _has_index(name):
        return name
    return _top(name, schema)


def _has_index(name: str) -> bool:
    return any(part.lstrip("-").isdigit() for part in name.replace("[", ".").replace("]", "").split("."))


def _arrow_batches(path: InputPath, part: Slice, columns: Columns, done: Callable[[int], None]) -> Iterator[Any]:
    import pyarrow

    with pyarrow.PythonFile(_source(path), "r") if isinstance(path, RemotePath) else pyarrow.OSFile(str(path)) as raw:
        listed = None
        if raw.read(len(_FILE_START)) == _FILE_START:
            listed = pyarrow.ipc.open_file(raw).num_record_batches
            raw.seek(len(_FILE_START))  # an Arrow file is a stream followed by an index
        else:
            _check_stream_end(raw)
        reader = pyarrow.ipc.open_stream(raw)
        _check_columns(columns, reader.schema, path)
        wanted = None if columns is None else sorted({_top(name, reader.schema) for name in columns})
        for batch in reader if listed is None else _counted(reader, listed):
            done(raw.tell())
            batch = batch if wanted is None else batch.select(wanted)
            _check_batch(batch)
            yield batch
        if listed is None and raw.tell() != raw.size():  # of concatenated streams pyarrow reads only the first
            raise pyarrow.ArrowInvalid(f"{raw.size() - raw.tell()} bytes after the end of the stream")


def _check_stream_end(raw: Any) -> None:
    """ArrowInvalid for a truncated stream. One that ends between two batches looks complete to pyarrow."""
    import pyarrow

    raw.seek(max(raw.size() - len(_STREAM_END), 0))
    if raw.read() != _STREAM_END:
        raise pyarrow.ArrowInvalid("the end of the file before the end of the stream")
    raw.seek(0)


def _counted(reader: Any, listed: int) -> Iterator[Any]:
    """The batches of an Arrow file, read as a stream and counted: a damaged index may list fewer than there are."""
    import pyarrow

    found = 0
    try:
        for batch in reader:
            found += 1
            yield batch
    except (pyarrow.ArrowException, OSError):
        if found != listed:  # if all were found, only the end-of-stream mark is missing, which some writers omit
            raise
    if found != listed:
        raise pyarrow.ArrowInvalid(f"{found} batches and an index of {listed}")


def _check_batch(batch: Any) -> None:
    """ArrowInvalid for a damaged batch. Without this check pyarrow follows its offsets, even outside of memory."""
    import pyarrow

    try:
        batch.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        if _NOT_UTF8 not in str(error) or batch.num_rows == 0:
            raise
        if batch.num_rows > 1:  # a row is not UTF-8, which makes it a bad record; check the others one by one
            for i in range(batch.num_rows):
                _check_batch(batch.slice(i, 1))


def _top(name: str, schema: Any) -> str:
    return name if name in schema.names else name.split(".")[0].split("[")[0]


def _check_columns(columns: Columns, schema: Any, path: InputPath) -> None:
    for name in columns or ():
        if not _is_there(schema, name):
            raise _no_column(name, schema.names, path)


def _is_there(schema: Any, field: str) -> bool:
    if field in schema.names:
        return bool(schema.names.count(field) == 1)
    if _has_index(field):  # what is inside lists is known only when they are read
        return bool(schema.names.count(_top(field, schema)) == 1)
    names = field.split(".")
    if schema.names.count(names[0]) != 1:
        return False
    kind = schema.field(names[0]).type
    for name in names[1:]:
        if not hasattr(kind, "get_field_index") or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def _no_column(field: str, names: Sequence[str], path: InputPath) -> BuildError:
    if (number := names.count(field)) > 1:
        return BuildError(f"field: {number} columns are named {field!r} ({path}); rename all but one")
    there = f"its columns are {', '.join(map(repr, names))}" if names else "it has none"
    return BuildError(
        f"field: there is no column {field!r} in {path}; {there}; name one with --text-field or the field's option"
    )


def _rows(batch: Any) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a batch. A row that cannot be converted, for example without UTF-8, does not affect the others."""
    for first in range(0, batch.num_rows, _BATCH_ROWS):
        some = batch.slice(first, _BATCH_ROWS)
        try:
            yield from some.to_pylist()
        except (ValueError, OverflowError):  # not UTF-8, or a time outside the range of Python's datetime
            for i in range(some.num_rows):
                try:
                    yield from some.slice(i, 1).to_pylist()
                except UnicodeDecodeError as error:
                    yield ValueError(f"not UTF-8: {error.reason} at byte {error.start}")
                except (ValueError, OverflowError) as error:
                    yield ValueError(f"a value that Python cannot represent: {error}"[:200])


def csv_rows(
    stream: Stream, delimiter: str, columns: Columns, path: InputPath, max_bytes: int
) -> Iterator[dict[str, str] | ValueError]:
    """The rows of a .csv or .tsv file with a header line.

    Args:
        stream: the file's bytes, decompressed.
        delimiter: between fields.
        columns: names of the columns to read; None for all.
        path: for messages.
        max_bytes: rows with more bytes than this in their fields are bad.

    Yields:
        A row, or a ValueError for a bad one: too long, not UTF-8, or with another number of fields than the header.

    Raises:
        BuildError: the file is not valid CSV, or a column is missing.
    """
    csv.field_size_limit(max(max_bytes, _MOST_CHARACTERS))
    # utf-8-sig: a byte order mark before a quote would hide the quote. surrogateescape: bytes that are not UTF-8 must not
    # stop the reader, so that only their row is bad.
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        names = header if columns is None else columns
        for name in names:
            if header.count(name) != 1:
                raise _no_column(name, header, path)
        places = [(name, header.index(name)) for name in names]
        for row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                yield ValueError(f"expected {len(header)} fields, found {len(row)}")
            elif _is_longer(row, max_bytes):
                yield ValueError(longer_than(max_bytes))
            else:
                yield _csv_row({name: row[at] for name, at in places})
    except csv.Error as error:
        raise BuildError(
            f"input: {path} is not valid CSV: {error} after line {rows.line_num}; fix or omit it"
        ) from error
    finally:
        text.detach()  # leave the stream open: the caller closes it


def longer_than(max_bytes: int) -> str:
    """The reason given for a record that is too long."""
    return f"longer than {max_bytes} bytes; --max-record-size allows more"


def _is_longer(row: Sequence[str], max_bytes: int) -> bool:
    if 4 * sum(map(len, row)) <= max_bytes:  # no character has more bytes
        return False
    return sum(len(value.encode("utf-8", "surrogateescape")) for value in row) > max_bytes


def _csv_row(row: dict[str, str]) -> dict[str, str] | ValueError:
    for value in row.values():
        if not value.isascii():
            try:
                value.encode("utf-8", "surrogateescape").decode("utf-8")
            except UnicodeDecodeError as error:
                return ValueError(f"not UTF-8: {error.reason} at byte {error.start}")
    return row
