"""Forged adopted stores: `verify` compares only their own files, and reports what differs."""

from pathlib import Path

import pytest

from tests.support.foreign.adopting import adopt
from tests.support.foreign.files import DOCUMENTS, EOS, dolma, megatron, write_rows
from tests.support.stores.forge import forge
from tokenstore.errors import TokenStoreError
from tokenstore.foreign import verify_adopted


def adopted_store(tmp_path: Path) -> Path:
    """A store over Megatron files whose links do not matter: it is a copy."""
    return adopt(tmp_path / "s", megatron(tmp_path / "x"), copy=True).path


def rewrite(path: Path, name: str, data: bytes) -> None:
    """Replace a file of a store, and its entry in the manifest."""
    import xxhash

    (path / name).unlink()
    (path / name).write_bytes(data)
    entry = {"num_bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
    forge(path, lambda body: body["files"].update({name: entry}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"foreign-00000.idx", b"../x.idx", "expected an index file of the store, found '../x.idx'"),
        (b"foreign-00000.idx", b"/etc/passwd", "expected an index file of the store, found '/etc/passwd'"),
        (b'"foreign-00000.idx"', b"", "expected an index file for tokens-00000.bin, found none"),
        (b"tokens-00000.bin", b"tokens-00001.bin", "expected each shard at most once"),
        (b'"megatron"', b'"datatrove"', "expected readable files of the other tool"),
        (b'"index",', b'"file",', "document 0 (end in tokens-00000.bin): expected 13"),
        (b'"index",', b'"nothing",', "adopted: expected"),
    ],
)
def test_verify_reads_only_index_files_of_the_store(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    """FMT-14: adopted.json may come from a stranger."""
    path = adopted_store(tmp_path)
    data = (path / "adopted.json").read_bytes()
    assert old in data
    rewrite(path, "adopted.json", data.replace(old, new))
    try:
        shown = " ".join(map(str, verify_adopted(path)))
    except TokenStoreError as error:
        shown = str(error)
    assert message in shown


def test_an_index_that_leads_out_of_the_store_is_not_read(tmp_path: Path) -> None:
    """A link to a file elsewhere, of the listed size."""
    path = adopted_store(tmp_path)
    (path / "foreign-00000.idx").unlink()
    (path / "foreign-00000.idx").symlink_to(tmp_path / "x.idx")
    assert "a link to" in str(verify_adopted(path)[0])


def test_an_index_with_other_documents_is_a_finding(tmp_path: Path) -> None:
    """Verify compares the store's documents with the index again."""
    path = adopted_store(tmp_path)
    for documents, found in (
        ([*DOCUMENTS[:2], [1, 2, 3, 4], [5, EOS], [6, EOS]], "document 2 (end in tokens-00000.bin): expected 9, as"),
        ([*DOCUMENTS[:3], [6, EOS, 1]], "document 3 (end in tokens-00000.bin): expected 14"),
        ([*DOCUMENTS, [7]], "document 4 (end in tokens-00000.bin): expected 14, as"),
        (DOCUMENTS[:3], "document 3 (end in tokens-00000.bin): expected no more documents"),
    ):
        megatron(tmp_path / "y", documents)
        rewrite(path, "foreign-00000.idx", (tmp_path / "y.idx").read_bytes())
        assert found in str(verify_adopted(path)[0])


def test_lengths_that_overflow_are_a_finding(tmp_path: Path) -> None:
    """The sum of 2**60 tokens in each of 40 documents would wrap around."""
    made = adopt(tmp_path / "s", dolma(tmp_path / "x.npy"), copy=True).path
    write_rows(tmp_path / "y.npy", [[0, 1 << 60]] * 40)
    rewrite(made, "foreign-00000.csv.gz", (tmp_path / "y.csv.gz").read_bytes())
    assert "expected documents of at most 13 tokens, found 1152921504606846976" in str(verify_adopted(made)[0])
