"""FMT-9..13 are frozen: a committed store with all optional files and two versions is read and written unchanged."""

from pathlib import Path

import pytest

from tests.support.stores.grown import Document, check_documents, grow, write
from tokenstore.format import FORMAT_VERSION
from tokenstore.store import open_store, verify

FOLDER = Path(__file__).parent / f"growth_v{FORMAT_VERSION}"
OLD = [
    Document([7, 1], [True, False], "one.jsonl", 3, "a"),
    Document([5, 5, 1], [False, True, True], "two.jsonl", 1, "ü"),
]
NEW = [Document([299], [True], "two.jsonl", 9, "")]
DIGESTS = {
    1: "aafe52711d8926b70680ee573711c4bcd448f204b656b70b06da35fd7943af43",
    2: "127620d829f5d8e8669e90e9ce1ca8eaccfb87fd84c9c75e08a1688d5656095a",
}


@pytest.mark.parametrize("version", DIGESTS)
def test_every_version_is_read_as_it_was_written(version: int) -> None:
    """FMT-13: each version is sound, keeps its digest, and returns its documents with masks, origins and ids."""
    assert verify(FOLDER, version=version) == []
    with open_store(FOLDER, version=version) as store:
        assert store.digest == DIGESTS[version]
        check_documents(store, OLD if version == 1 else OLD + NEW)


def test_writing_and_growing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """P8: every file has the committed bytes; a change needs a new FORMAT_VERSION."""
    path = write(tmp_path / "s", OLD)
    grow(path, NEW)
    names = sorted(file.name for file in FOLDER.iterdir())
    assert sorted(file.name for file in path.iterdir()) == names
    for name in names:
        assert (path / name).read_bytes() == (FOLDER / name).read_bytes()
