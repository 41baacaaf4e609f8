"""Reads files of other tools at positions. They are never mapped: a file that is cut while it is read is an error, not a signal."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from tokenstore.errors import BuildError
from tokenstore.outside import ANYWHERE, NotUsable, open_file, stat_file
from tokenstore.store.files import Identity, identity_of

BLOCK_BYTES = 1 << 20  # a multiple of 64; fits the cache of a core, so a block is read from memory once


class Documents(NamedTuple):
    """Some documents of an index, in its order.

    Attributes:
        starts: int64[n], first token of each in the token file.
        lengths: int64[n], tokens of each; an index may hold documents of 0 tokens.
        ids: n strings; None if the format has none.
    """

    starts: np.ndarray
    lengths: np.ndarray
    ids: list[str] | None = None


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens, and what its tool says about it.

    Attributes:
        path: the token file, absolute; it may be a link, as in the cache of the Hugging Face hub.
        index: its index files, likewise.
        dtype: of the tokens on disk.
        first_byte: where the tokens begin.
        num_tokens: tokens in the file.
        num_bytes: size of the file.
        loss: a file with one byte per token, 0 or 1; None if there is none.
        notes: what the user should know.
    """

    path: Path
    index: tuple[Path, ...]
    dtype: np.dtype
    first_byte: int
    num_tokens: int
    num_bytes: int
    loss: Path | None = None
    notes: tuple[str, ...] = ()

    def identities(self) -> tuple[Identity, ...]:
        """Identities of the token file, and of its index files and its mask: they change with every write."""
        others = () if self.loss is None else (self.loss,)
        return tuple(identity_of(path, ANYWHERE) for path in (self.path, *self.index, *others))


def refuse(thing: str, expected: object, found: object, path: Path, todo: str = "") -> BuildError:
    """The error for a foreign file that is damaged or that cannot be adopted."""
    more = f"; {todo}" if todo else "; write the file again with the tool that made it"
    return BuildError(f"{thing}: expected {str(expected)[:200]}, found {str(found)[:200]} ({path}){more}")


def size_of(path: Path) -> int:
    """Size in bytes of the regular file at `path`. BuildError if there is none."""
    try:
        return stat_file(path).st_size
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> BuildError:
    found = getattr(error, "strerror", None) or str(error)
    kind = "" if isinstance(error, NotUsable) else "; check the path and its permissions"
    return BuildError(f"file: cannot read {path}: {found}{kind}")


class ForeignReader:
    """A file that is read at positions; every error names it. A context manager."""

    def __init__(self, path: Path):
        """Open `path`. BuildError if it is not a readable regular file."""
        self.path = path
        self.num_bytes = size_of(path)
        try:
            self._file = open_file(path)
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    def read(self, offset: int, num_bytes: int) -> np.ndarray:
        """uint8[num_bytes] from byte `offset` on. BuildError if the file ends before, or cannot be read."""
        data = np.empty(num_bytes, np.uint8)
        self.read_into(offset, data)
        return data

    def read_into(self, offset: int, data: np.ndarray) -> None:
        """Like `read`, into a uint8 array."""
        view, done = data.data, 0
        try:
            self._file.seek(offset)
            while done < data.size and (count := self._file.readinto(view[done:])):
                done += count
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if done < data.size:
            raise refuse("file", f"{offset + data.size} bytes", f"{offset + done}", self.path)

    def array(self, dtype: str, offset: int, count: int) -> np.ndarray:
        """A copy of `count` items from byte `offset` on; the offset need not be a multiple of the size of an item."""
        return self.read(offset, count * np.dtype(dtype).itemsize).view(dtype)

    def blocks(
        self, offset: int, stop: int, each: Callable[[np.ndarray], None] = lambda block: None
    ) -> Iterator[np.ndarray]:
        """Bytes [offset, stop) in uint8 blocks of BLOCK_BYTES; each is valid until the next one is requested.

        While the caller works on a block, a thread reads the next one.

        Args:
            offset: first byte.
            stop: end of the bytes.
            each: called with every block in the thread that reads, for checksums.
        """
        size = min(BLOCK_BYTES, max(stop - offset, 1))
        buffers = itertools.cycle((np.empty(size, np.uint8), np.empty(size, np.uint8)))

        def load(at: int) -> np.ndarray:
            block = next(buffers)[: min(size, stop - at)]
            self.read_into(at, block)
            each(block)
            return block

        with ThreadPoolExecutor(1) as reader:
            ahead = None
            for at in range(offset, stop, size):
                block = load(at) if ahead is None else ahead.result()
                ahead = reader.submit(load, at + size) if at + size < stop else None
                yield block

    @property
    def raw(self) -> FileIO:
        """The open file."""
        return self._file

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "ForeignReader":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def most_documents(num_tokens: int) -> int:
    """How many documents an index of so many tokens may have: one per token, and as many empty ones."""
    return 2 * num_tokens + 1024


def whole_tokens(path: Path, first_byte: int, itemsize: int) -> int:
    """Number of tokens of a file without an index of its own. BuildError if its size is not a whole number, or 0."""
    num_bytes = size_of(path) - first_byte
    if num_bytes % itemsize or num_bytes <= 0:
        rule = f"a whole number of tokens of {itemsize} bytes, at least one, after byte {first_byte}"
        raise refuse("file size", rule, f"{num_bytes} bytes", path, "check --dtype and whether the file is complete")
    return num_bytes // itemsize


def near(path: Path, ending: str) -> Path:
    """The path with its last ending replaced: `x.bin` becomes `x.idx`."""
    return path.with_name(path.name.removesuffix(path.suffix) + ending)
