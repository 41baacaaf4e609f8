"""`tokenstore adopt`: the documents of every format, without copying a token where that is possible."""

import os
import stat
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.foreign.adopting import adopt, documents_of
from tests.support.foreign.files import DOCUMENTS, EOS, STARTED, WRITERS, datatrove, dolma, llmc, megatron, nanogpt
from tokenstore import open_store, verify
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.foreign import reading, verify_adopted


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token files are read 8 bytes at a time, so most documents cross blocks."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 8)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", WRITERS)
def test_a_store_over_token_files_has_their_documents(name: str, tmp_path: Path) -> None:
    """FMT-14: every document of every format, read through a hard link to the token file."""
    write, file, documents = WRITERS[name]
    made = write(tmp_path / file)
    made.chmod(0o640)
    result = adopt(tmp_path / "s", made, format=name)
    assert documents_of(result.path) == documents
    shard = result.path / "tokens-00000.bin"
    assert (shard.stat().st_ino, result.num_linked, result.num_copied) == (made.stat().st_ino, 1, 0)
    assert stat.S_IMODE(made.stat().st_mode) == 0o640
    assert open_store(result.path).has_block_checksums
    assert (result.eos_at, result.ends_with_eos) == (("start", False) if name == "llmc" else ("end", True))
    assert (result.low, result.high, result.counts["eos tokens"]) == (1, EOS, len(documents))


@pytest.mark.parametrize("name", ["megatron", "datatrove", "dolma", "llmc"])
def test_the_format_is_detected(name: str, tmp_path: Path) -> None:
    """Only a file of tokens alone needs --from."""
    write, file, documents = WRITERS[name]
    write(tmp_path / file)
    prefix = tmp_path / ("x" if name != "llmc" else file)
    if name in ("datatrove", "dolma"):
        prefix = tmp_path  # the folder
    result = adopt(tmp_path / "s", prefix)
    assert (result.format, documents_of(result.path)) == (name, documents)


def test_a_file_of_tokens_alone_is_not_guessed(tmp_path: Path) -> None:
    """Nothing in it says what it is."""
    nanogpt(tmp_path / "x.bin")
    with pytest.raises(ConfigError, match="nothing says what it is; for a file of tokens alone add --from nanogpt"):
        adopt(tmp_path / "s", tmp_path / "x.bin")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", "<i4", "<i8", "<u2"])
def test_every_integer_type_of_megatron_is_read(dtype: str, tmp_path: Path) -> None:
    """int16 and int32 have the bits of unsigned ids and are mapped; others are copied."""
    megatron(tmp_path / "x", dtype=dtype)
    result = adopt(tmp_path / "s", tmp_path / "x")
    assert documents_of(result.path) == DOCUMENTS
    assert result.num_linked == (dtype in ("<i2", "<i4", "<u2"))
    assert result.dtype == ("uint32" if dtype == "<i4" else "uint16")


@pytest.mark.usefixtures("small_blocks")
def test_a_document_of_several_sequences_is_one_document(tmp_path: Path) -> None:
    """Megatron's --split-sentences; empty documents are dropped and counted, and keep their record number."""
    notes: list[str] = []
    megatron(tmp_path / "x", [[], DOCUMENTS[0], [], [], *DOCUMENTS[1:], []], cut=2)
    result = adopt(tmp_path / "s", tmp_path / "x", note=notes.append)
    assert documents_of(result.path) == DOCUMENTS
    assert notes == ["4 documents without tokens in the index: dropped"]
    with open_store(result.path) as store:
        assert [store.origin(i).record for i in range(4)] == [2, 5, 6, 7]


def test_multimodal_text_is_adopted_and_images_are_not(tmp_path: Path) -> None:
    """Only the size of the .idx says that there are modes."""
    notes: list[str] = []
    megatron(tmp_path / "x", modes=[0] * 4)
    result = adopt(tmp_path / "s", tmp_path / "x", note=notes.append)
    assert documents_of(result.path) == DOCUMENTS
    assert notes == ["all sequences have mode 0 (text); the modes are ignored"]


@pytest.mark.usefixtures("small_blocks")
def test_an_index_merged_by_hand_is_followed_by_copying(tmp_path: Path) -> None:
    """Sequences that are in another order in the .bin than in the .idx."""
    notes: list[str] = []
    megatron(tmp_path / "x", order=[2, 0, 1, 3])
    result = adopt(tmp_path / "s", tmp_path / "x", note=notes.append)
    assert documents_of(result.path) == DOCUMENTS
    assert (result.num_linked, result.num_copied) == (0, 1)
    assert notes == [f"copied, not linked: {tmp_path}/x.bin: its documents do not follow each other without gaps"]


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """The cache of the Hugging Face hub has links with the names, to files with hashes as names. The store has no link."""
    made = megatron(tmp_path / "x")
    (tmp_path / "blobs").mkdir()
    for ending in (".bin", ".idx"):
        made.with_suffix(ending).rename(tmp_path / "blobs" / ending[1:])
        made.with_suffix(ending).symlink_to(tmp_path / "blobs" / ending[1:])
    result = adopt(tmp_path / "s", tmp_path / "x")
    assert documents_of(result.path) == DOCUMENTS
    assert result.num_linked == 1
    assert not any(path.is_symlink() for path in result.path.iterdir())
    with pytest.raises(ConfigError, match="is named more than once"):
        adopt(tmp_path / "t", tmp_path / "x", tmp_path / "blobs" / "bin", format="megatron")


def test_several_files_become_one_store_in_their_order(tmp_path: Path) -> None:
    """As named; the inputs and records say where a document came from."""
    for name, at in (("a", 0), ("b", 2), ("c", 1)):
        megatron(tmp_path / name, DOCUMENTS[at : at + 1])
    result = adopt(tmp_path / "s", tmp_path / "b", tmp_path / "a.idx", tmp_path / "c.bin")
    assert documents_of(result.path) == [DOCUMENTS[2], DOCUMENTS[0], DOCUMENTS[1]]
    with open_store(result.path) as store:
        assert [store.origin(i).file for i in range(3)] == ["b.bin", "a.bin", "c.bin"]
        assert len(store.shards()) == 3


def test_files_of_several_folders_are_named_from_the_folder_they_share(tmp_path: Path) -> None:
    """As far as it is needed to tell them apart."""
    for number, name in enumerate(("a/x", "a/b/x", "c/x")):
        (tmp_path / name).parent.mkdir(parents=True)
        megatron(tmp_path / name, DOCUMENTS[number : number + 1])
    with open_store(adopt(tmp_path / "s", tmp_path / "a", tmp_path / "c").path) as store:
        assert [store.origin(i).file for i in range(3)] == ["a/b/x.bin", "a/x.bin", "c/x.bin"]


def test_files_of_two_types_are_one_store_of_the_larger(tmp_path: Path) -> None:
    """The smaller ones are copied."""
    megatron(tmp_path / "a", DOCUMENTS[:2])
    megatron(tmp_path / "b", DOCUMENTS[2:], dtype="<i4")
    result = adopt(tmp_path / "s", tmp_path / "a", tmp_path / "b")
    assert documents_of(result.path) == DOCUMENTS
    assert (result.dtype, result.num_linked, result.num_copied) == ("uint32", 1, 1)


def test_copy_shares_nothing_with_the_files(tmp_path: Path) -> None:
    """--copy: the store survives any change of the files."""
    made = llmc(tmp_path / "x.bin")
    result = adopt(tmp_path / "s", made, format="llmc", copy=True)
    made.write_bytes(b"")
    assert documents_of(result.path) == STARTED
    assert result.num_copied == 1


def test_files_that_cannot_be_linked_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system, or files of another user: said once."""
    monkeypatch.setattr("tokenstore.foreign.adoption.link_file", lambda source, target: False)
    notes: list[str] = []
    megatron(tmp_path / "a", DOCUMENTS[:2])
    megatron(tmp_path / "b", DOCUMENTS[2:])
    result = adopt(tmp_path / "s", tmp_path / "a", tmp_path / "b", note=notes.append)
    assert documents_of(result.path) == DOCUMENTS
    assert len(notes) == 1
    assert "a.bin is copied, and others like it: the system refuses hard links to it" in notes[0]


def test_files_of_another_file_system_are_copied_if_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link cannot lead there. The space is checked before anything is read."""
    made = nanogpt(tmp_path / "x.bin")
    monkeypatch.setattr("tokenstore.foreign.prepare.stat_file", lambda path: SimpleNamespace(st_dev=-1))
    notes: list[str] = []
    result = adopt(tmp_path / "s", made, format="nanogpt", note=notes.append)
    assert documents_of(result.path) == DOCUMENTS
    assert notes == [f"copied, not linked: {made}: it is on another file system than the output"]
    monkeypatch.setattr("tokenstore.foreign.adoption.free_bytes", lambda path: 25)
    with pytest.raises(ConfigError, match="disk: copying needs 26 bytes, 25 are free"):
        adopt(tmp_path / "t", made, format="nanogpt")


def test_ids_of_dolma_are_ids_of_documents(tmp_path: Path) -> None:
    """The third column, also with commas in it. Some tools write no ids."""
    dolma(tmp_path / "x.npy")
    dolma(tmp_path / "y.npy", rows="places")
    with open_store(adopt(tmp_path / "s", tmp_path / "x.npy").path) as store:
        assert [store.id(i) for i in range(4)] == [f"id,{i}" for i in range(4)]
    with open_store(adopt(tmp_path / "t", tmp_path / "y.npy").path) as store:
        assert not store.has_ids
    with open_store(adopt(tmp_path / "u", tmp_path / "x.npy", tmp_path / "y.npy").path) as store:
        assert [store.id(i) for i in (3, 4)] == ["id,3", ""]


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8"])
def test_the_rows_of_dolma_tell_the_type_of_its_tokens(dtype: str, tmp_path: Path) -> None:
    """The .npy has no header: its size divided by the last end is the size of a token."""
    dolma(tmp_path / "x.npy", dtype=dtype)
    assert documents_of(adopt(tmp_path / "s", tmp_path / "x.npy").path) == DOCUMENTS


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i8"])
def test_a_file_that_numpy_saved_is_mapped_after_its_header(dtype: str, tmp_path: Path) -> None:
    """FMT-14: the header stays in the shard, before first_byte."""
    np.save(tmp_path / "x.npy", np.concatenate(DOCUMENTS).astype(dtype))
    result = adopt(tmp_path / "s", tmp_path / "x.npy")
    assert documents_of(result.path) == DOCUMENTS
    assert result.num_linked == (dtype != "<i8")


@pytest.mark.usefixtures("small_blocks")
def test_loss_masks_of_datatrove_are_kept(tmp_path: Path) -> None:
    """One byte per token becomes one bit."""
    loss = [[0] * (len(document) - 1) + [1] for document in DOCUMENTS]
    result = adopt(tmp_path / "s", datatrove(tmp_path / "x.ds", loss=loss))
    with open_store(result.path) as store:
        assert [store.loss_mask(i).astype(int).tolist() for i in range(4)] == loss


def test_end_of_text_inside_of_most_documents_does_not_hide_that_all_end_with_it(tmp_path: Path) -> None:
    """Several sequences of a Megatron document have several tokens of end of text, the last one at its end."""
    made = datatrove(tmp_path / "x.ds", [[1, EOS, 2, EOS, 3, EOS], [4, EOS, 5, EOS, 6, EOS]])
    notes: list[str] = []
    result = adopt(tmp_path / "s", made, note=notes.append)
    assert (result.eos_at, result.ends_with_eos) == ("end", True)
    assert notes[-1].startswith("4 end-of-text tokens are inside of documents")


@pytest.mark.usefixtures("small_blocks")
def test_entries_that_are_ends_of_chunks_are_reported_and_can_be_cut_further(tmp_path: Path) -> None:
    """Datatrove's shuffle_chunk_size: an entry need not end a document, and a document may end inside of an entry."""
    chunks = [[7, EOS, 8], [EOS, 1, 2], [3, EOS, 4]]
    notes: list[str] = []
    made = datatrove(tmp_path / "x.ds", chunks, metadata=False)
    assert documents_of(adopt(tmp_path / "s", made, note=notes.append, eos_at="none").path) == chunks
    assert not any("inside of documents" in note for note in notes)
    assert adopt(tmp_path / "u", made, note=notes.append).eos_at == "none"
    assert notes[-1].startswith("3 end-of-text tokens are inside of documents")
    assert documents_of(adopt(tmp_path / "t", made, note=notes.append, cut="both").path) == [
        [7, EOS], [8], [EOS], [1, 2], [3, EOS], [4],
    ]  # fmt: skip
    assert notes[-1] == "3 of 6 documents do not end with 99 (entries of an index may be ends of chunks)"


@pytest.mark.parametrize("format", ["nanogpt", "dolma"])
def test_tokens_after_the_last_end_of_text_are_a_document(format: str, tmp_path: Path) -> None:
    """Readers that only look for the end-of-text token drop them."""
    notes: list[str] = []
    made = nanogpt(tmp_path / ("x.bin" if format == "nanogpt" else "x.npy"), [*DOCUMENTS, [1, 2]])
    result = adopt(tmp_path / "s", made, format=format, note=notes.append)
    assert documents_of(result.path) == [*DOCUMENTS, [1, 2]]
    assert "1 of 5 documents do not end with 99" in notes


def test_what_a_scan_of_dolma_files_would_lose_is_counted(tmp_path: Path) -> None:
    """The rows are the truth: documents that were truncated have no end-of-text token."""
    notes: list[str] = []
    documents = [DOCUMENTS[0], [1, 2, 3], DOCUMENTS[1], [4, 5]]
    result = adopt(tmp_path / "s", dolma(tmp_path / "x.npy", documents), note=notes.append)
    assert documents_of(result.path) == documents
    assert notes == [
        "2 of 4 documents do not end with 99",
        "the rows hold 4 documents; a reader that only looks for 99 finds 2 and loses 2 tokens after the last one of each file",
    ]


def straddling(folder: Path) -> list[Path]:
    """Five files that cut DOCUMENTS, begun by EOS, at 3, 4, 5, and 11 tokens: inside documents, and at the border of one."""
    tokens = np.concatenate(STARTED).tolist()
    cuts = [0, 3, 4, 5, 11, len(tokens)]
    return [llmc(folder / f"x_{i}.bin", [tokens[a:b]]) for i, (a, b) in enumerate(pairwise(cuts))]


@pytest.mark.usefixtures("small_blocks")
def test_a_document_that_continues_in_the_next_file_is_cut_there_or_joined(tmp_path: Path) -> None:
    """llm.c writes files of equal size. The parts are counted; --join copies and joins them."""
    files, notes = straddling(tmp_path), []
    result = adopt(tmp_path / "s", *files, note=notes.append)
    assert documents_of(result.path) == [[EOS, 5, 7], [EOS], [8], [EOS, 1, 2, 3, 4, 5], [EOS, 6]]
    assert result.num_linked == 5
    assert notes[-1].startswith("1 of 5 documents do not begin with 99: they continue a document of the file before")
    joined = adopt(tmp_path / "t", *files, note=notes.append, join=True)
    assert documents_of(joined.path) == STARTED
    assert (joined.num_copied, joined.counts["joined documents"]) == (5, 1)
    with open_store(joined.path) as store:
        assert [store.origin(i).file for i in range(4)] == ["x_0.bin", "x_1.bin", "x_3.bin", "x_4.bin"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("cuts", [[1], [2], [3], [4], [5, 6], [3, 5], [1, 2, 3], [6, 7, 8, 9, 12]])
@pytest.mark.parametrize("format", ["nanogpt", "llmc"])
def test_joining_gives_the_documents_wherever_files_are_cut(format: str, cuts: list[int], tmp_path: Path) -> None:
    """The end-of-text token may be the last of a file, the first of the next, or far away."""
    write, _, documents = WRITERS[format]
    parts = np.split(np.concatenate(documents), cuts)
    files = [write(tmp_path / f"x_{i}.bin", [part]) for i, part in enumerate(parts)]
    assert documents_of(adopt(tmp_path / "s", *files, format=format, join=True).path) == documents


def test_a_file_may_be_one_document(tmp_path: Path) -> None:
    """--cut file, for data without an end-of-text token; meta.pkl is not read."""
    (tmp_path / "meta.pkl").write_bytes(b"cos\nsystem\n(S'touch pickled'\ntR.")
    nanogpt(tmp_path / "x.bin")
    result = adopt(tmp_path / "s", tmp_path / "x.bin", format="nanogpt", cut="file", eos_id=None)
    assert documents_of(result.path) == [np.concatenate(DOCUMENTS).tolist()]


def test_a_file_that_is_written_to_later_is_found(tmp_path: Path) -> None:
    """By size or time at open; by checksum in verify, and where a copy of the store has other inodes."""
    made = nanogpt(tmp_path / "x.bin")
    path = adopt(tmp_path / "s", made, format="nanogpt").path
    with open(made, "r+b") as file:
        file.write(b"\1")
    with pytest.raises(CorruptionError, match="modification time"):
        open_store(path)
    assert [finding.file for finding in verify(path)] == ["tokens-00000.bin"]
    assert "modification time" in str(verify_adopted(path)[0])
    with open(made, "ab") as file:
        file.write(b"\1")
    with pytest.raises(CorruptionError, match="file size: expected 26 bytes, found 27"):
        open_store(path)


def test_a_file_from_before_1970_is_adopted(tmp_path: Path) -> None:
    """Its modification time is a negative number, which is recorded as an unsigned one."""
    made = nanogpt(tmp_path / "x.bin")
    os.utime(made, ns=(0, -1))
    assert documents_of(adopt(tmp_path / "s", made, format="nanogpt").path) == DOCUMENTS


def test_replacing_the_other_tools_file_does_not_change_the_store(tmp_path: Path) -> None:
    """A new file of the same name is another inode."""
    made = nanogpt(tmp_path / "x.bin")
    path = adopt(tmp_path / "s", made, format="nanogpt").path
    made.unlink()
    nanogpt(tmp_path / "x.bin", [[1, EOS]])
    assert documents_of(path) == DOCUMENTS
