"""datatrove: `x.ds` holds the tokens, `x.ds.index` uint64[D], the end of each document in tokens, without a leading 0.

`x.ds.metadata` is a text, optional: "tokenizer|bytes per token", the number of tokens, and that number for people.
`x.ds.loss`, optional, has one byte per token: 1 if it is in the loss. If documents were shuffled in chunks, the entries of the
index are also ends of chunks, where no document ends.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenstore.foreign.parts import Part
from tokenstore.foreign.reading import Documents, ForeignReader, TokenFile, refuse, size_of
from tokenstore.outside import NotUsable, read_file
from tokenstore.paths import is_file

_BLOCK = 1 << 16
_MAX_METADATA_BYTES = 1 << 16
INDEX_ENDINGS = (".index", ".metadata")
_UNSIGNED: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


def describe(path: Path, dtype: str | None) -> TokenFile:
    """What the files next to `x.ds` say about it. BuildError if they contradict each other or its size."""
    index = path.with_name(path.name + ".index")
    metadata = path.with_name(path.name + ".metadata")
    num_bytes = size_of(path)
    num_tokens = _last_end(index)
    notes: tuple[str, ...] = ()
    itemsize, rest = divmod(num_bytes, num_tokens)
    if rest or itemsize not in _UNSIGNED:
        rule = f"2 or 4 bytes for each of {num_tokens} tokens, the last entry of {index.name}"
        raise refuse("file size", rule, f"{num_bytes} bytes", path, "is it the file that belongs to the index?")
    if is_file(metadata):
        named, size, count = _read_metadata(metadata)
        if size != itemsize or count != num_tokens:
            rule = f"{itemsize} bytes per token and {num_tokens} tokens, as the other files"
            raise refuse("metadata", rule, f"{size} and {count}", metadata)
        notes = (f"{path.name} was made with the tokenizer {named}",)
    if dtype is not None and np.dtype(dtype).itemsize != itemsize:
        raise refuse("dtype", f"{8 * itemsize} bits, as the index says", dtype, index, "omit --dtype")
    loss = path.with_name(path.name + ".loss")
    if is_file(loss) and size_of(loss) != num_tokens:
        raise refuse("file size", f"{num_tokens} bytes, one per token", f"{size_of(loss)}", loss)
    names = (index, metadata) if is_file(metadata) else (index,)
    return TokenFile(path, names, _UNSIGNED[itemsize], 0, num_tokens, num_bytes, loss if is_file(loss) else None, notes)


def documents(index: tuple[Path, ...], most: int) -> Iterator[Documents]:
    """The documents of an index, in blocks. BuildError if an entry is smaller than the one before. Its size limits their number."""
    with ForeignReader(index[0]) as file:
        start = 0
        for first in range(0, file.num_bytes // 8, _BLOCK):
            found = file.array("<u8", 8 * first, min(_BLOCK, file.num_bytes // 8 - first))
            if wrong := np.flatnonzero(found > 1 << 60)[:1].tolist():
                raise refuse(f"entry {first + wrong[0]}", f"at most {1 << 60}", found[wrong[0]], file.path)
            ends = found.astype(np.int64)
            starts = np.append(start, ends[:-1])
            if wrong := np.flatnonzero(ends < starts)[:1].tolist():
                place = f"entry {first + wrong[0]}"
                raise refuse(place, f"{starts[wrong[0]]} or more", ends[wrong[0]], file.path)
            yield Documents(starts, ends - starts)
            start = int(ends[-1])


def _last_end(index: Path) -> int:
    with ForeignReader(index) as file:
        if file.num_bytes % 8 or file.num_bytes == 0:
            raise refuse("index size", "a multiple of 8 bytes, at least one entry", f"{file.num_bytes}", index)
        last = int(file.array("<u8", file.num_bytes - 8, 1)[0])
    if not 1 <= last <= 1 << 60:
        raise refuse(f"entry {file.num_bytes // 8 - 1}", f"1..{1 << 60}", last, index)
    return last


def _read_metadata(path: Path) -> tuple[str, int, int]:
    """The tokenizer's name as the tool wrote it, bytes per token, tokens."""
    try:
        text = read_file(path, _MAX_METADATA_BYTES).decode()
        first, count, *_ = text.split("\n")
        name, _, size = first.rpartition("|")
        return ascii(name)[1:-1][:100], int(size), int(count)
    except (OSError, NotUsable) as error:
        raise refuse("metadata", "a readable file", error.strerror, path) from error
    except ValueError:
        rule = "the lines tokenizer|bytes per token, and number of tokens"
        raise refuse("metadata", rule, "others", path, "remove the file if it is damaged") from None


def index_of(part: Part) -> Iterator[np.ndarray]:
    """The contents of the .ds.index of a part."""
    for _, bounds in part.bounds():
        yield bounds[1:].astype("<u8")


def metadata_of(part: Part) -> Iterator[np.ndarray]:
    """The contents of the .ds.metadata of a part. The tokenizer's name is that of its file in the store."""
    entry = part.store.manifest.tokenizer
    text = f"{entry.file or entry.kind}|{part.store.dtype.itemsize}\n{part.num_tokens}\n{part.num_tokens} T"
    yield np.frombuffer(text.encode(), np.uint8)
