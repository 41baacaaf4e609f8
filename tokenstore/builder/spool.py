"""Records that can be read only once, from standard input or a Python iterable: they are first written to a file.

The file is in the work folder of the build and is removed with it. From then on it is an input like any other: it is read by all
workers, and a killed build resumes. If the same command runs again with the same records, the file is kept as it is, so that
finished parts count.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.inputs import STANDARD_INPUT
from tokenstore.errors import ConfigError
from tokenstore.store.work import Work
from tokenstore.store.writing import create_again, move_file, own_folder, sync

PYTHON_NAME = "python.jsonl"  # of records from a Python iterable
_CHUNK = 1 << 20


def spool_folder(work: Work) -> Path:
    """The folder of spooled inputs."""
    return work.folder / "spool"


def spool(work: Work, name: str, chunks: Iterable[bytes]) -> Path:
    """Write bytes to a file of the work folder; keep an existing file that holds these bytes already.

    Args:
        work: the work folder, locked.
        name: of the file.
        chunks: the bytes, in order.

    Returns:
        The path of the file, complete and durable.

    Raises:
        OSError: the disk is full.
    """
    folder = spool_folder(work)
    own_folder(folder)
    path = folder / name
    source = iter(chunks)
    same, rest = _compare(path, source)
    if rest is None:
        return path
    unfinished = path.with_name(name + ".part")
    with create_again(unfinished) as file:
        _copy(path, same, file)
        file.write(rest)
        for chunk in source:
            file.write(chunk)
        sync(file)
    move_file(unfinished, path)
    return path


def _compare(path: Path, source: Iterator[bytes]) -> tuple[int, bytes | None]:
    """(bytes of the file at `path` that begin the source, what follows in the source); None if nothing does, in both."""
    same = 0
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:
        return 0, b""
    with file:
        for chunk in source:
            if file.read(len(chunk)) != chunk:
                return same, chunk
            same += len(chunk)
        return same, b"" if file.read(1) else None


def _copy(path: Path, num_bytes: int, target: BinaryIO) -> None:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb")) if num_bytes else None
        while file and num_bytes and (data := file.read(min(_CHUNK, num_bytes))):
            target.write(data)
            num_bytes -= len(data)


def standard_input() -> Iterator[bytes]:
    """The bytes of standard input. ConfigError if it is a terminal, where nobody would notice that it waits."""
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError("input: - is standard input, which is a terminal here; pipe records into the command")
    return iter(lambda: sys.stdin.buffer.read(_CHUNK), b"")


def spooled_input(work: Work, options: BuildOptions, records: Iterable[Mapping[str, Any]] | None) -> Path | None:
    """The file with what the input `-` stands for: `records`, or standard input; None if `-` is not among the inputs."""
    if STANDARD_INPUT not in options.inputs:
        return None
    if records is not None:
        return spool(work, PYTHON_NAME, json_lines(records))
    return spool(work, f"stdin{options.stdin_format}", standard_input())


def json_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Records as lines of JSON, in chunks. Arrays of numbers become lists.

    Raises:
        TypeError: a record is no mapping.
        ValueError: a value has no form in JSON.
    """
    import orjson

    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    lines: list[bytes] = []
    size = 0
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise TypeError(
                f"record {number}: expected a dict, found {type(record).__name__}; for texts give {{'text': text}}, and for"
                " files a path or a list of paths"
            )
        try:
            line = orjson.dumps(dict(record), default=_plain, option=options)
        except (orjson.JSONEncodeError, UnicodeError) as error:
            raise ValueError(f"record {number}: {error}") from error
        lines.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)


def _plain(value: Any) -> Any:
    """A list for an array that orjson does not take, such as a tensor; a text for other objects."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
