"""The files that a plan holds are checked while it runs: with the right name and size in every version of a store."""

from pathlib import Path

import pytest

from tests.support.stores.forge import replace
from tests.support.stores.grown import documents_of, grow, write
from tokenstore import Plan, PlanConfig
from tokenstore.errors import CorruptionError
from tokenstore.store.pin import Pace

LENGTHS = [3, 40, 8, 17, 9, 30]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with all optional files, two versions and several shards."""
    path = write(tmp_path / "s", documents_of(1, LENGTHS), shard_bytes=60)
    grow(path, documents_of(2, LENGTHS), shard_bytes=60)
    return path


def held(path: Path, version: int, packing: str) -> Plan:
    """A plan that has mapped all files and checks them again before the next batch."""
    source = {"path": str(path), "version": version}
    plan = Plan(
        PlanConfig(sequence_length=16, global_batch_size=64, num_steps=2, packing=packing, sources={"s": source})
    )
    plan.batch(0)
    plan._sampler._tables.pace = Pace()
    return plan


@pytest.mark.filterwarnings("ignore:.*epochs")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_sound_files_pass_the_check(path: Path, version: int, packing: str) -> None:
    """P9: boundaries, length index, shards and masks; some keep their name in all versions, some do not."""
    assert held(path, version, packing).batch(1)["input_ids"].shape == (64, 16)


@pytest.mark.filterwarnings("ignore:.*epochs")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("stem", ["tokens-00000", "mask-00000", "boundaries", "length_index"])
def test_a_file_of_a_wrong_size_is_named(path: Path, version: int, stem: str) -> None:
    """P9: the file that this version uses."""
    plan = held(path, version, "best_fit")
    name = f"{stem}-v2.bin" if version == 2 and stem in ("boundaries", "length_index") else f"{stem}.bin"
    replace(path / name, b"short")
    with pytest.raises(CorruptionError, match=rf"file size: expected \d+ bytes, found 5 \(.*{name}\)"):
        plan.batch(1)
