"""The data-parallel rank of a process, which determines its part of the data.

Ranks of tensor, context and pipeline parallelism train on the same batch, so all of them must load the same data.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import get_worker_info

from tokenstore.order.rank_rows import check_nodes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Usual names of mesh dims: ranks along DATA_DIMS load different data, ranks along MODEL_DIMS the same.
DATA_DIMS = {"dp", "dp_replicate", "dp_shard", "data", "data_parallel", "batch"}
DATA_DIMS |= {"ddp", "fsdp", "hsdp", "replicate", "shard"}
MODEL_DIMS = {
    "tp",
    "cp",
    "pp",
    "ep",
    "sp",
    "etp",
    "tensor",
    "context",
    "pipe",
    "pipeline",
    "expert",
    "sequence",
    "model",
}
MODEL_DIMS |= {f"{kind}_parallel" for kind in MODEL_DIMS}


@dataclass(frozen=True)
class DataRank:
    """A data-parallel rank. Every `rank=` argument of this package accepts one instead of `rank` and `world_size`.

    Attributes:
        rank: 0 <= rank < world_size.
        world_size: number of data-parallel ranks.
        nodes: number of nodes that the ranks are on: ranks 0 to world_size / nodes - 1 on the first one, and so on. All ranks
            must pass the same number. If a source of the plan has `locality`, each node gets rows of other blocks (ORD-21);
            otherwise it has no effect. Default: that of the job, if torchrun or Slurm started one process for each of the
            `world_size` ranks; otherwise 1.

    Raises:
        ValueError: the numbers are out of range.

    Example:
        >>> TokenLoader(plan, rank=DataRank.from_mesh(mesh))
    """

    rank: int
    world_size: int
    nodes: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank: expected 0 <= rank < world_size, found rank {self.rank} of {self.world_size};"
                " pass the data-parallel rank and world size"
            )
        if self.nodes == 0:
            object.__setattr__(self, "nodes", _launched_nodes(self.world_size))
        check_nodes(self.nodes)

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dims: Sequence[str] | str | None = None) -> Self:
        """The rank of this process along the data-parallel dims of a mesh, numbered in the order of the mesh.

        Args:
            mesh: a torch DeviceMesh with named dims.
            dims: names of the data-parallel dims. Default: all with a usual name (dp, dp_replicate, dp_shard, fsdp, data,
                batch, ...). If a dim also contains context parallelism, as `fsdp` does in torchtitan, pass `batch` instead.

        Raises:
            ValueError: no dim matches; or `dims` is omitted and a dim has an unknown name; or this process is not in the mesh.

        Example:
            >>> mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
            >>> DataRank.from_mesh(mesh)  # on process 5: DataRank(rank=2, world_size=4)
        """
        names = tuple(mesh.mesh_dim_names or ())
        wanted = _data_dims(names) if dims is None else {dims} if isinstance(dims, str) else set(dims)
        if not wanted or not wanted <= set(names):
            raise ValueError(
                f"dims: expected some of the mesh's dims {list(names)}, found {sorted(wanted) or 'no usual name'};"
                " name the data-parallel dims: from_mesh(mesh, dims=(...))"
            )
        place = mesh.get_coordinate()
        if place is None:
            raise ValueError(
                f"mesh: this process is not in it; its ranks are {mesh.mesh.flatten().tolist()};"
                " make a loader only on these"
            )
        rank, world_size = 0, 1
        for name, at, size in zip(names, place, mesh.mesh.shape, strict=True):
            if name in wanted:
                rank, world_size = rank * size + at, world_size * size
        return cls(rank, world_size)

    @classmethod
    def from_environment(cls) -> Self:
        """The rank of this process in torch.distributed, all of whose ranks are taken as data-parallel.

        Before torch.distributed is initialized, the environment variables RANK and WORLD_SIZE of the launcher are used, so
        that a loader created early does not load the data of another rank. Without either, it is rank 0 of 1.

        Raises:
            ValueError: WORLD_SIZE is set without RANK.
        """
        if _is_distributed():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        rank, world_size = os.environ.get("RANK"), int(os.environ.get("WORLD_SIZE") or 1)
        if world_size > 1 and rank is None:
            raise ValueError(
                f"rank: the environment has WORLD_SIZE={world_size} but no RANK, and torch.distributed is not initialized;"
                " initialize it first, or pass rank= and world_size="
            )
        return cls(int(rank or 0), world_size)


class ProcessRank:
    """The data-parallel rank of the current process: a given rank, or that of the environment.

    Without a given rank, the environment is read at every call until `fix`, which is called at the first batch, because
    torch.distributed may be initialized after a loader is made. A pickled or forked copy reads the environment of its own
    process, so an object made on a driver is right in each worker. A copy keeps the rank of the original process if the new
    one has no rank: in a worker process of a DataLoader, or without torch.distributed and RANK.

    Attributes:
        given: the given rank; None: the environment decides.
    """

    def __init__(self, rank: "int | DataRank | None", world_size: int | None, nodes: int | None = None):
        """Use `rank` and `world_size`, or a DataRank as `rank`; None: the environment. nodes: None for those of the rank."""
        self._nodes = None if nodes is None else check_nodes(nodes)
        self.given = None if rank is None and world_size is None else self._on_nodes(data_rank(rank, world_size))
        self._inherited: DataRank | None = None
        self._fixed: DataRank | None = None
        self._process = os.getpid()

    def now(self) -> DataRank:
        """The rank of this process. Raises: ValueError: WORLD_SIZE is set without RANK, and nothing else determines the rank."""
        if self.given is not None:
            return self.given
        if self._process != os.getpid():  # forked
            self._inherited, self._fixed, self._process = self._fixed or self._inherited, None, os.getpid()
        return self._fixed or self._of_process()

    @property
    def known(self) -> DataRank | None:
        """The given or fixed rank, without reading the environment; None if it may still change."""
        return self.given or (self._fixed if self._process == os.getpid() else None)

    def fix(self) -> DataRank:
        """The rank of this process, which is constant from now on."""
        self._fixed = self.now()
        return self._fixed

    def _of_process(self) -> DataRank:
        if self._inherited is not None and not _is_distributed():
            launched = "RANK" in os.environ or "WORLD_SIZE" in os.environ
            if get_worker_info() is not None or not launched:
                return self._inherited
        return self._on_nodes(DataRank.from_environment())

    def _on_nodes(self, rank: DataRank) -> DataRank:
        return rank if self._nodes is None else replace(rank, nodes=self._nodes)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "_nodes": self._nodes, "_inherited": self.now(), "_fixed": None, "_process": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _launched_nodes(world_size: int) -> int:
    """Nodes of the job, if its launcher started `world_size` processes; otherwise 1.

    The variables have the same values in all processes of a job, so that all ranks return the same number.
    """
    variables = os.environ
    if "GROUP_WORLD_SIZE" in variables:  # torchrun, which Slurm may have started once per node
        found, processes = variables["GROUP_WORLD_SIZE"], variables.get("WORLD_SIZE")
    else:
        same = re.fullmatch(r"\d+\(x(\d+)\)", variables.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as 8(x4)
        found = same[1] if same and variables.get("SLURM_DISTRIBUTION", "block").startswith("block") else "1"
        processes = variables.get("SLURM_STEP_NUM_TASKS")
    nodes = int(found) if found.isascii() and found.isdigit() else 1
    return nodes if processes == str(world_size) and nodes and world_size % nodes == 0 else 1


def data_rank(rank: "int | DataRank | None", world_size: int | None) -> DataRank:
    """The DataRank for a pair of arguments: both numbers, one DataRank as `rank`, or neither (the environment).

    Raises: ValueError: only one of the two is given, or they are out of range.
    """
    if isinstance(rank, DataRank) and world_size is None:
        return rank
    if rank is None and world_size is None:
        return DataRank.from_environment()
    if rank is None or world_size is None or isinstance(rank, DataRank):
        raise ValueError(
            f"rank and world_size: expected both or neither, or a DataRank alone, found {rank} and {world_size};"
            " pass the data-parallel rank and world size"
        )
    return DataRank(rank, world_size)


def _data_dims(names: Sequence[str]) -> set[str]:
    """The data-parallel dims among `names`, by their usual names."""
    if unknown := [name for name in names if name not in DATA_DIMS | MODEL_DIMS]:
        raise ValueError(
            f"dims: the mesh has dims {list(names)}, and it is unknown whether {unknown} are data-parallel;"
            " name the data-parallel dims: from_mesh(mesh, dims=(...))"
        )
    return DATA_DIMS & set(names)
