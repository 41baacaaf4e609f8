"""llm.c and modded-nanogpt: a header of 256 int32 (magic, version, tokens, zeros), then uint16 or uint32 tokens.

The end-of-text token is before each document, and a document may continue in the next file.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenstore.foreign.parts import Part
from tokenstore.foreign.reading import Documents, ForeignReader, TokenFile, refuse

HEADER_BYTES = 1024
DTYPES: dict[tuple[int, int], np.dtype] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_EVAL = 20240522
INDEX_ENDINGS = ()


def describe(path: Path, dtype: str | None) -> TokenFile:
    """The token file at `path`. BuildError if its header is not one of llm.c, or does not fit the size of the file."""
    with ForeignReader(path) as file:
        if file.num_bytes <= HEADER_BYTES:
            raise refuse("file size", f"a header of {HEADER_BYTES} bytes, and tokens", f"{file.num_bytes} bytes", path)
        magic, version, count = (int(x) for x in file.array("<i4", 0, 3))
    found = DTYPES.get((magic, version))
    if magic == _EVAL:
        raise refuse("header", "a token file", "an evaluation of llm.c, which is not one", path, "omit it")
    if found is None and dtype is None:
        known = ", ".join(f"{m} version {v} ({dtype.name})" for (m, v), dtype in DTYPES.items())
        todo = "if another tool wrote the same layout, name the type of its tokens with --dtype"
        raise refuse("header", f"the magic {known}", f"{magic} version {version}", path, todo)
    chosen = found if found is not None and dtype is None else np.dtype(dtype or "uint16").newbyteorder("<")
    if found is not None and chosen.itemsize != found.itemsize:
        raise refuse("dtype", f"{found.name}, as the header says", dtype, path, "omit --dtype")
    if count < 1 or HEADER_BYTES + count * chosen.itemsize != file.num_bytes:
        rule = f"{file.num_bytes - HEADER_BYTES} bytes of {chosen.name} tokens, the size of the file"
        raise refuse("header", rule, f"{count} tokens", path)
    return TokenFile(path, (), chosen, HEADER_BYTES, count, file.num_bytes)


def is_llmc(path: Path) -> bool:
    """Whether a file begins with the magic of llm.c."""
    with ForeignReader(path) as file:
        if file.num_bytes < HEADER_BYTES:
            return False
        magic, version = (int(x) for x in file.array("<i4", 0, 2))
    return (magic, version) in DTYPES or magic == _EVAL


def documents(index: tuple[Path, ...], most: int) -> Iterator[Documents]:
    """None: there is no index."""
    yield from ()


def header_of(part: Part) -> np.ndarray:
    """The header of a file with the tokens of a part."""
    magic, version = next(known for known, dtype in DTYPES.items() if dtype == part.store.dtype)
    words = np.zeros(HEADER_BYTES // 4, "<i4")
    words[:3] = magic, version, part.num_tokens
    return words


def rotated(part: Part, eos_id: int) -> Iterator[np.ndarray]:
    """The tokens of a part whose documents end with the end-of-text token, with that token before each document instead."""
    previous = np.array([eos_id], part.store.dtype)
    for block in part.tokens():
        yield previous
        yield block[:-1]
        previous = block[-1:]
