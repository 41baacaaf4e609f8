"""merge and drop write some files of a store again: damage does not get a new, matching checksum, and forged values are refused."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.forge import flip, list_file, replace
from tests.support.stores.grown import Kind, documents_of, write
from tokenstore.builder import drop, merge
from tokenstore.errors import CorruptionError
from tokenstore.store import open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in which a file will be damaged, beside a sound one."""
    documents, kind = documents_of(1, [3, 1, 40, 7]), Kind(masks=False)
    write(tmp_path / "other", documents_of(2, [4, 2]), kind)
    return write(tmp_path / "s", [each._replace(id=f"d{i}") for i, each in enumerate(documents)], kind)


def check_refused(path: Path, says: str) -> None:
    with pytest.raises(CorruptionError, match=says):
        merge([path, path.with_name("other")], path.with_name("merged"))
    assert not path.with_name("merged").exists()
    with pytest.raises(CorruptionError, match=says):
        drop(path, ["d1"])
    assert open_store(path, check="lazy").version == 1


@pytest.mark.parametrize("name", ["boundaries.bin", "origins.bin", "ids.bin"])
def test_a_flipped_bit_is_not_copied(path: Path, name: str) -> None:
    data = (path / name).read_bytes()
    replace(path / name, flip(data, 8 * len(data) - 8))
    check_refused(path, rf"expected the checksum \w+, found \w+ .*{name}")


def test_forged_origins_are_refused(path: Path) -> None:
    replace(path / "origins.bin", np.array([1, 2, 0, 4], "<i8").tobytes())
    list_file(path, "origins.bin")
    check_refused(path, "origins: expected record numbers from 1, found 0")
