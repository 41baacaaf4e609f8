"""ProcessLoader: batches of a plan for JAX, as numpy arrays of a process or as global arrays.

    loader = ProcessLoader(plan, microbatch_size=8, sharding=NamedSharding(mesh, PartitionSpec("data")))
    for batch in loader:
        params, loss = update(params, batch["input_ids"], batch["targets"])

`tokenstore.trainers.grain` has data sources and datasets for Grain, whose batches are numpy arrays as well.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self, Unpack

import numpy as np

from tokenstore.planning.plan import Plan
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import arrays

try:
    import jax
except ImportError as error:
    raise ImportError("jax is not installed; pip install jax") from error


class ProcessLoader(Iterator[Any]):
    """The microbatches of this process, as dicts of arrays.

    int64 becomes int32, the integer type of JAX, unless `jax_enable_x64` is on. Its position and its state are those of a
    TokenLoader: the same on every process, and restored with any number of processes.

    Example:
        >>> loader = ProcessLoader(Plan("plan.yaml"), microbatch_size=8)
        >>> next(loader)["input_ids"].shape  # numpy.ndarray of int32
        (8, 2048)
    """

    def __init__(self, plan: Plan, *, sharding: Any = None, **options: Unpack[AllOptions]):
        """Make a loader. Nothing is read yet.

        Args:
            plan: the plan.
            sharding: a jax.sharding.Sharding whose first dimension is divided over the processes. Batches are then global
                arrays, made of the rows of all processes in their order. None: numpy arrays with the rows of this process.
            options: options of TokenLoader, such as `restart` for evaluation. By default, `rank` and `world_size` are the index and the number of JAX's
                processes. If several processes need the same rows, for example those of a model axis, pass others.

        Raises:
            ConfigError: a step does not divide evenly among the processes.
        """
        own: AllOptions = {"rank": DataRank(jax.process_index(), jax.process_count()), **options}
        self._loader: TokenLoader[Any] = TokenLoader(plan, **own)
        self._sharding = sharding

    def __iter__(self) -> Self:
        iter(self._loader)
        return self

    def __next__(self) -> Any:
        batch = {name: _narrow(value) for name, value in arrays(next(self._loader)).items()}
        if self._sharding is None:
            return batch
        return {name: self._global(value) for name, value in batch.items()}

    def _global(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return jax.make_array_from_process_local_data(self._sharding, value)

    def __len__(self) -> int:
        """Microbatches per process in the whole plan. Raises: TypeError: the plan is endless."""
        return len(self._loader)

    @property
    def step(self) -> int:
        """The step to resume from: that of the next microbatch, or of a skipped step before it."""
        return self._loader.step

    @property
    def step_ended(self) -> bool:
        """Whether the last returned microbatch was the last of its step. Also True before the first microbatch."""
        return self._loader.step_ended

    def state_dict(self) -> dict[str, int | str]:
        """The position, as integers and strings that are the same on every process."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. {} is ignored. Raises: the errors of TokenLoader.load_state_dict."""
        self._loader.load_state_dict(state)


def _narrow(value: Any) -> Any:
    """int64 as int32, as JAX would convert it. Token ids and targets are below 2**31."""
    if isinstance(value, np.ndarray) and value.dtype == np.int64 and not jax.config.jax_enable_x64:
        return value.astype(np.int32)
    return value
