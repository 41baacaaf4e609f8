"""Names, sizes and dtypes of files, the lookup table, and the worked example of the format (FMT-1..3, FMT-6)."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore.format
from tokenstore.format.layout import (
    LOOKUP_STRIDE,
    MAX_TOKENS,
    MAX_VOCAB,
    boundaries_bytes,
    is_plain_name,
    lookup_entries,
    num_lookup_entries,
    shard_name,
    token_dtype,
)
from tokenstore.tokenizer import no_tokenizer

# ---- layout


def test_shard_names_count_from_zero_and_stay_plain_names() -> None:
    """FMT-1: shard files are tokens-00000.bin, ..., with five digits or more, and each is a valid name."""
    assert [shard_name(i) for i in (0, 1, 99_999, 100_000)] == [
        "tokens-00000.bin",
        "tokens-00001.bin",
        "tokens-99999.bin",
        "tokens-100000.bin",
    ]
    assert all(is_plain_name(shard_name(i)) for i in (0, 12, 10**9))


@pytest.mark.parametrize("name", ["tokens-00000.bin", "a", "-", "_x.y", "A" * 100, "a..b", "a."])
def test_a_plain_name_is_accepted(name: str) -> None:
    """FMT-6: one path component of [A-Za-z0-9._-], at most 100 characters, not beginning with a dot."""
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a b",
        "a\n",
        "a\0",
        "é",
        "٣",
        "A" * 101,
        "a:b",
        "~",
    ],
)
def test_a_name_that_could_leave_the_directory_is_not_plain(name: str) -> None:
    """FMT-6: no separator, no leading dot, only ASCII, not too long, no line end at the end."""
    assert not is_plain_name(name)


def test_the_largest_vocabulary_is_that_of_stores_without_a_tokenizer() -> None:
    """FMT-5: the tokenizers, a layer beside the format, repeat the limit."""
    assert no_tokenizer._MAX_VOCAB == MAX_VOCAB


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(1, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (MAX_VOCAB, "uint32")],
)
def test_the_dtype_is_uint16_exactly_when_every_id_fits(vocab_size: int, name: str) -> None:
    """FMT-2: 65,536 ids fit in uint16, 65,537 need uint32; both little-endian."""
    dtype = token_dtype(vocab_size)
    assert dtype.name == name
    assert dtype.newbyteorder("<") == dtype
    assert vocab_size - 1 <= np.iinfo(dtype).max


@pytest.mark.parametrize(
    ("num_tokens", "entries"), [(1, 1), (4095, 1), (4096, 1), (4097, 2), (8192, 2), (MAX_TOKENS, 1 << 48)]
)
def test_the_lookup_has_an_entry_every_4096_tokens(num_tokens: int, entries: int) -> None:
    """FMT-3: lookup[j] belongs to token 4096 j, j = 0 .. (T - 1) div 4096; boundaries.bin has D + 1 numbers before
    it.
    """
    assert LOOKUP_STRIDE == 4096
    assert num_lookup_entries(num_tokens) == (num_tokens - 1) // 4096 + 1 == entries
    assert boundaries_bytes(7, num_tokens) == 8 * (7 + 1 + entries)


@given(
    st.lists(st.one_of(st.integers(1, 30), st.integers(1, 9000), st.sampled_from([4095, 4096, 4097])), min_size=1),
    st.data(),
)
def test_lookup_entries_equal_a_scan_of_all_tokens(lengths: list[int], data: st.DataObject) -> None:
    """FMT-3: however documents are grouped, the entries are the documents that contain tokens 0, 4096, ..."""
    owner = [document for document, length in enumerate(lengths) for _ in range(length)]  # of every token
    cuts = sorted(data.draw(st.sets(st.integers(1, len(lengths)))) | {0, len(lengths)})
    ends = np.cumsum([0, *lengths])
    found: list[int] = []
    for first, stop in itertools.pairwise(cuts):
        starts = ends[first:stop].astype(np.int64)
        found += lookup_entries(starts, int(ends[first]), int(ends[stop]), first).tolist()
    assert found == owner[::4096]
    assert len(found) == num_lookup_entries(len(owner))


# ---- the worked example


def test_the_worked_example_of_the_specification_is_exact(make_store: Callable[..., Path]) -> None:
    """FMT: the files of documents [7, 1] and [5, 5, 1] have the bytes in the docstring."""
    text = tokenstore.format.__doc__ or ""
    written = re.search(r"tokens-00000\.bin +((?:[0-9a-f]{2} )*[0-9a-f]{2})\n", text)
    assert written is not None
    assert "0, 2, 5 then lookup [0]" in text
    store = make_store("example", [[7, 1], [5, 5, 1]], vocab_size=8)
    assert (store / "tokens-00000.bin").read_bytes() == bytes.fromhex(written[1])
    assert bytes.fromhex(written[1]) == b"\7\0\1\0\5\0\5\0\1\0"
    assert (store / "boundaries.bin").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (0, 2, 5, 0))
    assert np.memmap(store / "tokens-00000.bin", "<u2", "r").tolist() == [7, 1, 5, 5, 1]
