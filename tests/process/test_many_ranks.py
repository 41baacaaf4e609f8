"""P2, P7: 64 simulated ranks with 8 workers each: every one loads its part of each step, within the limits."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data._utils.worker as workers

from tests.conftest import random_documents
from tests.support.stores.opened import maps_of, open_files
from tokenstore import Plan, TokenDataset, TokenLoader
from tokenstore.store import maps, store_files

RANKS, WORKERS, MICROBATCHES = 64, 8, 8  # microbatches of one row per rank and step: one per worker
STEPS, MOST_MAPS = 6, 16


@pytest.fixture
def plan(make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A mixture over 200 shards, with a low limit on mapped files."""
    monkeypatch.setattr(store_files, "_maps", maps.MapCache(MOST_MAPS))
    monkeypatch.setattr("tokenstore.batches.tables.MAX_MAPS", MOST_MAPS)
    paths = {
        name: make_store(name, random_documents(number, 400, 60), shard_bytes=120, length_index=True)
        for number, name in enumerate("ab")
    }
    return Plan.of(paths, sequence_length=16, global_batch_size=RANKS * MICROBATCHES, weights={"a": 1, "b": "0.3"})


def loaded_by(plan: Plan, rank: int, worker: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[np.ndarray]:
    """What a worker of a rank's DataLoader loads."""
    info = workers.WorkerInfo(id=worker, num_workers=WORKERS, seed=0, dataset=None)
    monkeypatch.setattr(workers, "_worker_info", info)
    return iter(TokenDataset(plan, rank=rank, world_size=RANKS, microbatch_size=1, step=3))


@pytest.mark.deep
def test_all_ranks_together_load_the_step(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of all 512 workers are those of one process; the number of maps stays within its limit."""
    folder = plan.stores["a"].path.parent
    expected = [plan.batch(3 + step)["input_ids"] for step in range(STEPS)]
    before = maps_of(folder)  # a batch of 512 rows needs nearly all files at once
    rows = [
        [batch["input_ids"].numpy() for batch in islice(loaded_by(plan, rank, worker, monkeypatch), STEPS)]
        for rank in range(RANKS)
        for worker in range(WORKERS)
    ]
    for step in range(STEPS):
        whole = np.empty_like(expected[step])
        for number, given in enumerate(rows):
            rank, worker = divmod(number, WORKERS)
            whole[worker * RANKS + rank] = given[step][0]
        assert np.array_equal(whole, expected[step])
    assert maps_of(folder) <= before + 2 * MOST_MAPS


@pytest.mark.parametrize("packing", [pytest.param("concat", marks=pytest.mark.deep), "best_fit"])
def test_maps_and_open_files_stay_bounded(plan: Plan, packing: str) -> None:
    """Over a thousand batches of 400 shards, no file stays open, and maps stay within their limit."""
    folder = plan.stores["a"].path.parent
    loader = iter(TokenLoader(plan, rank=0, world_size=RANKS))
    found = []
    for count in (50, 950):
        for _ in range(count):
            next(loader)
        found.append(maps_of(folder))
        assert open_files(folder) == 0
    assert found[1] <= found[0] + 2 <= 2 * MOST_MAPS + 2
