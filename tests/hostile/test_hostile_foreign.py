"""Damaged and forged files of other tools: refused with file and place, without reading or allocating what they ask for."""

import gzip
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.foreign.adopting import adopt
from tests.support.foreign.files import DOCUMENTS, EOS, datatrove, dolma, llmc, megatron, nanogpt, write_rows
from tokenstore.errors import BuildError, ConfigError, TokenStoreError
from tokenstore.foreign import AdoptOptions, adopt_store

HUGE = 1 << 62
Edit = Callable[[bytearray], object]


def patch(format: str, offset: int, value: int) -> Edit:
    """Put an integer into the bytes of an index."""
    return lambda data: struct.pack_into(format, data, offset, value)


def cut(size: int) -> Edit:
    """Truncate."""
    return lambda data: data.__delitem__(slice(size, None))


LENGTHS, POINTERS, BORDERS = 34, 34 + 4 * 4, 34 + 12 * 4
MEGATRON: dict[str, tuple[Edit, str]] = {
    "an empty index": (cut(0), "index: expected at least 34 bytes, found 0"),
    "half a header": (cut(33), "index: expected at least 34 bytes, found 33"),
    "the old format": (lambda data: data.__setitem__(slice(0, 8), b"TNTIDX\0\0"), "old format of fairseq"),
    "another magic": (patch("B", 0, 0), "expected the first bytes MMIDIDX and version 1"),
    "another version": (patch("<Q", 9, 2), "found b'MMIDIDX' and version 2"),
    "floats": (patch("B", 17, 7), "byte 17: expected the code of an integer dtype, found float32"),
    "an unknown type": (patch("B", 17, 200), "byte 17: expected the code of an integer dtype, found 200"),
    "2**62 sequences": (patch("<Q", 18, HUGE), "index size: expected"),
    "2**64 - 1 sequences": (patch("<Q", 18, 2**64 - 1), "index size: expected"),
    "no sequence": (patch("<Q", 18, 0), "index: expected at least 1 sequence and 2 document indices, found 0 and 5"),
    "2**62 documents": (patch("<Q", 26, HUGE), "index size: expected"),
    "no document": (patch("<Q", 26, 1), "index: expected at least 1 sequence and 2 document indices, found 4 and 1"),
    "a byte less": (cut(-1), "index size: expected"),
    "a byte more": (lambda data: data.append(0), "index size: expected"),
    "a negative length": (patch("<i", LENGTHS + 4, -1), "length of sequence 1: expected 0 or more, found -1"),
    "a length beyond the tokens": (patch("<i", LENGTHS + 12, 1 << 30), "document 3: expected a part of tokens 0..13"),
    "a negative pointer": (patch("<q", POINTERS + 8, -2), "pointer of sequence 1: expected a multiple of 2"),
    "an odd pointer": (patch("<q", POINTERS + 8, 7), "pointer of sequence 1: expected a multiple of 2"),
    "a pointer that overflows": (patch("<q", POINTERS + 8, (1 << 63) - 2), "pointer of sequence 1: expected"),
    "a pointer beyond the tokens": (patch("<q", POINTERS + 8, 1 << 40), "document 1: expected a part of tokens 0..13"),
    "sequences that overlap": (patch("<q", POINTERS + 24, 10), "document"),
    "a first document that is not 0": (patch("<q", BORDERS, 1), "document index 0: expected 0, found 1"),
    "falling documents": (patch("<q", BORDERS + 8, 4), "document index 2: expected 4..4, found 2"),
    "negative documents": (patch("<q", BORDERS + 8, -5), "document index 1: expected 0..4, found -5"),
    "documents beyond the sequences": (patch("<q", BORDERS + 32, 9), "document index 4: expected 3..4, found 9"),
    "sequences without a document": (patch("<q", BORDERS + 32, 3), "document index 4: expected 4, found 3"),
}


@pytest.mark.parametrize("name", MEGATRON)
def test_a_damaged_index_of_megatron_is_refused(name: str, tmp_path: Path) -> None:
    """Every field of the .idx; nothing is left at the output."""
    edit, message = MEGATRON[name]
    if name == "sequences that overlap":
        megatron(tmp_path / "x", [*DOCUMENTS[:3], [1, 2, 3, 4]])
        message = "documents: expected at most 15 tokens in all|expected a part of tokens"
        edit = patch("<i", LENGTHS, 6)
    else:
        megatron(tmp_path / "x")
    data = bytearray((tmp_path / "x.idx").read_bytes())
    edit(data)
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(BuildError, match=message) as error:
        adopt(tmp_path / "s", tmp_path / "x.bin")
    assert "x.idx)" in str(error.value) or "x.bin)" in str(error.value)
    assert not (tmp_path / "s").exists()


def test_a_mode_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Images among text; the place is the sequence."""
    megatron(tmp_path / "x", modes=[0, 0, 1, 0])
    with pytest.raises(BuildError, match="mode of sequence 2: expected 0, which is text, found 1"):
        adopt(tmp_path / "s", tmp_path / "x")


def test_sequences_of_a_document_that_are_apart_are_refused(tmp_path: Path) -> None:
    """A document is one run of tokens in every store."""
    megatron(tmp_path / "x", cut=2, order=[0, 2, 1, 3, 4, 5, 6])
    with pytest.raises(BuildError, match="pointer of sequence 1: expected the end of the sequence before"):
        adopt(tmp_path / "s", tmp_path / "x")


def test_tokens_that_do_not_belong_to_the_index_are_refused(tmp_path: Path) -> None:
    """A .bin of half a token; one that is shorter than its index says."""
    made = megatron(tmp_path / "x")
    data = made.read_bytes()
    made.write_bytes(data + b"\0")
    with pytest.raises(BuildError, match="file size: expected a whole number of tokens of 2 bytes, found 27 bytes"):
        adopt(tmp_path / "s", made)
    made.write_bytes(data[:-2])
    with pytest.raises(BuildError, match=r"document 3: expected a part of tokens 0..12 of x.bin, found 11..13"):
        adopt(tmp_path / "s", made)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "index size: expected a multiple of 8 bytes, at least one entry, found 0"),
        ([3, 5, 11, 0], "entry 3: expected 1..1152921504606846976, found 0"),
        ([3, 5, 11, 2**64 - 1], "entry 3: expected 1..1152921504606846976, found 18446744073709551615"),
        ([3, 5, 11, 12], "file size: expected 2 or 4 bytes for each of 12 tokens"),
        ([3, 2, 11, 13], "entry 1: expected 3 or more, found 2"),
        ([3, 5, 14, 13], "entry 3: expected 14 or more, found 13"),
        ([3, 2**63, 11, 13], "entry 1: expected at most"),
    ],
)
def test_a_damaged_index_of_datatrove_is_refused(entries: list[int], message: str, tmp_path: Path) -> None:
    """Ends must rise to the number of tokens."""
    made = datatrove(tmp_path / "x.ds", metadata=False)
    (tmp_path / "x.ds.index").write_bytes(np.array(entries, "<u8").tobytes())
    with pytest.raises(BuildError, match=message):
        adopt(tmp_path / "s", made)


@pytest.mark.parametrize(
    ("ending", "data", "message"),
    [
        (".metadata", b"gpt2|2\n14\n", "metadata: expected 2 bytes per token and 13 tokens"),
        (".metadata", b"gpt2|4\n13\n", "metadata: expected 2 bytes per token and 13 tokens"),
        (".metadata", b"gpt2", "metadata: expected the lines tokenizer"),
        (".metadata", b"\xff|2\n13\n", "metadata: expected the lines tokenizer"),
        (".metadata", b"a|2\n" + b"9" * 5000 + b"\n", "metadata: expected the lines tokenizer"),
        (".metadata", b"x" * 100_000, "metadata: expected a readable file"),
        (".loss", b"\1" * 12, "file size: expected 13 bytes, one per token, found 12"),
        (".loss", b"\1" * 12 + b"\2", "loss of token 12: expected 0 or 1, found 2"),
    ],
)
def test_damaged_files_next_to_datatrove_tokens_are_refused(
    ending: str, data: bytes, message: str, tmp_path: Path
) -> None:
    """Metadata that contradicts the index, and masks of another size or value."""
    made = datatrove(tmp_path / "x.ds")
    (tmp_path / f"x.ds{ending}").write_bytes(data)
    with pytest.raises(BuildError, match=message):
        adopt(tmp_path / "s", made)


ROWS: list[tuple[list[list[object]], str]] = [
    ([], "rows: expected at least one document with tokens, found none"),
    ([[0, 3], ["a", 5]], "row 2: expected start,end,..., found a,5"),
    ([[0, 3], [5]], "row 2: expected start,end,..., found 5"),
    ([[0, 3], [3, 2]], "row 2: expected 0 <= start <= end, found 3,2"),
    ([[-1, 3]], "row 1: expected 0 <= start <= end, found -1,3"),
    ([[0, 1 << 63]], "row 1: expected 0 <= start <= end"),
    ([[0, "9" * 5000]], "row 1: expected start,end"),
    ([[0, 3], [3, 12]], "file size: expected 1, 2, 4 or 8 bytes for each of 12 tokens"),
    ([[0, 13], [0, 13]], "documents: expected at most 13 tokens in all, found 26, so they overlap"),
    ([[0, 13, "x" * 70_000]], "line 1: expected at most 65536 characters"),
    ([[0, 0]] * 1100 + [[0, 13]], "rows: expected at most 1"),
]


@pytest.mark.parametrize(("rows", "message"), ROWS)
def test_damaged_rows_of_dolma_are_refused(rows: list[list[object]], message: str, tmp_path: Path) -> None:
    """Rows that are not numbers, overlap, or are too long or too many."""
    made = dolma(tmp_path / "x.npy")
    write_rows(made, rows)
    with pytest.raises(BuildError, match=message):
        adopt(tmp_path / "s", made)


def test_rows_that_leave_a_gap_need_the_type_and_are_copied(tmp_path: Path) -> None:
    """Tokens that no row names are in no document."""
    made = dolma(tmp_path / "x.npy")
    write_rows(made, [[0, 3], [5, 11]])
    with pytest.raises(
        BuildError, match="if the rows do not cover the file, name the type of the tokens: --dtype uint16"
    ):
        adopt(tmp_path / "s", made)
    result = adopt(tmp_path / "s", made, dtype="uint16")
    assert (result.num_tokens, result.num_copied) == (9, 1)


@pytest.mark.parametrize(
    "data", [b"", b"no gzip", gzip.compress(b"0,13\r\n", mtime=0)[:-4], b"\x1f\x8b\x08" + b"\0" * 40]
)
def test_rows_that_are_no_gzip_are_refused(data: bytes, tmp_path: Path) -> None:
    """A truncated file must not look complete."""
    made = dolma(tmp_path / "x.npy")
    made.with_suffix(".csv.gz").write_bytes(data)
    with pytest.raises(BuildError, match="rows: expected"):
        adopt(tmp_path / "s", made)


def test_rows_that_expand_without_end_are_not_read_to_the_end(tmp_path: Path) -> None:
    """Fifty megabytes of zeros in fifty kilobytes: one line is read at most."""
    made = dolma(tmp_path / "x.npy")
    compressor = zlib.compressobj(9, wbits=31)
    block = b"0" * (1 << 20)
    data = b"".join([*(compressor.compress(block) for _ in range(50)), compressor.flush()])
    made.with_suffix(".csv.gz").write_bytes(data)
    with pytest.raises(BuildError, match="line 1: expected at most 65536 characters"):
        adopt(tmp_path / "s", made)


def test_a_row_that_never_ends_is_not_read_to_the_end(tmp_path: Path) -> None:
    """A quoted line end continues a row, so limits on lines and fields alone would let one row take all memory."""
    made = dolma(tmp_path / "x.npy")
    made.with_suffix(".csv.gz").write_bytes(gzip.compress(b'0,13,"\n' + b'","\n' * 100_000, mtime=0))
    with pytest.raises(BuildError, match=r"line 16384: expected at most 65536 characters in a row, found more"):
        adopt(tmp_path / "s", made)


def test_ids_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    """The ids of a megabyte of tokens are in memory at once: they may not be far longer than their documents."""
    made = nanogpt(tmp_path / "x.npy", [[1]] * 400)
    write_rows(made, [[i, i + 1, "x" * 65_000] for i in range(400)])
    with pytest.raises(BuildError, match="row 259: expected ids of about 64 characters per token at most"):
        adopt(tmp_path / "s", made)


HEADERS = [
    (b"\x93NUMPY\x01\x00\x04\x00{ } ", "numpy header: expected one dimension of little-endian integers"),
    (b"\x93NUMPY\x09\x00\x04\x00{ } ", "numpy header: expected version 1 to 3"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{ }", "numpy header: expected version 1 to 3 and at most 65536 bytes"),
    (
        b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (5,), }".ljust(64),
        "numpy header",
    ),
    (
        b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '>u2', 'fortran_order': False, 'shape': (5,), }".ljust(64),
        "numpy header",
    ),
    (b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<u2', 'fortran_order': False, 'shape': (5, 2), }".ljust(64), "numpy"),
    (
        b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }".ljust(64),
        "file size",
    ),
    (
        b"\x93NUMPY\x01\x00\x40\x00"
        + b"{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }".ljust(64)
        + b"\1\0" * 4,
        "numpy header: expected the 4 tokens of the file, found 5 .*; is the file complete?",
    ),
]


@pytest.mark.parametrize(("data", "message"), HEADERS)
def test_damaged_headers_of_numpy_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    """The header is compared with the known ones, never evaluated; objects would be a pickle."""
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(BuildError, match=message):
        adopt(tmp_path / "s", tmp_path / "x.npy")


def test_a_type_other_than_that_of_the_header_is_refused(tmp_path: Path) -> None:
    """Reading uint32 tokens as uint16 would give wrong ones; a type of the same width gives the same."""
    np.save(tmp_path / "x.npy", np.array([5, EOS], "<i4"))
    with pytest.raises(BuildError, match="dtype: expected int32, as the header says, found uint16"):
        adopt(tmp_path / "s", tmp_path / "x.npy", dtype="uint16")
    assert adopt(tmp_path / "s", tmp_path / "x.npy", dtype="uint32").num_tokens == 2


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((20240522, 1, 13), "an evaluation of llm.c"),
        ((20240520, 2, 13), "header: expected the magic 20240520 version 1"),
        ((5, 1, 13), "header: expected the magic 20240520 version 1"),
        ((20240520, 1, 12), "header: expected 26 bytes of uint16 tokens, the size of the file, found 12 tokens"),
        ((20240520, 1, -1), "found -1 tokens"),
        ((20240801, 7, 13), "header: expected 26 bytes of uint32 tokens"),
    ],
)
def test_a_header_of_llmc_that_does_not_fit_is_refused(header: tuple[int, ...], message: str, tmp_path: Path) -> None:
    """Magic, version and number of tokens."""
    made = llmc(tmp_path / "x.bin", header=header)
    with pytest.raises(BuildError, match=message):
        adopt(tmp_path / "s", made, format="llmc")


def test_another_tools_header_of_the_same_layout_needs_the_type(tmp_path: Path) -> None:
    """Forks have magics of their own."""
    made = llmc(tmp_path / "x.bin", header=(20250401, 1, 13))
    assert adopt(tmp_path / "s", made, format="llmc", dtype="uint16").num_documents == 4


def test_files_that_are_no_files_are_refused(tmp_path: Path) -> None:
    """A pipe would block, a folder is not a file, and an empty file has no token."""
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "empty.bin").touch()
    nanogpt(tmp_path / "odd.bin").write_bytes(b"\0" * 3)
    for name, message in (("pipe.bin", "does not exist"), ("empty.bin", "whole number"), ("odd.bin", "whole number")):
        with pytest.raises(TokenStoreError, match=message):
            adopt(tmp_path / "s", tmp_path / name, format="nanogpt")
    megatron(tmp_path / "x")
    (tmp_path / "x.idx").unlink()
    os.mkfifo(tmp_path / "x.idx")
    with pytest.raises(TokenStoreError, match="a pipe instead of a regular file"):
        adopt(tmp_path / "s", tmp_path / "x", format="megatron")


@pytest.mark.parametrize("written", ["x.bin", "y.bin", "y.idx"])
@pytest.mark.parametrize("join", [False, True])
def test_a_file_that_is_written_to_while_files_are_adopted_is_refused(written: str, join: bool, tmp_path: Path) -> None:
    """While it is read, or before its turn, which may come after hours: boundaries or checksum would be those of a part of it."""
    made = [megatron(tmp_path / name) for name in "xy"]
    cut = "eos" if join else None
    options = AdoptOptions(made, tmp_path / "s", vocab_size=100, eos_id=EOS, cut=cut, join=join)

    def write_more(done: int, total: int) -> None:
        if written.endswith(".idx"):
            os.utime(tmp_path / written, ns=(0, 1))  # as after a write that leaves it readable
            return
        with open(tmp_path / written, "ab") as file:
            file.write(b"\1")

    with pytest.raises(BuildError, match=rf"{written[0]}.bin, or a file that belongs to it, was written to while"):
        adopt_store(options, progress=write_more)
    assert not (tmp_path / "s").exists()


def test_a_pattern_that_finds_a_link_in_a_circle_is_an_error(tmp_path: Path) -> None:
    """Not the RuntimeError of `Path.resolve`."""
    (tmp_path / "x.bin").symlink_to("x.bin")
    with pytest.raises(TokenStoreError, match=r"x.bin: Too many levels of symbolic links"):
        adopt(tmp_path / "s", str(tmp_path / "*.bin"), format="nanogpt")


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """A zero byte, as no file name has."""
    with pytest.raises(ConfigError, match="does not exist"):
        adopt(tmp_path / "s", "a\0b", format="nanogpt")
