"""One rank of the Trainer of transformers on the CPU: `-m tests.hf_ranks FOLDER`, which holds the stores and one rank's run."""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from tests.hf_model import TokenTrainer, quiet_arguments, tiny_model
from tests.launched import leave
from tests.microbatches import small_plan
from tokenstore import Plan, TokenLoader


def train(folder: Path, name: str, size: int, accumulation: int, after: Path | None = None, **options: Any) -> None:
    """One run of two ranks, and what it leaves."""
    eval_plan = Plan.of(folder / "v", 8, 4, num_steps=3)
    arguments = quiet_arguments(folder / name, size, accumulation, ddp_backend="gloo", **options)
    trainer = TokenTrainer(tiny_model(), arguments, train_plan=small_plan(folder / "a"), eval_plan=eval_plan)
    trainer.train(resume_from_checkpoint=after and str(after))
    weights = trainer.model.lm_head.weight.detach().numpy().copy()
    leave(folder, name, {"trained": trainer.trained, "evaluated": trainer.evaluated, "weights": weights})


def prepare(folder: Path) -> None:
    """What Accelerate gives of a loader."""
    loader = TokenLoader(small_plan(folder / "a"), microbatch_size=2)
    prepared = Accelerator(cpu=True).prepare(loader)
    leave(folder, "prepared", (prepared is loader, [batch["input_ids"].numpy() for batch in prepared]))


def main(folder: Path) -> None:
    """All the runs of two ranks, one after the other in the same processes: starting them is what takes time."""
    torch.set_num_threads(1)
    train(folder, "whole", 2, 2, eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=1)
    train(folder, "again", 4, 1, folder / "whole" / "checkpoint-2")
    train(folder, "from_one", 1, 4, folder / "one" / "checkpoint-3")
    prepare(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
