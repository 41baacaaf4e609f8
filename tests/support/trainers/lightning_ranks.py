"""One rank of Lightning's DDP on the CPU: `python -m tests.support.trainers.lightning_ranks FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.support.processes.launched import leave
from tests.support.trainers.lightning_model import Recorder, quiet_trainer
from tests.support.trainers.microbatches import small_plan
from tokenstore import Plan, TokenLoader
from tokenstore.trainers.lightning import TokenDataModule


def train(folder: Path, name: str, data: Any, ckpt_path: Path | None = None, **options: Any) -> None:
    """One fit of two ranks; saves its results."""
    model = Recorder(total_steps=name != "loader")
    trainer = quiet_trainer(
        folder / name, every=1, max_epochs=1, devices=2, strategy="ddp", accumulate_grad_batches=2, **options
    )
    given = {"datamodule": data} if isinstance(data, TokenDataModule) else {"train_dataloaders": data}
    trainer.fit(model, **given, ckpt_path=ckpt_path)
    leave(folder, name, {"trained": model.trained, "evaluated": model.evaluated, "weight": model.weight.item()})


def main(folder: Path) -> None:
    """All runs of two ranks, in the same processes, because starting them takes most of the time."""
    plan = small_plan(folder / "a")
    val_plan = Plan.of(folder / "v", 8, 4, num_steps="all_exhausted", packing="none")
    train(folder, "whole", TokenDataModule(plan, microbatch_size=2, val_plan=val_plan, eval_microbatch_size=1))
    train(folder, "again", TokenDataModule(plan, microbatch_size=2), folder / "whole" / "step=2.ckpt")
    train(folder, "from_one", TokenDataModule(plan, microbatch_size=2), folder / "one" / "step=3.ckpt")
    train(folder, "loader", TokenLoader(plan, microbatch_size=2))
    dist.destroy_process_group()  # gloo's threads must not be running when the process ends: it may abort then


if __name__ == "__main__":
    main(Path(sys.argv[1]))
