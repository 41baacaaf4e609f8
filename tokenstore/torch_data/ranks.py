"""Which part of the data a process is given: its place among the data-parallel ranks only.

Ranks of tensor, context and pipeline parallelism work on one batch together, so all of them must be given the same one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Dims by their usual names: those over which trainers give different data, and those over which they give the same
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
    """A data-parallel rank, 0 <= rank < world_size. Every `rank=` of this package takes one in place of both numbers."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank: expected 0 <= rank < world_size, found rank {self.rank} of {self.world_size};"
                " give the data-parallel rank and size"
            )

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dims: Sequence[str] | str | None = None) -> Self:
        """The place of this process along the data-parallel dims of a mesh, counted in the mesh's order.

        Args:
            mesh: a torch DeviceMesh with named dims.
            dims: the data-parallel ones; left out: those with a usual name (dp, dp_replicate, dp_shard, fsdp, data, batch,
                ...). A dim with context parallelism folded in, as torchtitan's `fsdp`, is not one of them: give `batch`.
        Raises: ValueError: no dim fits, or without `dims` one has a name that does not tell what it is for.
        """
        names = tuple(mesh.mesh_dim_names or ())
        wanted = _data_dims(names) if dims is None else {dims} if isinstance(dims, str) else set(dims)
        if not wanted or not wanted <= set(names):
            raise ValueError(
                f"dims: expected some of the mesh's dims {list(names)}, found {sorted(wanted) or 'none that is usual'};"
                " name those over which the data is split: from_mesh(mesh, dims=(...))"
            )
        place = mesh.get_coordinate()
        if place is None:
            raise ValueError(
                f"mesh: expected one that this process is in, found the ranks {mesh.mesh.flatten().tolist()};"
                " make a loader on those only"
            )
        rank, world_size = 0, 1
        for name, at, size in zip(names, place, mesh.mesh.shape, strict=True):
            if name in wanted:
                rank, world_size = rank * size + at, world_size * size
        return cls(rank, world_size)

    @classmethod
    def from_environment(cls) -> Self:
        """Those of torch.distributed, where all ranks are data-parallel; before it is set up those a launcher left in RANK
        and WORLD_SIZE, so that an early loader is not given what another rank has; without either, 0 of 1.
        """
        if _is_distributed():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        rank, world_size = os.environ.get("RANK"), int(os.environ.get("WORLD_SIZE") or 1)
        if world_size > 1 and rank is None:
            raise ValueError(
                f"rank: expected torch.distributed to be set up, or RANK, found WORLD_SIZE={world_size} alone;"
                " set it up first, or give rank= and world_size="
            )
        return cls(int(rank or 0), world_size)


class ProcessRank:
    """The data rank of the process that asks: the one that was given, or that of the process's environment.

    Without a given rank the environment is read at every call until `fix`, at the first batch: torch.distributed may be
    set up after a loader was made. A pickled or forked copy reads the environment of its own process, so an object made on
    a driver is right in each worker. It keeps the rank of the process it came from where the new one has no rank of its
    own: in a worker process of a DataLoader, or without torch.distributed and RANK.
    """

    def __init__(self, rank: "int | DataRank | None", world_size: int | None):
        self.given = None if rank is None and world_size is None else data_rank(rank, world_size)
        self._inherited: DataRank | None = None
        self._fixed: DataRank | None = None
        self._process = os.getpid()

    def now(self) -> DataRank:
        """The rank here. Raises: ValueError: WORLD_SIZE is set without RANK, and nothing else says which rank this is."""
        if self.given is not None:
            return self.given
        if self._process != os.getpid():  # forked
            self._inherited, self._fixed, self._process = self._fixed or self._inherited, None, os.getpid()
        return self._fixed or self._of_process()

    def fix(self) -> DataRank:
        """The rank here, from now on."""
        self._fixed = self.now()
        return self._fixed

    def _of_process(self) -> DataRank:
        if self._inherited is not None and not _is_distributed():
            launched = "RANK" in os.environ or "WORLD_SIZE" in os.environ
            if get_worker_info() is not None or not launched:
                return self._inherited
        return DataRank.from_environment()

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "_inherited": self.now(), "_fixed": None, "_process": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def data_rank(rank: "int | DataRank | None", world_size: int | None) -> DataRank:
    """The DataRank of a pair of arguments `rank`, `world_size`: both numbers, one DataRank, or neither."""
    if isinstance(rank, DataRank) and world_size is None:
        return rank
    if rank is None and world_size is None:
        return DataRank.from_environment()
    if rank is None or world_size is None or isinstance(rank, DataRank):
        raise ValueError(
            f"rank and world_size: expected both or neither, or a DataRank alone, found {rank} and {world_size};"
            " give the data-parallel rank and size"
        )
    return DataRank(rank, world_size)


def _data_dims(names: Sequence[str]) -> set[str]:
    """The data-parallel dims by their usual names."""
    if unknown := [name for name in names if name not in DATA_DIMS | MODEL_DIMS]:
        raise ValueError(
            f"dims: expected to know the mesh's dims {list(names)} by name, found {unknown};"
            " name those over which the data is split: from_mesh(mesh, dims=(...))"
        )
    return DATA_DIMS & set(names)
