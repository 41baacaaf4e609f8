"""Damaged indexes and tokens (P9): always a TokenStoreError that names the file and says what to do; never a crash.

The sweeps run twice: here, and all together in a process of their own, where a crash is seen as a return code.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore
from tests.conftest import write_store
from tests.support.stores.forge import flip, overwrite, unpinned
from tests.support.stores.hostile_stores import STORES, check_message, flips
from tests.support.stores.index_sweeps import RUNS, SWEEPS, hostile_patterns, sweep
from tokenstore.errors import CorruptionError
from tokenstore.store import open_store, verify

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit
LONG_RUNS = {("small", "flipped-boundaries"), ("long", "flipped-boundaries"), ("long", "hostile-values")}


@pytest.mark.parametrize(
    ("name", "what"),
    [pytest.param(*run, marks=[pytest.mark.deep] * (run in LONG_RUNS)) for run in RUNS],
)
def test_damaged_indexes_and_tokens_are_found_and_never_followed(name: str, what: str, tmp_path: Path) -> None:
    """P9: verify names the file; documents and batches are sane, or an error names the file and what to do."""
    assert SWEEPS[what](STORES[name](tmp_path / name)) > 10


@pytest.mark.deep
def test_no_damage_crashes_the_process(tmp_path: Path) -> None:
    """P9: all sweeps in a separate process end with return code 0: no segmentation fault, abort or hang."""
    code = "import sys, pathlib; from tests.support.stores.index_sweeps import sweep_all; print(sweep_all(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 1000


@pytest.mark.parametrize("name", ["small", pytest.param("wide", marks=pytest.mark.deep)])
def test_every_flipped_bit_of_a_shard_is_found(name: str, tmp_path: Path) -> None:
    """P9: tokens are not read at open; verify names the shard, and reading an invalid id is an error."""
    path = STORES[name](tmp_path / name)
    shard = min(path.glob("tokens-*.bin"), key=lambda file: file.stat().st_size).name
    assert sweep(path, shard, flips(path, shard, all_bits=True)) == 8 * (path / shard).stat().st_size


@pytest.mark.parametrize("name", ["small", "long"])
def test_flipped_bits_of_a_large_shard_are_found_by_verify(name: str, tmp_path: Path) -> None:
    """P9: for any bit of any shard, verify names exactly that shard."""
    path = STORES[name](tmp_path / name)
    rng = np.random.default_rng(5)
    for shard in sorted(path.glob("tokens-*.bin")):
        sound = shard.read_bytes()
        for bit in rng.integers(0, 8 * len(sound), 40).tolist():
            overwrite(shard, flip(sound, bit))
            assert {finding.file for finding in verify(path)} == {shard.name}
        overwrite(shard, sound)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STORES)
def test_every_flipped_bit_of_the_boundaries_is_found_and_never_followed(name: str, tmp_path: Path) -> None:
    """P9: all bits of boundaries.bin one by one, and many random boundaries."""
    path = STORES[name](tmp_path / name)
    sweep(path, "boundaries.bin", flips(path, "boundaries.bin", all_bits=True))
    sweep(path, "boundaries.bin", hostile_patterns(path, 3000))


@given(data=st.data())
def test_boundaries_of_any_integers_are_never_followed(data: st.DataObject) -> None:
    """P9: hypothesis searches for numbers that make a kernel read outside the file."""
    numbers = st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = write_store(Path(folder) / "small", [[1, 2, 3], [4], [5] * 10, [6, 7]] * 2, shard_bytes=40)
        damaged = np.array(data.draw(st.lists(numbers, min_size=10, max_size=10)), "<i8")
        if data.draw(st.booleans()):  # as opening wants it
            damaged[0], damaged[8] = 0, 32
        sweep(path, "boundaries.bin", [damaged.tobytes()])


def test_the_lookup_is_never_read_as_starts(tmp_path: Path) -> None:
    """P9: if the last start is lowered after opening, the walk over documents stops there, not after the index."""
    path = write_store(tmp_path / "s", [[1] * 4096, [2] * 4096])
    fields = {"global_batch_size": 1, "num_steps": 1024, "shuffle": False, "packing": "concat"}
    plan = unpinned(tokenstore.Plan.of(path, sequence_length=8, **fields))
    overwrite(path / "boundaries.bin", np.array([0, 4096, 8188, 8192, 1], "<i8").tobytes())
    for ask in (plan.batch, plan.documents):
        with pytest.raises(CorruptionError) as caught:
            ask(1023)
        check_message(caught.value, path / "boundaries.bin", "document of token 8188")


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_an_id_outside_the_vocabulary_is_an_error_that_names_the_shard(tmp_path: Path, vocab_size: int) -> None:
    """P9: it never reaches a model: store[i] and plan.batch raise an error with shard, position and what to do."""
    path = write_store(tmp_path / "s", [[1] * 8, [2] * 8, [3] * 8], vocab_size, shard_bytes=1)
    width = 2 if vocab_size < 65_536 else 4
    overwrite(path / "tokens-00001.bin", vocab_size.to_bytes(width, "little"))
    with open_store(path) as store:
        assert store[0].tolist() == [1] * 8
        with pytest.raises(
            CorruptionError, match=rf"expected token ids below {vocab_size}, found {vocab_size} "
        ) as caught:
            store[1]
        check_message(caught.value, path / "tokens-00001.bin", "document 1", "tokenstore verify")
    fields = {"global_batch_size": 1, "num_steps": 3, "shuffle": False, "packing": "concat"}
    plan = tokenstore.Plan.of(path, sequence_length=8, **fields)
    assert plan.batch(0)["input_ids"].tolist() == [[1] * 8]
    with pytest.raises(CorruptionError, match=rf"expected token ids below {vocab_size}, found {vocab_size} ") as caught:
        plan.batch(1)
    check_message(caught.value, path / "tokens-00001.bin", "tokens from 0 on", "tokenstore verify")
    assert plan.batch(2)["input_ids"].tolist() == [[3] * 8]


def test_an_invalid_id_that_is_only_a_target_is_an_error(tmp_path: Path) -> None:
    """P9: the token after a row's last one is a target; an invalid id there is an error too."""
    path = write_store(tmp_path / "s", [[1] * 16], 300)
    overwrite(path / "tokens-00000.bin", b"\1\0" * 8 + b"\xff\xff")
    fields = {"global_batch_size": 1, "num_steps": 2, "shuffle": False, "packing": "concat"}
    plan = tokenstore.Plan.of(path, sequence_length=8, **fields)
    with pytest.raises(CorruptionError, match=r"found 65535 .*tokens-00000\.bin"):
        plan.batch(0)


def test_a_row_over_more_shards_than_can_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7, P9: more tiny shards than can be mapped are slow, but never a hang."""
    monkeypatch.setattr("tokenstore.batches.tables.MAX_MAPS", 4)
    path = write_store(tmp_path / "s", [[i, i] for i in range(1, 41)], shard_bytes=4)
    plan = tokenstore.Plan.of(path, sequence_length=32, global_batch_size=2, num_steps=2, packing="concat")
    for step in range(2):
        documents, batch = plan.documents(step), plan.batch(step)
        ids = [[piece.document + 1 for piece in row for _ in range(piece.start, piece.stop)] for row in documents]
        assert batch["input_ids"].tolist() == ids
