"""Train a plan with Ray Train.

python -m tokenstore.examples.trainers.ray_train DATA RUN --ranks 2
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Loop, Options, main
from tokenstore.trainers.ray import with_position, worker_evaluation, worker_loader


class Worker(Loop):
    """The loop of the examples in a worker, with Ray's checkpoints."""

    def load(self) -> None:
        """Restore the last checkpoint of the run, if there is one."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder) / "model.pt", weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.step = saved["step"]
        journal.resumed(self.step)

    def save(self, data: Any) -> None:
        """Report a checkpoint of rank 0."""
        with tempfile.TemporaryDirectory() as folder:
            if self.rank == 0:
                torch.save({"model": self.model.state_dict(), "step": self.step}, Path(folder) / "model.pt")
            checkpoint = Checkpoint.from_directory(folder) if self.rank == 0 else None
            # data
            ray.train.report({}, checkpoint=checkpoint and with_position(checkpoint, data))
            # end


def train_worker(config: dict[str, Any]) -> None:
    """The training function of every worker."""
    os.environ.update(config["environment"])
    options: Options = config["options"]
    torch.manual_seed(0)
    # data
    loader = worker_loader(options.plan, microbatch_size=options.microbatch, prefetch=options.workers)
    evaluation = worker_evaluation(options.eval_plan, microbatch_size=options.microbatch)
    # end
    loop = Worker(options)
    loop.load()
    loop.train(loader, lambda: loader)
    loop.evaluate(evaluation)


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint of the run if there is one, and evaluate."""
    ray.init(num_cpus=options.ranks, include_dashboard=False, log_to_driver=False)
    environment = {name: os.environ[name] for name in ("JOURNAL", "KILL_AT") if name in os.environ}
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"options": options, "environment": environment},
        scaling_config=ScalingConfig(num_workers=options.ranks),
        run_config=RunConfig(name=options.run.name, storage_path=str(options.run.parent)),
    )
    trainer.fit()


if __name__ == "__main__":
    main(__doc__, train)
