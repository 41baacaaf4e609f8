"""DataRank: which part of the data a process is given, from meshes of every usual shape, in one process."""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.conftest import random_documents
from tokenstore import DataRank, Plan, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError
from tokenstore.trainers.grain import MicrobatchSource


@contextmanager
def process(rank: int, world_size: int) -> Iterator[None]:
    """Be process `rank` of so many that are not there."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh_of(**dims: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))


def ranks_of(dims: tuple[str, ...] | None = None, **mesh: int) -> list[int]:
    """The data-parallel rank of every process of such a mesh, which must agree on the size."""
    world_size = torch.Size(mesh.values()).numel()
    places = []
    for rank in range(world_size):
        with process(rank, world_size):
            places.append(DataRank.from_mesh(mesh_of(**mesh), dims))
    assert {place.world_size for place in places} == {max(place.rank for place in places) + 1}
    return [place.rank for place in places]


def test_tensor_context_and_pipeline_peers_share_a_rank() -> None:
    """P2: of pp 1 x dp 2 x cp 2 x tp 2 processes the first four work on one batch, the others on another."""
    assert ranks_of(pp=1, dp=2, cp=2, tp=2) == [0] * 4 + [1] * 4
    assert ranks_of(pp=2, dp_replicate=1, dp_shard=2, tp=2) == [0, 0, 1, 1] * 2


def test_replicas_and_shards_are_counted_together() -> None:
    """P2: under HSDP every process has data of its own, numbered in the order of the mesh, however the dims are listed."""
    assert ranks_of(dp_replicate=2, dp_shard=4) == list(range(8))
    assert ranks_of(("dp_shard", "dp_replicate"), dp_replicate=2, dp_shard=2, tp=2) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", ["dp", "data", "data_parallel", "fsdp", "ddp", "batch", "dp_shard", "dp_replicate"])
def test_usual_names_need_not_be_said(name: str) -> None:
    """Dims are known by the names that trainers give them."""
    assert ranks_of(**{name: 2, "tensor_parallel": 2}) == [0, 0, 1, 1]


def test_dims_of_ones_own() -> None:
    """A dim of any name is one to split over, if it is named; a single one may be given as it is."""
    assert ranks_of(("rows",), rows=2, columns=2) == [0, 0, 1, 1]
    assert ranks_of("columns", rows=2, columns=2) == [0, 1, 0, 1]


def test_a_mesh_without_a_data_dim_is_refused() -> None:
    """P2: nothing is guessed: the message lists the mesh's dims and says how to name one."""
    with process(0, 4):
        with pytest.raises(ValueError, match=r"the mesh's dims \['tp', 'cp'\], found none .*from_mesh\(mesh, dims="):
            DataRank.from_mesh(mesh_of(tp=2, cp=2))
        with pytest.raises(ValueError, match=r"the mesh's dims \['dp', 'tp'\], found \['data'\]"):
            DataRank.from_mesh(mesh_of(dp=2, tp=2), dims=("data",))
        with pytest.raises(ValueError, match=r"dims \['dp', 'extra'\] by name, found \['extra'\]"):
            DataRank.from_mesh(mesh_of(dp=2, extra=2))
        with pytest.raises(ValueError, match=r"the mesh's dims \[\], found none"):
            DataRank.from_mesh(init_device_mesh("cpu", (4,)))


def test_a_process_outside_the_mesh_is_refused() -> None:
    """A process that a mesh leaves out has no place in it."""
    with process(3, 4), pytest.raises(ValueError, match=r"found the ranks \[0, 1\]"):
        DataRank.from_mesh(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: torch.distributed counts most, then what a launcher says: a loader made early is not given another rank's data."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert DataRank.from_environment() == DataRank(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match="found WORLD_SIZE=8 alone; set it up first"):
        DataRank.from_environment()
    monkeypatch.setenv("RANK", "5")
    assert DataRank.from_environment() == DataRank(5, 8)
    with process(1, 2):
        assert DataRank.from_environment() == DataRank(1, 2)


def test_loaders_take_a_data_rank(make_store: Callable[..., Path]) -> None:
    """P2: one argument in place of two; both at once, or half, is refused; left out, it is the environment's."""
    plan = Plan.of(make_store("a", random_documents(3, 100, 30), length_index=True), 16, 4)
    expected = torch.from_numpy(plan.batch(0, 1, 2)["input_ids"])
    with process(3, 4):
        place = DataRank.from_mesh(mesh_of(dp=2, tp=2))
    for make in (TokenLoader, TokenDataset):
        assert torch.equal(next(iter(make(plan, rank=place)))["input_ids"], expected)
        with process(1, 2):
            assert torch.equal(next(iter(make(plan)))["input_ids"], expected)
        with pytest.raises(ValueError, match="both or neither, or a DataRank alone"):
            make(plan, rank=place, world_size=2)
    with pytest.raises(ValueError, match="found rank 2 of 2"):
        DataRank(2, 2)


# ---- loaders that were not given a rank


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return Plan.of(make_store("a", random_documents(3, 100, 30), length_index=True), 16, 4, num_steps=2)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def given_first(thing: Any) -> Any:
    """The first batch, as an array."""
    if isinstance(thing, TokenLoader):
        thing.load_state_dict(thing.plan.state(0))
    first = thing[0] if isinstance(thing, MicrobatchSource) else next(iter(thing))
    return np.asarray(first["input_ids"])


MAKERS = (TokenLoader, TokenDataset, MicrobatchSource)


@pytest.mark.parametrize("make", MAKERS)
def test_the_rank_is_that_of_the_process_that_iterates(plan: Plan, make: Callable[..., Any]) -> None:
    """P2: made before torch.distributed is set up, or on a driver and sent to a worker: each rank is given its own rows."""
    here = make(plan)
    assert len(here) == 2
    for thing in (here, copied(make(plan)), copied(copied(here))):
        with process(1, 2):
            assert (given_first(thing) == plan.batch(0, 1, 2)["input_ids"]).all()
        assert (given_first(copied(thing)) == plan.batch(0, 1, 2)["input_ids"]).all()  # no rank of its own: the same


@pytest.mark.parametrize("make", MAKERS)
def test_a_rank_once_used_stays(plan: Plan, make: Callable[..., Any]) -> None:
    """P2: within a process nothing changes it; a copy in another process with a rank of its own has that one."""
    with process(0, 2):
        thing = make(plan)
        given_first(thing)
    with process(3, 4):
        assert (given_first(thing) == plan.batch(0, 0, 2)["input_ids"]).all()
        assert (given_first(copied(thing)) == plan.batch(0, 3, 4)["input_ids"]).all()


def test_a_given_rank_goes_everywhere(plan: Plan) -> None:
    """P2: whatever the other process says of itself."""
    for make in MAKERS:
        with process(3, 4):
            assert (given_first(copied(make(plan, rank=1, world_size=2))) == plan.batch(0, 1, 2)["input_ids"]).all()


def test_launchers_count_where_torch_distributed_is_not_set_up(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a copy in a process that was started with RANK and WORLD_SIZE; but a DataLoader's worker has its parent's rank."""
    with process(0, 2):
        data = pickle.dumps(TokenDataset(plan))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (given_first(pickle.loads(data)) == plan.batch(0, 1, 4)["input_ids"]).all()
    worker = SimpleNamespace(id=0, num_workers=1)
    monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", worker)
    assert (given_first(pickle.loads(data)) == plan.batch(0, 0, 2)["input_ids"]).all()


def test_a_rank_found_late_is_checked(plan: Plan) -> None:
    """P5: a step that does not divide among the ranks is refused when they are known."""
    loader = TokenLoader(plan)
    with process(0, 3), pytest.raises(ConfigError, match="divisor of the global batch of 4 sequences, found 3"):
        next(loader)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_a_rank_of_its_own(plan: Plan) -> None:
    """P2: as the processes of a launcher that forks."""
    loader = TokenLoader(plan, microbatch_size=1)
    next(loader)

    def child() -> None:
        with process(1, 2):
            same = (given_first(loader) == plan.batch(0, 1, 2, 1)["input_ids"][:1]).all()
        os._exit(0 if same else 1)

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
