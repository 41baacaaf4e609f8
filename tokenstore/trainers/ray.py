"""A loader in a worker of Ray Train: its rank, its device, and its position, which is in the metadata of checkpoints.

    def train(config):
        loader = worker_loader(config["plan"], microbatch_size=8)      # continues at the run's last checkpoint
        for batch in loader:
            ...
            if loader.step_ended:
                ray.train.report(metrics, checkpoint=with_position(Checkpoint.from_directory(folder), loader))

    TorchTrainer(train, train_loop_config={"plan": plan}, ...).fit()

A Plan pickles as its configuration, some hundred bytes, so it may be made on the driver.
"""

from typing import Any, TypeVar, Unpack

from tokenstore.errors import StateMismatchError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import evaluation_loader

try:
    import ray.train
    import ray.train.torch
except ImportError as error:
    raise ImportError("Ray Train is not installed; pip install 'ray[train]'") from error

KEY = "tokenstore"  # in the metadata of a checkpoint
CheckpointT = TypeVar("CheckpointT", bound="ray.train.Checkpoint")


def worker_loader(plan: Plan, **options: Unpack[AllOptions]) -> TokenLoader[Any]:
    """The microbatches of this worker, from the run's last checkpoint on. Call it in the training function.

    Args:
        plan: the plan to train.
        options: options of TokenLoader. By default, `rank` and `device` are those of the worker.

    Raises:
        StateMismatchError: the checkpoint is from a run with another history, or was saved without `with_position`.
        ConfigError: a step does not divide evenly among the workers.
    """
    loader: TokenLoader[Any] = TokenLoader(plan, **_own_options(options))
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        metadata = checkpoint.get_metadata()
        if KEY not in metadata:
            raise StateMismatchError(
                f"checkpoint: its metadata has no entry {KEY!r}, so the position in the plan is not known; report"
                " checkpoints with with_position(checkpoint, loader), or use TokenLoader(plan, step=...)"
            )
        loader.load_state_dict(metadata[KEY])
    return loader


def worker_evaluation(plan: Plan, **options: Unpack[AllOptions]) -> Evaluation:
    """The Evaluation of a plan in this worker: every token once, over all workers. Arguments are those of `worker_loader`.

    Raises: ConfigError: the plan is endless.
    """
    return evaluation_loader(plan, **_own_options(options))


def with_position(checkpoint: CheckpointT, loader: TokenLoader[Any]) -> CheckpointT:
    """A checkpoint, with the state of a loader in its metadata."""
    checkpoint.update_metadata({KEY: loader.state_dict()})
    return checkpoint


def _own_options(options: AllOptions) -> AllOptions:
    """`options`, with the rank and the device of this worker as defaults."""
    context = ray.train.get_context()
    rank = DataRank(context.get_world_rank(), context.get_world_size())
    return {"rank": rank, "device": ray.train.torch.get_device(), **options}
