"""`tokenstore export`: files of other tools that hold the documents of a store, or the reason why they cannot."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.foreign.adopting import adopt, documents_of
from tests.support.foreign.files import DOCUMENTS, EOS, STARTED, WRITERS, datatrove, dolma, llmc, megatron, nanogpt
from tokenstore import open_store
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.foreign import ExportOptions, ExportResult, export_store, parts
from tokenstore.foreign import export as export_module
from tokenstore.foreign.export_checks import starts_with_eos

NAMES = {
    "megatron": ["s.bin", "s.idx"],
    "datatrove": ["s.ds", "s.ds.index", "s.ds.metadata"],
    "dolma": ["s.csv.gz", "s.npy"],
    "nanogpt": ["s.bin"],
    "llmc": ["s.bin"],
}


def export(store: Path, to: str, notes: list[str] | None = None, **options: object) -> ExportResult:
    """Export a store to a folder next to it."""
    output = store.parent / f"{store.name}-{to}"
    return export_store(ExportOptions(store, to, output, **options), note=(notes if notes is not None else []).append)


@pytest.mark.parametrize("to", NAMES)
def test_an_export_holds_the_documents_of_the_store(to: str, tmp_path: Path) -> None:
    """A store from Megatron files, exported and adopted again: the same documents, and the token file is a link if it can be."""
    made = megatron(tmp_path / "x")
    store = adopt(tmp_path / "s", made).path
    result = export(store, to)
    assert sorted(path.name for path in result.path.iterdir()) == NAMES[to]
    assert sorted(path.name for path in (*result.files, *result.side_files)) == NAMES[to]
    assert len(result.files) == 1
    again = adopt(tmp_path / "again", *result.files, format=to)
    assert documents_of(again.path) == (STARTED if to == "llmc" else DOCUMENTS)
    assert (result.files[0].stat().st_ino == made.stat().st_ino) == (to != "llmc") == (result.num_linked == 1)


@pytest.mark.parametrize(("to", "write"), [(name, row[0]) for name, row in WRITERS.items()])
def test_an_export_has_the_bytes_that_the_tool_would_write(to: str, write: object, tmp_path: Path) -> None:
    """Token file and index are those of the documented layout."""
    file, documents = WRITERS[to][1:]
    (tmp_path / "expected").mkdir()
    expected = write(tmp_path / "expected" / file, **({"metadata": False} if to == "datatrove" else {}))
    source = dolma(tmp_path / "source.npy", documents)
    result = export(adopt(tmp_path / "s", source, eos_id=EOS).path, to, name="x", copy=True)
    assert result.files[0].read_bytes() == expected.read_bytes()
    for ending in (".idx", ".ds.index"):
        if (tmp_path / "expected" / f"x{ending}").exists():
            assert (result.path / f"x{ending}").read_bytes() == (tmp_path / "expected" / f"x{ending}").read_bytes()


@pytest.mark.parametrize("one_file", [False, True])
@pytest.mark.parametrize("to", NAMES)
def test_every_shard_becomes_a_file_or_all_one(
    to: str, one_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers in the index are those of the file."""
    monkeypatch.setattr(parts, "_BLOCK", 2)
    for number, name in enumerate("abcd"):
        nanogpt(tmp_path / f"{name}.bin", DOCUMENTS[number : number + 1])
    store = adopt(tmp_path / "s", *(tmp_path / f"{name}.bin" for name in "abcd"), format="nanogpt").path
    result = export(store, to, one_file=one_file)
    assert len(result.files) == (1 if one_file or to == "nanogpt" else 4)
    assert [file.name.split(".")[0] for file in result.files][-1] == ("s" if len(result.files) == 1 else "s_00003")
    again = adopt(tmp_path / "again", *result.files, format=to)
    assert documents_of(again.path) == (STARTED if to == "llmc" else DOCUMENTS)


def test_a_store_over_llmc_files_is_linked_again_with_its_header(tmp_path: Path) -> None:
    """To Megatron the tokens are copied, because its files have no header."""
    store = adopt(tmp_path / "s", llmc(tmp_path / "x.bin")).path
    assert export(store, "llmc").num_linked == 1
    result = export(store, "megatron")
    assert result.num_copied == 1
    assert documents_of(adopt(tmp_path / "again", result.files[0]).path) == STARTED


def test_the_starts_of_documents_are_read_once_for_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each shard: a store over llm.c files may have thousands."""
    store = adopt(tmp_path / "s", *(llmc(tmp_path / f"{name}.bin") for name in "abcdef")).path
    calls = []
    monkeypatch.setattr(export_module, "starts_with_eos", lambda store: calls.append(store) or starts_with_eos(store))
    assert export(store, "llmc").num_linked == 6
    assert len(calls) == 1


def test_wide_tokens_are_int32_for_megatron(tmp_path: Path) -> None:
    """The same bits, so the file is linked."""
    store = adopt(tmp_path / "s", megatron(tmp_path / "x", dtype="<i4"), vocab_size=70_000).path
    result = export(store, "megatron")
    assert result.num_linked == 1
    assert (result.path / "s.idx").read_bytes() == (tmp_path / "x.idx").read_bytes()


def test_ids_and_origins_are_columns_of_dolma(tmp_path: Path) -> None:
    """An export has the ids that were adopted."""
    result = export(adopt(tmp_path / "s", dolma(tmp_path / "x.npy")).path, "dolma")
    with open_store(adopt(tmp_path / "again", *result.files).path) as store:
        assert [store.id(i) for i in range(4)] == [f"id,{i}" for i in range(4)]


def test_loss_masks_go_to_datatrove_and_nowhere_else(tmp_path: Path) -> None:
    """Dropping them is a decision of the user."""
    loss = [[0] * (len(document) - 1) + [1] for document in DOCUMENTS]
    store = adopt(tmp_path / "s", datatrove(tmp_path / "x.ds", loss=loss)).path
    result = export(store, "datatrove")
    assert result.files[0].with_name("s.ds.loss").read_bytes() == (tmp_path / "x.ds.loss").read_bytes()
    with pytest.raises(ConfigError, match="it has loss masks, and the format has none; --drop-masks drops them"):
        export(store, "megatron")
    notes: list[str] = []
    export(store, "megatron", notes, drop_masks=True)
    assert "the loss masks are not exported: every token counts in the loss" in notes


@pytest.mark.parametrize(
    ("to", "documents", "options", "reason"),
    [
        ("nanogpt", DOCUMENTS, {"dtype": "<u4"}, "its tokens are uint32, and nanoGPT reads uint16 only"),
        ("megatron", DOCUMENTS, {"dtype": "<u4", "vocab_size": (1 << 31) + 1}, "the format holds ids below 2..31"),
        ("llmc", DOCUMENTS, {"dtype": "<u4", "vocab_size": (1 << 31) + 1}, "the format holds ids below 2..31"),
        ("nanogpt", [[1, 2], [3, EOS]], {}, "not all documents end with an end-of-text token"),
        ("llmc", [[1, 2], [3, EOS]], {}, "not all documents begin or end with an end-of-text token"),
        ("nanogpt", STARTED, {}, "begin with the end-of-text token instead of ending with it"),
        ("nanogpt", [[1, EOS, 2, EOS]], {}, "2 end-of-text tokens .99. do not divide 1 documents"),
        ("llmc", [[EOS, 1, EOS]], {}, "2 end-of-text tokens .99. do not divide 1 documents"),
        ("nanogpt", DOCUMENTS, {"eos_id": None}, "the format has no index"),
    ],
)
def test_a_format_that_cannot_hold_a_store_is_refused_with_the_reason(
    to: str, documents: list[list[int]], options: dict, reason: str, tmp_path: Path
) -> None:
    """Nothing is written."""
    dtype = options.pop("dtype", "<u2")
    store = adopt(tmp_path / "s", dolma(tmp_path / "x.npy", documents, dtype=dtype), **options).path
    with pytest.raises(ConfigError, match=rf"export: {to} files cannot hold .*{reason}"):
        export(store, to)
    assert not (tmp_path / f"s-{to}").exists()


def test_all_reasons_are_given_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also lengths and sizes that no test can write."""
    loss = [[1] * len(document) for document in DOCUMENTS]
    store = adopt(tmp_path / "s", datatrove(tmp_path / "x.ds", loss=loss)).path
    monkeypatch.setattr("tokenstore.foreign.export_checks._INT32", 4)
    with pytest.raises(ConfigError, match=r"vocabulary has 100 ids.*longest document has 6 tokens.*loss masks"):
        export(store, "megatron")
    with pytest.raises(ConfigError, match=r"a file would have 13 tokens, and its header holds numbers below"):
        export(store, "llmc")


def test_wrong_options_of_an_export_are_refused(tmp_path: Path) -> None:
    """A folder in use, an unknown format, a name that leaves the folder."""
    store = adopt(tmp_path / "s", nanogpt(tmp_path / "x.bin"), format="nanogpt").path
    for options, message in (
        (ExportOptions(store, "megatron", tmp_path), "exists and is not empty; choose another folder"),
        (ExportOptions(store, "mds", tmp_path / "e"), "to: expected one of megatron, datatrove, dolma, nanogpt, llmc"),
        (ExportOptions(store, "dolma", tmp_path / "e", name="../x"), "name: expected letters"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_store(options)


def test_damage_is_not_exported(tmp_path: Path) -> None:
    """An id outside the vocabulary, or boundaries that fall, in a copy of tokens."""
    made = nanogpt(tmp_path / "x.bin")
    store = adopt(tmp_path / "s", made, format="nanogpt", copy=True).path
    shard = store / "tokens-00000.bin"
    tokens = np.fromfile(shard, "<u2")
    tokens[3] = 500
    shard.unlink()
    tokens.tofile(shard)
    with pytest.raises(CorruptionError, match="token id: expected ids below 100, found 500"):
        export(store, "megatron", copy=True)
    assert not (tmp_path / "s-megatron").exists()
