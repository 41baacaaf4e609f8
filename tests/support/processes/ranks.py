"""Ranks as real processes over gloo, from a fork server with slow imports done; and the functions they run."""

import multiprocessing
import pickle
import uuid
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from tokenstore import DataRank, Plan, TokenDataset, TokenLoader

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.processes.ranks"])


def run_ranks(world_size: int, function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Run `function` on every rank; return the results. Their files go into `folder`."""
    folder = folder / uuid.uuid4().hex
    folder.mkdir()
    ranks = [
        PROCESSES.Process(target=_main, args=(rank, world_size, function, folder, arguments))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * world_size
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(world_size)]


def _main(rank: int, world_size: int, function: Callable[..., Any], folder: Path, arguments: tuple) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    (folder / str(rank)).write_bytes(pickle.dumps(function(*arguments)))
    dist.destroy_process_group()


def ids_of(loader: TokenLoader, count: int | None = None) -> list[list[list[int]]]:
    """input_ids of at most `count` microbatches."""
    return [batch["input_ids"].tolist() for batch in islice(loader, count)]


def by_mesh(plan: Plan, **dims: int) -> tuple[DataRank, list]:
    """The rank of this process in a mesh, and its batches."""
    place = DataRank.from_mesh(init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims)))
    return place, ids_of(TokenLoader(plan, rank=place))


def two_by_one(plan: Plan) -> tuple[DataRank, list]:
    """Two data-parallel ranks."""
    return by_mesh(plan, dp=2, tp=1)


def one_by_two(plan: Plan) -> tuple[DataRank, list]:
    """Two tensor-parallel ranks."""
    return by_mesh(plan, dp=1, tp=2)


def save(plan: Plan, path: Path, count: int) -> list:
    """Load some microbatches of one sequence, then save the loader as torch's distributed checkpoint."""
    loader = TokenLoader(plan, microbatch_size=1)
    given = ids_of(loader, count)
    dcp.save({"loader": loader}, checkpoint_id=path)
    return given


def load(plan: Plan, path: Path) -> list:
    """Restore such a checkpoint; return the following microbatches."""
    loader = TokenLoader(plan, microbatch_size=1, inside_step="continue")
    dcp.load({"loader": loader}, checkpoint_id=path)
    return ids_of(loader)


def sent(loader: TokenLoader, dataset: TokenDataset) -> list:
    """The batches of a loader and a dataset made in another process, without a rank."""
    workers = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    return [ids_of(each) for each in (loader, workers)]
