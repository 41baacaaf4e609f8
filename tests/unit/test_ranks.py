"""DataRank: the data-parallel rank of a process, for meshes of every usual shape, in one process."""

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
    """Act as process `rank` of `world_size` simulated processes."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh_of(**dims: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))


def ranks_of(dims: tuple[str, ...] | None = None, **mesh: int) -> list[int]:
    """The data-parallel rank of every process of a mesh of this shape. All agree on the world size."""
    world_size = torch.Size(mesh.values()).numel()
    places = []
    for rank in range(world_size):
        with process(rank, world_size):
            places.append(DataRank.from_mesh(mesh_of(**mesh), dims))
    assert {place.world_size for place in places} == {max(place.rank for place in places) + 1}
    return [place.rank for place in places]


def test_tensor_context_and_pipeline_peers_share_a_rank() -> None:
    """P2: of pp 1 x dp 2 x cp 2 x tp 2 processes, the first four train on one batch and the others on another."""
    assert ranks_of(pp=1, dp=2, cp=2, tp=2) == [0] * 4 + [1] * 4
    assert ranks_of(pp=2, dp_replicate=1, dp_shard=2, tp=2) == [0, 0, 1, 1] * 2


def test_replicas_and_shards_are_counted_together() -> None:
    """P2: under HSDP every process has its own data, numbered in the order of the mesh, not of the arguments."""
    assert ranks_of(dp_replicate=2, dp_shard=4) == list(range(8))
    assert ranks_of(("dp_shard", "dp_replicate"), dp_replicate=2, dp_shard=2, tp=2) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", ["dp", "data", "data_parallel", "fsdp", "ddp", "batch", "dp_shard", "dp_replicate"])
def test_usual_dim_names_are_known(name: str) -> None:
    """The names that trainers use."""
    assert ranks_of(**{name: 2, "tensor_parallel": 2}) == [0, 0, 1, 1]


def test_dims_can_be_named() -> None:
    """A dim of any name is data-parallel if it is passed, also as a single string."""
    assert ranks_of(("rows",), rows=2, columns=2) == [0, 0, 1, 1]
    assert ranks_of("columns", rows=2, columns=2) == [0, 1, 0, 1]


def test_a_mesh_without_a_data_dim_is_refused() -> None:
    """P2: nothing is guessed. The message lists the dims of the mesh and how to name one."""
    with process(0, 4):
        with pytest.raises(
            ValueError, match=r"the mesh's dims \['tp', 'cp'\], found no usual name.*from_mesh\(mesh, dims="
        ):
            DataRank.from_mesh(mesh_of(tp=2, cp=2))
        with pytest.raises(ValueError, match=r"the mesh's dims \['dp', 'tp'\], found \['data'\]"):
            DataRank.from_mesh(mesh_of(dp=2, tp=2), dims=("data",))
        with pytest.raises(ValueError, match=r"dims \['dp', 'extra'\], and it is unknown whether \['extra'\]"):
            DataRank.from_mesh(mesh_of(dp=2, extra=2))
        with pytest.raises(ValueError, match=r"the mesh's dims \[\], found no usual name"):
            DataRank.from_mesh(init_device_mesh("cpu", (4,)))


def test_a_process_outside_the_mesh_is_refused() -> None:
    """It has no coordinate in the mesh."""
    with process(3, 4), pytest.raises(ValueError, match=r"its ranks are \[0, 1\]"):
        DataRank.from_mesh(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))


def test_torch_distributed_precedes_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a loader made before torch.distributed is initialized does not load the data of another rank."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert DataRank.from_environment() == DataRank(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match=r"WORLD_SIZE=8 but no RANK, and torch\.distributed is not initialized"):
        DataRank.from_environment()
    monkeypatch.setenv("RANK", "5")
    assert DataRank.from_environment() == DataRank(5, 8)
    with process(1, 2):
        assert DataRank.from_environment() == DataRank(1, 2)


def test_loaders_take_a_data_rank(make_store: Callable[..., Path]) -> None:
    """P2: one argument instead of two; both at once or only one number is refused; the default is the environment."""
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


# ---- loaders without a given rank


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return Plan.of(make_store("a", random_documents(3, 100, 30), length_index=True), 16, 4, num_steps=2)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def first_batch(thing: Any) -> Any:
    """The first batch, as an array."""
    if isinstance(thing, TokenLoader):
        thing.load_state_dict(thing.plan.state(0))
    first = thing[0] if isinstance(thing, MicrobatchSource) else next(iter(thing))
    return np.asarray(first["input_ids"])


MAKERS = (TokenLoader, TokenDataset, MicrobatchSource)


@pytest.mark.parametrize("make", MAKERS)
def test_the_rank_is_that_of_the_process_that_iterates(plan: Plan, make: Callable[..., Any]) -> None:
    """P2: a loader made before torch.distributed is initialized, or on a driver, loads the rows of the process it runs in."""
    here = make(plan)
    assert len(here) == 2
    for thing in (here, copied(make(plan)), copied(copied(here))):
        with process(1, 2):
            assert (first_batch(thing) == plan.batch(0, 1, 2)["input_ids"]).all()
        assert (
            first_batch(copied(thing)) == plan.batch(0, 1, 2)["input_ids"]
        ).all()  # the copy has no rank in its environment


@pytest.mark.parametrize("make", MAKERS)
def test_a_used_rank_is_fixed(plan: Plan, make: Callable[..., Any]) -> None:
    """P2: nothing changes it in this process; a copy in a process with another rank has that rank."""
    with process(0, 2):
        thing = make(plan)
        first_batch(thing)
    with process(3, 4):
        assert (first_batch(thing) == plan.batch(0, 0, 2)["input_ids"]).all()
        assert (first_batch(copied(thing)) == plan.batch(0, 3, 4)["input_ids"]).all()


def test_a_given_rank_is_kept_by_copies(plan: Plan) -> None:
    """P2: whatever the environment of the other process is."""
    for make in MAKERS:
        with process(3, 4):
            assert (first_batch(copied(make(plan, rank=1, world_size=2))) == plan.batch(0, 1, 2)["input_ids"]).all()


def test_a_copy_reads_rank_and_world_size(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: without torch.distributed too; but a DataLoader worker has the rank of its parent."""
    with process(0, 2):
        data = pickle.dumps(TokenDataset(plan))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (first_batch(pickle.loads(data)) == plan.batch(0, 1, 4)["input_ids"]).all()
    worker = SimpleNamespace(id=0, num_workers=1)
    monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", worker)
    assert (first_batch(pickle.loads(data)) == plan.batch(0, 0, 2)["input_ids"]).all()


def test_a_rank_found_late_is_checked(plan: Plan) -> None:
    """P5: a step that does not divide among the ranks is refused as soon as their number is known."""
    loader = TokenLoader(plan)
    with process(0, 3), pytest.raises(ConfigError, match="divisor of the global batch of 4 sequences, found 3"):
        next(loader)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_reads_its_own_rank(plan: Plan) -> None:
    """P2: as under a launcher that forks."""
    loader = TokenLoader(plan, microbatch_size=1)
    next(loader)

    def child() -> None:
        with process(1, 2):
            same = (first_batch(loader) == plan.batch(0, 1, 2, 1)["input_ids"][:1]).all()
        os._exit(0 if same else 1)

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
