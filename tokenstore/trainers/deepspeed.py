"""A loader for a DeepSpeed engine: its position is the number of updates of the engine, which is in its checkpoints.

engine, *_ = deepspeed.initialize(model=model, config=config)
loader = engine_loader(engine, plan)
engine.load_checkpoint(folder)              # continues the loader too, with any number of ranks
for batch in loader: ...
"""

from typing import Any, Unpack

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import PlacedLoader, check_accumulation, microbatches_per_step, warn_if_repeated

try:
    from deepspeed.utils import groups
except ImportError as error:
    raise ImportError("deepspeed is not installed; pip install deepspeed") from error


def engine_loader(engine: Any, plan: Plan, **options: Unpack[AllOptions]) -> PlacedLoader:
    """The microbatches of the rank of a DeepSpeed engine, on its device.

    Each iteration starts at the step after the engine's updates, `engine.global_steps`. So checkpoints need no state of the
    data, and a step that was interrupted is trained again. To let a checkpoint of another run be refused, save
    `client_state={"plan": loader.state_dict()}` and pass the loaded one to `loader.load_state_dict`.

    Args:
        engine: made by deepspeed.initialize. Its configuration must agree with the plan: train_batch_size is the plan's
            global_batch_size.
        plan: the plan to train.
        options: options of TokenLoader. By default, `rank`, `device` and `microbatch_size` are those of the engine.

    Raises:
        ConfigError: an update of the engine would not be a step of the plan.

    Example:
        >>> loader = engine_loader(engine, Plan("plan.yaml"))
        >>> for batch in loader:
        ...     engine.backward(loss_of(engine(batch["input_ids"]), batch["targets"]))
        ...     engine.step()
    """
    own: AllOptions = {
        "rank": engine_rank(engine),
        "device": engine.device,
        "microbatch_size": engine.train_micro_batch_size_per_gpu(),
        **options,
    }
    expected = microbatches_per_step(plan, engine.dp_world_size, own["microbatch_size"])
    check_accumulation("gradient_accumulation_steps", engine.gradient_accumulation_steps(), expected, plan)
    if engine.train_batch_size() != plan.global_batch_size(0):
        raise ConfigError(
            f"train_batch_size: expected {plan.global_batch_size(0)}, the plan's global_batch_size, found"
            f" {engine.train_batch_size()}; change DeepSpeed's configuration"
        )
    warn_if_repeated(plan, engine.global_steps, "The checkpoint is from a longer run.")
    return PlacedLoader(plan, lambda: engine.global_steps, **own)


def engine_rank(engine: Any) -> DataRank:
    """The data-parallel rank of an engine. Ranks of tensor, pipeline and sequence parallelism count as one."""
    if engine.mpu is not None:
        return DataRank(engine.mpu.get_data_parallel_rank(), engine.mpu.get_data_parallel_world_size())
    return DataRank(groups._get_data_parallel_rank(), groups._get_data_parallel_world_size())
