"""The format is frozen: a committed store is read with its original contents, and writing it again gives the same
bytes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tokenstore.format import FORMAT_VERSION
from tokenstore.store import open_store, verify

FOLDER = Path(__file__).parent / f"format_v{FORMAT_VERSION}"
DOCUMENTS = [[7, 1], [5, 5, 1]]  # the worked example of the specification
DIGEST = "da17bfc41f72fec03bf8dad8adb48493660637b0eee0cc57de20bb50ba6fe4ee"
NAMES = ["boundaries.bin", "inputs.jsonl", "manifest.json", "tokens-00000.bin"]


def test_the_golden_store_has_all_its_files() -> None:
    """A missing golden file is a failure, and so is one that is not listed here."""
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES


def test_the_golden_store_opens_and_gives_its_documents() -> None:
    """FMT: a store written by the first version is sound, keeps its digest and can be read."""
    assert verify(FOLDER) == []
    with open_store(FOLDER) as store:
        assert [document.tolist() for document in store] == DOCUMENTS
        assert (store.num_tokens, store.vocab_size, store.dtype) == (5, 8, np.dtype("<u2"))
        assert store.digest == DIGEST


@pytest.mark.parametrize("name", NAMES)
def test_writing_the_golden_store_again_gives_the_same_bytes(name: str, make_store: Callable[..., Path]) -> None:
    """P8: the same content gives the same bytes in every file; a change needs a new FORMAT_VERSION."""
    assert (make_store("again", DOCUMENTS, vocab_size=8) / name).read_bytes() == (FOLDER / name).read_bytes()
